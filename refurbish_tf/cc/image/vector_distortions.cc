// The distortions that change each pixel by itself, in AVX2 or NEON.
#include "refurbish_tf/cc/image/vector_distortions.h"

#include "refurbish_tf/cc/image/vector_rows.h"
#include "refurbish_tf/cc/image/vectors.h"

#if defined(REFURBISH_TF_VECTORS)

#include <cstring>

namespace refurbish_tf {
namespace vectors::distortions {
namespace {

// Applies `block(from, to)` to blocks of kBlock bytes, the last padded with 0.
template <class Block>
REFURBISH_TF_AVX2_INLINE inline void ForBlocks(const uint8_t* from,
                                               int64_t bytes, uint8_t* to,
                                               const Block& block) {
  alignas(32) uint8_t rest[kBlock];
  for (int64_t i = 0; i < bytes; i += kBlock) {
    const int64_t left = bytes - i;
    if (left >= kBlock) {
      block(from + i, to + i);
      continue;
    }
    std::memset(rest, 0, kBlock);
    std::memcpy(rest, from + i, left);
    block(rest, rest);
    std::memcpy(to + i, rest, left);
  }
}

// The same with a function `each(vector)`, which treats all bytes alike.
template <class Each>
REFURBISH_TF_AVX2_INLINE inline void ForVectors(const uint8_t* from,
                                                int64_t bytes, uint8_t* to,
                                                const Each& each) {
  ForBlocks(from, bytes, to,
            [&each](const uint8_t* from, uint8_t* to) REFURBISH_TF_AVX2_INLINE {
              for (int k = 0; k < kBlock; k += 32)
                Store(to + k, each(Load(from + k)));
            });
}

REFURBISH_TF_AVX2 void Mask(const uint8_t* from, int64_t bytes, uint8_t mask,
                            uint8_t* to) {
  const __m256i bits = Repeated(mask);
  ForVectors(from, bytes, to, [bits](__m256i value) REFURBISH_TF_AVX2_INLINE {
    return value & bits;
  });
}

REFURBISH_TF_AVX2 void Solarize(const uint8_t* from, int64_t bytes,
                                uint8_t threshold, uint8_t* to) {
  const __m256i lowest = Repeated(threshold);
  ForVectors(from, bytes, to, [lowest](__m256i value) REFURBISH_TF_AVX2_INLINE {
    return value ^ _mm256_cmpeq_epi8(_mm256_max_epu8(value, lowest), value);
  });
}

// 32 words, in the order in which `Low` and `High` unpack bytes.
struct Unpacked {
  REFURBISH_TF_AVX2_INLINE explicit Unpacked(const uint16_t* from)
      : low(_mm256_permute2x128_si256(Load(from), Load(from + 16), 0x20)),
        high(_mm256_permute2x128_si256(Load(from), Load(from + 16), 0x31)) {}
  __m256i low, high;
};

REFURBISH_TF_AVX2_INLINE inline Words Stretched(Words words, __m256i whole,
                                                __m256i multiplier) {
  const __m256i value = __m256i(words);
  return Words(_mm256_add_epi16(_mm256_mullo_epi16(value, whole),
                                _mm256_mulhi_epu16(value, multiplier)));
}

REFURBISH_TF_AVX2 void StretchBytes(const uint8_t* from, int64_t bytes,
                                    const StretchPlan& stretch, uint8_t* to) {
  const Unpacked whole[3] = {Unpacked(stretch.whole),
                             Unpacked(stretch.whole + 32),
                             Unpacked(stretch.whole + 64)};
  const Unpacked multiplier[3] = {Unpacked(stretch.multiplier),
                                  Unpacked(stretch.multiplier + 32),
                                  Unpacked(stretch.multiplier + 64)};
  ForBlocks(
      from, bytes, to,
      [&](const uint8_t* from, uint8_t* to) REFURBISH_TF_AVX2_INLINE {
        for (int k = 0; k < 3; ++k) {
          const __m256i value = _mm256_sub_epi8(Load(from + 32 * k),
                                                Load(stretch.lowest + 32 * k));
          Store(to + 32 * k,
                Packed(
                    Stretched(Low(value), whole[k].low, multiplier[k].low),
                    Stretched(High(value), whole[k].high, multiplier[k].high)));
        }
      });
}

template <class By>
REFURBISH_TF_AVX2_INLINE inline __m256i BlendBytes(const By& by, __m256i from,
                                                   __m256i to) {
  return Packed(by(Low(from), Low(to)), by(High(from), High(to)));
}

REFURBISH_TF_AVX2 void BlendAll(const uint8_t* from, int64_t bytes,
                                const BlendPlan& plan, uint8_t grey,
                                uint8_t* to) {
  const __m256i greys = Repeated(grey);
  WithBlend(plan, [&](const auto by) REFURBISH_TF_AVX2_INLINE {
    ForVectors(from, bytes, to, [&](__m256i value) REFURBISH_TF_AVX2_INLINE {
      return BlendBytes(by, greys, value);
    });
  });
}

// The grey values of the 8 pixels in 24 bytes, as 32-bit words. The weight of
// green, 38470, does not fit into int16, so half of it is added twice.
REFURBISH_TF_AVX2_INLINE inline __m256i Greys(const uint8_t* from) {
  const __m256i red_green = _mm256_setr_epi8(
      0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1,  //
      4, -1, 5, -1, 7, -1, 8, -1, 10, -1, 11, -1, 13, -1, 14, -1);
  const __m256i blue_green = _mm256_setr_epi8(
      2, -1, 1, -1, 5, -1, 4, -1, 8, -1, 7, -1, 11, -1, 10, -1,  //
      6, -1, 5, -1, 9, -1, 8, -1, 12, -1, 11, -1, 15, -1, 14, -1);
  const __m256i bytes = _mm256_inserti128_si256(
      _mm256_castsi128_si256(LoadHalf(from)), LoadHalf(from + 8), 1);
  const __m256i sum = _mm256_add_epi32(
      _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, red_green),
                        _mm256_set1_epi32(19235 << 16 | 19595)),
      _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, blue_green),
                        _mm256_set1_epi32(19235 << 16 | 7471)));
  return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(32768)), 16);
}

