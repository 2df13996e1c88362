#include "refurbish_tf/cc/store/disk/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace refurbish_tf {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Bits reversed.

using Table = std::array<uint32_t, 256>;

// `tables[k][b]` is the register after byte b and k bytes of zero.
const std::array<Table, 8>& ByteTables() {
  static const auto* const tables = [] {
    auto* result = new std::array<Table, 8>;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
      }
      (*result)[0][byte] = value;
    }
    for (int k = 1; k < 8; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        const uint32_t value = (*result)[k - 1][byte];
        (*result)[k][byte] = (value >> 8) ^ (*result)[0][value & 0xff];
      }
    }
    return result;
  }();
  return *tables;
}

uint32_t ExtendByTable(uint32_t crc, const uint8_t* data, size_t size) {
  const std::array<Table, 8>& tables = ByteTables();
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= tables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++data, --size) {
    crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

// The instruction yields a result every cycle, but each only after three. So
// three stretches are taken side by side and joined: the register is linear, and
// that of a stretch is moved over those behind it as over as many zeros.
constexpr size_t kStretch = 512;

// The register after `kStretch` zeros, by each of its bytes.
const std::array<Table, 4>& StretchTables() {
  static const auto* const tables = [] {
    auto* result = new std::array<Table, 4>;
    const std::array<uint8_t, kStretch> zeros{};
    for (int k = 0; k < 4; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        (*result)[k][byte] = ExtendByTable(byte << (8 * k), zeros.data(), kStretch);
      }
    }
    return result;
  }();
  return *tables;
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(
    uint32_t crc, const uint8_t* data, size_t size) {
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
      for (size_t i = 0; i < kStretch; i += 8) {
        first = _mm_crc32_u64(first, word(data + i));
        second = _mm_crc32_u64(second, word(data + kStretch + i));
        third = _mm_crc32_u64(third, word(data + 2 * kStretch + i));
      }
      first = move(move(static_cast<uint32_t>(first)) ^
                   static_cast<uint32_t>(second)) ^
              static_cast<uint32_t>(third);
    }
  }
  for (; size >= 8; data += 8, size -= 8) {
    first = _mm_crc32_u64(first, word(data));
  }
  for (; size > 0; ++data, --size) {
    first = _mm_crc32_u8(static_cast<uint32_t>(first), *data);
  }
  return static_cast<uint32_t>(first);
}

// Wider still: carry-less multiplication of 64 bytes at a time (Gopal et al.,
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", 2009). The
// register goes into the first bytes; each 16 bytes are multiplied with powers of
// x that move them over the bits behind them, until the last 64 bytes stand for
// all.

// x^power modulo the polynomial, as the multiplication wants it: bits reversed,
// shifted by one.
uint64_t Power(int power) {
  uint32_t value = 0x80000000;
  for (int i = 0; i < power; ++i) {
    value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
  }
  return uint64_t{value} << 1;
}

#define REFURBISH_TF_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2")))

// `bytes` moved over as many bits as `powers` is for, plus `behind`.
REFURBISH_TF_WIDE inline __m512i Fold(__m512i bytes, __m512i powers,
                                      __m512i behind) {
  return _mm512_ternarylogic_epi64(
      _mm512_clmulepi64_epi128(bytes, powers, 0x00),
      _mm512_clmulepi64_epi128(bytes, powers, 0x11), behind, /*xor*/ 0x96);
}

REFURBISH_TF_WIDE uint32_t ExtendByMultiplication(uint32_t crc,
                                                  const uint8_t* data,
                                                  size_t size) {
  constexpr size_t kWide = 4 * 64;
  if (size < 2 * kWide) return ExtendByInstruction(crc, data, size);
  static const uint64_t over_2048[] = {Power(2048 + 32), Power(2048 - 32)};
  static const uint64_t over_512[] = {Power(512 + 32), Power(512 - 32)};
  __m512i parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = _mm512_loadu_si512(data + 64 * i);
  parts[0] = _mm512_xor_si512(
      parts[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  const __m512i far = _mm512_set4_epi64(over_2048[1], over_2048[0],
                                        over_2048[1], over_2048[0]);
  for (data += kWide, size -= kWide; size >= kWide; data += kWide, size -= kWide) {
    for (int i = 0; i < 4; ++i) {
      parts[i] = Fold(parts[i], far, _mm512_loadu_si512(data + 64 * i));
    }
  }
  const __m512i near = _mm512_set4_epi64(over_512[1], over_512[0], over_512[1],
                                         over_512[0]);
  __m512i all = parts[0];
  for (int i = 1; i < 4; ++i) all = Fold(all, near, parts[i]);
  alignas(64) uint8_t last[64];
  _mm512_store_si512(last, all);
  return ExtendByInstruction(ExtendByInstruction(0, last, sizeof(last)), data,
                             size);
}

#undef REFURBISH_TF_WIDE

#endif

}  // namespace

std::vector<Crc32cWay> Crc32cWays() {
  std::vector<Crc32cWay> ways;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("vpclmulqdq")) {
    ways.push_back(ExtendByMultiplication);
  }
  if (__builtin_cpu_supports("sse4.2")) ways.push_back(ExtendByInstruction);
#endif
  ways.push_back(ExtendByTable);
  return ways;
}

uint32_t Crc32c(const void* data, size_t size, uint32_t before) {
  static const Crc32cWay fastest = Crc32cWays().front();
  return ~fastest(~before, static_cast<const uint8_t*>(data), size);
}

}  // namespace refurbish_tf
