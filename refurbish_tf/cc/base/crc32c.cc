#include "refurbish_tf/cc/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define REFURBISH_TF_CRC32C __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define REFURBISH_TF_CRC32C __attribute__((target("+crc")))
#endif

namespace refurbish_tf {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41, bits reversed.

using Table = std::array<uint32_t, 256>;

// Used by CPUs that have no CRC instruction, which are rare, and by the test.
uint32_t ExtendByTable(uint32_t crc, const uint8_t* data, size_t size) {
  static const auto* const table = [] {
    auto* result = new Table;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
      }
      (*result)[byte] = value;
    }
    return result;
  }();
  for (; size > 0; ++data, --size) {
    crc = (crc >> 8) ^ (*table)[(crc ^ *data) & 0xff];
  }
  return crc;
}

#if defined(REFURBISH_TF_CRC32C)

#if defined(__x86_64__)
bool HasInstruction() { return __builtin_cpu_supports("sse4.2"); }

REFURBISH_TF_CRC32C inline uint64_t ExtendBy8(uint64_t crc, uint64_t word) {
  return _mm_crc32_u64(crc, word);
}

REFURBISH_TF_CRC32C inline uint32_t ExtendBy1(uint32_t crc, uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
#else
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

REFURBISH_TF_CRC32C inline uint64_t ExtendBy8(uint64_t crc, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(crc), word);
}

REFURBISH_TF_CRC32C inline uint32_t ExtendBy1(uint32_t crc, uint8_t byte) {
  return __crc32cb(crc, byte);
}
#endif

// The CRC instruction can start every cycle, but its result takes three cycles.
// So three stretches of the data are computed side by side, and their results
// are joined. This is possible because the CRC is linear: a result is moved
// past the next stretch by feeding it a stretch of zeros, and then XORed with
// that stretch's result. (Carry-less multiplication of 64 bytes at a time, with
// AVX-512, saved 2 to 10 % of a read of 150 KiB, and nothing at 3 KiB.)
constexpr size_t kStretch = 512;

REFURBISH_TF_CRC32C uint32_t ExtendByInstruction(uint32_t crc,
                                                 const uint8_t* data,
                                                 size_t size);

// The CRC register after `kStretch` zeros, for each value of each of its bytes.
const std::array<Table, 4>& StretchTables() {
  static const auto* const tables = [] {
    auto* result = new std::array<Table, 4>;
    const std::array<uint8_t, kStretch> zeros{};
    for (int k = 0; k < 4; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        (*result)[k][byte] =
            ExtendByInstruction(byte << (8 * k), zeros.data(), kStretch);
      }
    }
    return result;
  }();
  return *tables;
}

REFURBISH_TF_CRC32C uint32_t ExtendByInstruction(uint32_t crc,
                                                 const uint8_t* data,
                                                 size_t size) {
  const auto word = [](const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
  };
  uint64_t first = crc;
  if (size >= 3 * kStretch) {
    const std::array<Table, 4>& tables = StretchTables();
    const auto move = [&tables](uint32_t value) {
      return tables[0][value & 0xff] ^ tables[1][(value >> 8) & 0xff] ^
             tables[2][(value >> 16) & 0xff] ^ tables[3][value >> 24];
    };
    for (; size >= 3 * kStretch; data += 3 * kStretch, size -= 3 * kStretch) {
      uint64_t second = 0;
      uint64_t third = 0;
      // The CPU does not prefetch three streams by itself.
      for (size_t i = 0; i < 3 * kStretch; i += 64) {
        __builtin_prefetch(data + 3 * kStretch + i);
      }
      for (size_t i = 0; i < kStretch; i += 8) {
        first = ExtendBy8(first, word(data + i));
        second = ExtendBy8(second, word(data + kStretch + i));
        third = ExtendBy8(third, word(data + 2 * kStretch + i));
      }
      first = move(move(static_cast<uint32_t>(first)) ^
                   static_cast<uint32_t>(second)) ^
              static_cast<uint32_t>(third);
    }
  }
  for (; size >= 8; data += 8, size -= 8) {
    first = ExtendBy8(first, word(data));
  }
  for (; size > 0; ++data, --size) {
    first = ExtendBy1(static_cast<uint32_t>(first), *data);
  }
  return static_cast<uint32_t>(first);
}

#endif

}  // namespace

std::vector<Crc32cWay> Crc32cWays() {
  std::vector<Crc32cWay> ways;
#if defined(REFURBISH_TF_CRC32C)
  if (HasInstruction()) ways.push_back(ExtendByInstruction);
#endif
  ways.push_back(ExtendByTable);
  return ways;
}

uint32_t Crc32c(const void* data, size_t size, uint32_t before) {
  static const Crc32cWay fastest = Crc32cWays().front();
  return ~fastest(~before, static_cast<const uint8_t*>(data), size);
}

}  // namespace refurbish_tf