REFURBISH_TF_AVX2 void Color(const uint8_t* from, int64_t bytes,
                             const BlendPlan& plan, uint8_t* to) {
  // Indices that repeat each grey value three times.
  const __m256i first =
      _mm256_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5,  //
                       5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10);
  const __m256i second = _mm256_setr_epi8(
      10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15,  //
      0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5);
  const __m256i third = _mm256_setr_epi8(
      5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10,  //
      10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15);
  const auto block = [&](const auto& by, const uint8_t* from,
                         uint8_t* to) REFURBISH_TF_AVX2_INLINE {
    const __m256i greys = Interleaved32(_mm256_packus_epi16(
        _mm256_packs_epi32(Greys(from), Greys(from + 24)),
        _mm256_packs_epi32(Greys(from + 48), Greys(from + 72))));
    const __m256i low = _mm256_permute2x128_si256(greys, greys, 0x00);
    const __m256i high = _mm256_permute2x128_si256(greys, greys, 0x11);
    Store(to, BlendBytes(by, _mm256_shuffle_epi8(low, first), Load(from)));
    Store(to + 32,
          BlendBytes(by, _mm256_shuffle_epi8(greys, second), Load(from + 32)));
    Store(to + 64,
          BlendBytes(by, _mm256_shuffle_epi8(high, third), Load(from + 64)));
  };
  WithBlend(plan, [&](const auto by) REFURBISH_TF_AVX2_INLINE {
    ForBlocks(from, bytes, to,
              [&](const uint8_t* from, uint8_t* to)
                  REFURBISH_TF_AVX2_INLINE { block(by, from, to); });
  });
}

#if defined(__x86_64__)

// Looks up 16 values per step. Subtracting 16 makes an index negative after the
// step that has its value, and a shuffle then yields 0. Because steps are xored
// with the step before, the xor of all results is the value.
REFURBISH_TF_AVX2_INLINE inline __m256i LookUp(const ValueTables& tables,
                                               int channel, __m256i value) {
  const auto& steps = tables.steps[channel];
  const __m256i sixteen = Repeated(16);
  __m256i at = value & Repeated(127);
  __m256i low = _mm256_shuffle_epi8(Load(steps[0]), at);
  __m256i high = _mm256_shuffle_epi8(Load(steps[8]), at);
#pragma GCC unroll 7
  for (int k = 1; k < 8; ++k) {
    at = _mm256_sub_epi8(at, sixteen);
    low = low ^ _mm256_shuffle_epi8(Load(steps[k]), at);
    high = high ^ _mm256_shuffle_epi8(Load(steps[k + 8]), at);
  }
  return _mm256_blendv_epi8(low, high, value);
}

