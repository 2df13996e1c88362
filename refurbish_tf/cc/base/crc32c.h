#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refurbish_tf {

// CRC-32C (Castagnoli). Uses the CPU's CRC instruction, if any, because every
// record that is read from a store on disk is checked. (Abseil's version, which
// comes with TensorFlow, takes nearly ten times as long on CPUs that it does
// not know.) `Crc32c(b, m, Crc32c(a, n))` is the checksum of a followed by b.
uint32_t Crc32c(const void* data, size_t size, uint32_t before = 0);

// All implementations that this CPU can run. `Crc32c` uses the first, which is
// the fastest; the test compares all.
using Crc32cWay = uint32_t (*)(uint32_t reg, const uint8_t* data, size_t size);
std::vector<Crc32cWay> Crc32cWays();

}  // namespace refurbish_tf
