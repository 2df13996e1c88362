#ifndef REFURBISH_TF_CC_STORE_DISK_CRC32C_H_
#define REFURBISH_TF_CC_STORE_DISK_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace refurbish_tf {

// CRC-32C (Castagnoli), by the processor's own instruction where it has one.
// `Crc32c(b, m, Crc32c(a, n))` is that of a and b in a row.
uint32_t Crc32c(const void* data, size_t size, uint32_t before = 0);

// The same by tables, for the test to compare with.
uint32_t Crc32cByTable(const void* data, size_t size, uint32_t before = 0);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_CRC32C_H_