#else

inline __m256i LookUp(const ValueTables& tables, int channel, __m256i value) {
  const uint8_t* const table = tables.of[channel];
  return {LookUpIn(table, value.low), LookUpIn(table, value.high)};
}

#endif

REFURBISH_TF_AVX2_INLINE inline __m256i Merged(__m256i a, __m256i b,
                                               __m256i from_b, __m256i c,
                                               __m256i from_c) {
  return _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, from_b), c, from_c);
}

// Marks every third byte, from byte `k` on.
REFURBISH_TF_AVX2_INLINE inline __m256i Thirds(int k) {
  alignas(32) uint8_t thirds[32];
  for (int i = 0; i < 32; ++i) thirds[i] = i % 3 == k ? 255 : 0;
  return Load(thirds);
}

REFURBISH_TF_AVX2 void LookUpAll(const uint8_t* from, int64_t bytes,
                                 const ValueTables& tables, uint8_t* to) {
  const __m256i zero = Thirds(0), one = Thirds(1), two = Thirds(2);
  ForBlocks(
      from, bytes, to,
      [&](const uint8_t* from, uint8_t* to) REFURBISH_TF_AVX2_INLINE {
        const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64);
        // Byte i is of channel i % 3 in a, (i + 2) % 3 in b, (i + 1) % 3 in c.
        const __m256i red = LookUp(tables, 0, Merged(c, b, one, a, zero));
        const __m256i green = LookUp(tables, 1, Merged(c, b, two, a, one));
        const __m256i blue = LookUp(tables, 2, Merged(c, b, zero, a, two));
        Store(to, Merged(blue, green, one, red, zero));
        Store(to + 32, Merged(blue, green, two, red, one));
        Store(to + 64, Merged(blue, green, zero, red, two));
      });
}

struct Pixels {
  Words red, green, blue;
};

// The same arithmetic as `plain::TurnHue`.
REFURBISH_TF_AVX2_INLINE inline Pixels HueTurned(Pixels pixels, __m256i turn) {
  const auto [red, green, blue] = pixels;
  const Words most = Most(Most(red, green), blue);
  const Words spread = most - Least(Least(red, green), blue);
  Words hue = Chosen(
      most == red, green - blue,
      Chosen(most == green, 2 * spread + blue - red, 4 * spread + red - green));
  hue = 16 * hue + Words(_mm256_mulhrs_epi16(__m256i(128 * spread), turn));
  const Words zero = {}, sixth = 16 * spread, circle = 6 * sixth;
  hue = hue + ((hue < 0) & circle);
  hue = hue - ((hue >= circle) & circle);
  const auto channel = [&](Words distance) REFURBISH_TF_AVX2_INLINE {
    return (16 * most + 8 - Least(Most(distance - sixth, zero), sixth)) >> 4;
  };
  const auto apart = [&](Words own) REFURBISH_TF_AVX2_INLINE {
    return channel(Words(_mm256_abs_epi16(__m256i(hue - own))));
  };
  return {channel(Least(hue, circle - hue)), apart(2 * sixth),
          apart(4 * sixth)};
}

REFURBISH_TF_AVX2 void Hue(const uint8_t* from, int64_t bytes, int turn,
                           uint8_t* to) {
  const __m256i zero = Thirds(0), one = Thirds(1), two = Thirds(2);
  const __m256i turns = _mm256_set1_epi16(static_cast<int16_t>(turn));
  ForBlocks(
      from, bytes, to,
      [&](const uint8_t* from, uint8_t* to) REFURBISH_TF_AVX2_INLINE {
        const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64);
        // A vector for each channel, as in `LookUpAll`. Green and blue, one and
        // two bytes after the red of a pixel, are moved to the same byte.
        const __m256i red = Merged(c, b, one, a, zero);
        const __m256i green = MovedDown(Merged(c, b, two, a, one));
        const __m256i blue = MovedDown(MovedDown(Merged(c, b, zero, a, two)));
        const Pixels low = HueTurned({Low(red), Low(green), Low(blue)}, turns);
        const Pixels high =
            HueTurned({High(red), High(green), High(blue)}, turns);
        const __m256i reds = Packed(low.red, high.red);
        const __m256i greens = MovedUp(Packed(low.green, high.green));
        const __m256i blues = MovedUp(MovedUp(Packed(low.blue, high.blue)));
        Store(to, Merged(blues, greens, one, reds, zero));
        Store(to + 32, Merged(blues, greens, two, reds, one));
        Store(to + 64, Merged(blues, greens, zero, reds, two));
      });
}

