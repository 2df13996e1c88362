#ifndef REFURBISH_TF_CC_BASE_CRC32C_H_
#define REFURBISH_TF_CC_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refurbish_tf {

// CRC-32C (Castagnoli), by the processor's own instructions where it has them:
// every sample that is read is checked. (Abseil's, which comes with TensorFlow,
// takes nearly ten times as long on processors that it does not know.)
// `Crc32c(b, m, Crc32c(a, n))` is that of a and b in a row.
uint32_t Crc32c(const void* data, size_t size, uint32_t before = 0);

// All the ways to compute it that this processor has, the fastest first, for the
// test to compare.
using Crc32cWay = uint32_t (*)(uint32_t reg, const uint8_t* data, size_t size);
std::vector<Crc32cWay> Crc32cWays();

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_BASE_CRC32C_H_