REFURBISH_TF_AVX2 void Permute(const uint8_t* from, int64_t bytes,
                               const std::array<uint8_t, kColors>& order,
                               uint8_t* to) {
  // A vector has five pixels and another byte, which stays as it is until the
  // next vector begins with it.
  alignas(16) uint8_t places[16];
  for (int i = 0; i < 15; ++i) {
    places[i] =
        static_cast<uint8_t>(i / kColors * kColors + order[i % kColors]);
  }
  places[15] = 15;
  const __m128i places_of_five = LoadHalf(places);
  int64_t i = 0;
  for (; i + 16 <= bytes; i += 15) {
    StoreHalf(to + i, _mm_shuffle_epi8(LoadHalf(from + i), places_of_five));
  }
  PlainDistortions().permute(from + i, bytes - i, order, to + i);
}

REFURBISH_TF_AVX2 void FindExtremes(const uint8_t* from, int64_t bytes,
                                    uint8_t* lowest, uint8_t* highest) {
  __m256i low[3], high[3];
  for (int k = 0; k < 3; ++k) {
    low[k] = Repeated(255);
    high[k] = Repeated(0);
  }
  int64_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock) {
    for (int k = 0; k < 3; ++k) {
      const __m256i value = Load(from + i + 32 * k);
      low[k] = _mm256_min_epu8(low[k], value);
      high[k] = _mm256_max_epu8(high[k], value);
    }
  }
  alignas(32) uint8_t lows[kBlock], highs[kBlock];
  for (int k = 0; k < 3; ++k) {
    Store(lows + 32 * k, low[k]);
    Store(highs + 32 * k, high[k]);
  }
  for (int k = 0; i < bytes; ++i, ++k) {
    lows[k] = std::min(lows[k], from[i]);
    highs[k] = std::max(highs[k], from[i]);
  }
  for (int c = 0; c < kColors; ++c) {
    lowest[c] = lows[c];
    highest[c] = highs[c];
    for (int k = c + kColors; k < kBlock; k += kColors) {
      lowest[c] = std::min(lowest[c], lows[k]);
      highest[c] = std::max(highest[c], highs[k]);
    }
  }
}

REFURBISH_TF_AVX2 int64_t SumGreys(const uint8_t* from, int64_t bytes) {
  int64_t sum = 0, i = 0;
  while (i + 24 <= bytes) {
    // Each word sums one pixel of every 24 bytes; 2^20 of them do not overflow.
    const int64_t end = std::min(bytes, i + (int64_t{24} << 20));
    __m256i sums = _mm256_setzero_si256();
    for (; i + 24 <= end; i += 24) {
      sums = _mm256_add_epi32(sums, Greys(from + i));
    }
    alignas(32) uint32_t parts[8];
    Store(parts, sums);
    for (const uint32_t part : parts) sum += part;
  }
  for (; i < bytes; i += kColors) sum += plain::Grey(from + i);
  return sum;
}

}  // namespace
}  // namespace vectors::distortions

const DistortionKernels& VectorDistortions() {
  static const DistortionKernels kKernels = [] {
    namespace loops = vectors::distortions;
    DistortionKernels kernels = PlainDistortions();
    kernels.has_arithmetic = true;
    kernels.mask = loops::Mask;
    kernels.solarize = loops::Solarize;
    kernels.stretch = loops::StretchBytes;
    kernels.blend = loops::BlendAll;
    kernels.look_up = loops::LookUpAll;
    kernels.color = loops::Color;
    kernels.permute = loops::Permute;
    kernels.hue = loops::Hue;
    kernels.find_extremes = loops::FindExtremes;
    kernels.sum_greys = loops::SumGreys;
    loops::SetRows(&kernels);
    return kernels;
  }();
  return kKernels;
}

}  // namespace refurbish_tf

#endif
