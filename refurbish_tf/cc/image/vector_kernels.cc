// The loops in AVX2 or NEON. Only these functions are compiled for AVX2;
// whether the CPU has AVX2 and F16C is checked at run time.
#include "refurbish_tf/cc/image/vector_kernels.h"

#include "refurbish_tf/cc/image/plain_kernels.h"
#include "refurbish_tf/cc/image/vector_distortions.h"
#include "refurbish_tf/cc/image/vector_noise.h"
#include "refurbish_tf/cc/image/vectors.h"

#if defined(REFURBISH_TF_VECTORS)

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace refurbish_tf {
namespace vectors {
namespace {

#if defined(__x86_64__)

// For many bytes, memcpy uses an instruction that is slow on some CPUs if
// addresses are not multiples of 32: 58 µs for 150 kB. This loop takes 4 µs.
REFURBISH_TF_AVX2 void Copy(const uint8_t* from, int64_t bytes, uint8_t* to) {
  if (bytes < 32) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto copy = [from, to](int64_t i)
                        REFURBISH_TF_AVX2 { Store(to + i, Load(from + i)); };
  int64_t i = 0;
  for (; i + 128 <= bytes; i += 128) {
    copy(i);
    copy(i + 32);
    copy(i + 64);
    copy(i + 96);
  }
  for (; i + 32 <= bytes; i += 32) copy(i);
  copy(bytes - 32);
}

#endif

// A shuffle that mirrors pixels of `bytes` bytes at the end of a vector.
struct MirrorOrder {
  constexpr explicit MirrorOrder(int bytes) : from() {
    for (int i = 0; i < 16; ++i)
      from[i] = 16 - bytes * (i / bytes + 1) + i % bytes;
  }
  int8_t from[16];
};

// Mirrors as many pixels at a time as fit into a vector. If they do not fill
// it, each load also reads bytes before its pixels, and each store except the
// last also writes bytes after them, which the next store overwrites.
template <int bytes>
REFURBISH_TF_AVX2 void MirrorRow(const uint8_t* from, int64_t pixels,
                                 uint8_t* to) {
  constexpr int kPixels = 16 / bytes, kFilled = kPixels * bytes;
  constexpr int kLeast = (16 + bytes - 1) / bytes;
  if (pixels < kLeast) return plain::MirrorRow<bytes>(from, pixels, to);
  static constexpr MirrorOrder kOrder(bytes);
  const __m128i order = LoadHalf(kOrder.from);
  const uint8_t* end = from + bytes * pixels;
  uint8_t* const last = to + bytes * pixels - kFilled;
#pragma GCC unroll 4
  for (; end - from >= 16; end -= kFilled, to += kFilled) {
    StoreHalf(to, _mm_shuffle_epi8(LoadHalf(end - 16), order));
  }
  const __m128i first = _mm_slli_si128(LoadHalf(from), 16 - kFilled);
  const __m128i made = _mm_shuffle_epi8(first, order);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(last), made);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(last + kFilled - 8),
                   _mm_srli_si128(made, kFilled - 8));
}

// CPUs prefetch rising addresses better than falling ones, so each row is
// prefetched while the row before is mirrored: 13 GB/s for uncached pixels of
// 12 bytes, instead of 6 GB/s. GCC would drop calls of a function that only
// prefetches, so it must be inlined.
__attribute__((always_inline)) inline void AskFor(const uint8_t* row,
                                                  int64_t bytes) {
  // At most 16 KiB, which fit into the L1 cache.
  for (int64_t i = 0; i < std::min<int64_t>(bytes, 1 << 14); i += 64) {
    __builtin_prefetch(row + i);
  }
}

template <int bytes>
REFURBISH_TF_AVX2 void Mirror(const uint8_t* from, int64_t from_stride,
                              int64_t pixels, int64_t /*pixel_bytes*/,
                              int64_t rows, uint8_t* to, int64_t to_stride) {
  // Prefetching shorter rows takes longer than waiting for them.
  const bool asks = bytes >= 3 && pixels * bytes >= 256;
  for (int64_t row = 0; row < rows; ++row, from += from_stride) {
    if (asks && row + 1 < rows) AskFor(from + from_stride, pixels * bytes);
    MirrorRow<bytes>(from, pixels, to + row * to_stride);
  }
}

void MirrorAny(const uint8_t* from, int64_t from_stride, int64_t pixels,
               int64_t pixel_bytes, int64_t rows, uint8_t* to,
               int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row, from += from_stride) {
    if (row + 1 < rows) AskFor(from + from_stride, pixels * pixel_bytes);
    PlainKernels().mirrors[0](from, 0, pixels, pixel_bytes, 1,
                              to + row * to_stride, 0);
  }
}

REFURBISH_TF_AVX2 inline void StoreAs(__m256 value, float* to) {
  _mm256_storeu_ps(to, value);
}

REFURBISH_TF_AVX2 inline void StoreAs(__m256 value, plain::Bfloat16* to) {
  const __m256i bits = __m256i(value);
  const __m256i odd = _mm256_srli_epi32(bits, 16) & _mm256_set1_epi32(1);
  const __m256i sum =
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  // NaN is not rounded, but made quiet.
  const __m256i quiet = bits | _mm256_set1_epi32(0x400000);
  const __m256i is_none = __m256i(value != value);
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, is_none), 16);
  StoreHalf(to, _mm_packus_epi32(_mm256_castsi256_si128(rounded),
                                 _mm256_extracti128_si256(rounded, 1)));
}

REFURBISH_TF_AVX2 inline void StoreAs(__m256 value, plain::Float16* to) {
  StoreHalf(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

REFURBISH_TF_AVX2 inline __m256 Floats(const uint8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
}

REFURBISH_TF_AVX2 inline __m256 Floats(const float* values) {
  return _mm256_loadu_ps(values);
}

template <class From, class To>
REFURBISH_TF_AVX2 float Normalize(const void* untyped_from, int64_t count,
                                  const Pattern& pattern, void* untyped_to) {
  constexpr bool kFloats = std::is_same_v<From, float>;
  const From* const from = static_cast<const From*>(untyped_from);
  To* const to = static_cast<To*>(untyped_to);
  const float* const scale = pattern.scale.data();
  const float* const offset = pattern.offset.data();
  // Three maxima: with a single one, each step would wait for the previous.
  __m256 most[3] = {};
  const auto normalize = [=](int64_t i, __m256 by, __m256 plus, __m256& largest)
                             REFURBISH_TF_AVX2 {
                               const __m256 values = Floats(from + i);
                               // Skips NaN, which yields the second operand.
                               if constexpr (kFloats)
                                 largest = _mm256_max_ps(values, largest);
                               StoreAs(values * by + plus, to + i);
                             };
  int64_t i = 0;
  if (pattern.length == 24) {
    __m256 scales[3], offsets[3];
    for (int k = 0; k < 3; ++k) {
      scales[k] = _mm256_loadu_ps(scale + 8 * k);
      offsets[k] = _mm256_loadu_ps(offset + 8 * k);
    }
    for (; i + 24 <= count; i += 24) {
      for (int k = 0; k < 3; ++k) {
        normalize(i + 8 * k, scales[k], offsets[k], most[k]);
      }
    }
  } else {
    for (; i + pattern.length <= count; i += pattern.length) {
      for (int64_t k = 0; k < pattern.length; k += 8) {
        normalize(i + k, _mm256_loadu_ps(scale + k),
                  _mm256_loadu_ps(offset + k), most[0]);
      }
    }
  }
  float each[25] = {
      plain::Normalize<From, To>(from + i, count - i, pattern, to + i)};
  for (int k = 0; k < 3; ++k) _mm256_storeu_ps(each + 1 + 8 * k, most[k]);
  const float largest = *std::max_element(each, each + 25);
  return largest > pattern.limit ? largest : 0;
}

template <class From>
constexpr PixelKernels::NormalizeTo NormalizeFrom() {
  return PixelKernels::ToFloats(Normalize<From, float>,
                                Normalize<From, plain::Bfloat16>,
                                Normalize<From, plain::Float16>);
}

REFURBISH_TF_AVX2 inline void StreamAs(__m256 value, float* to) {
  _mm256_stream_ps(to, value);
}

REFURBISH_TF_AVX2 inline void StreamAs(__m256 value, plain::Float16* to) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

// A vector can be stored past the caches only at a multiple of its length.
// Values before the first such address and after the last are stored as usual.
template <class To>
REFURBISH_TF_AVX2 float NormalizePastCaches(const void* untyped_from,
                                            int64_t count,
                                            const Pattern& pattern,
                                            void* untyped_to) {
  if (pattern.length != 24) {
    return Normalize<uint8_t, To>(untyped_from, count, pattern, untyped_to);
  }
  const auto* const from = static_cast<const uint8_t*>(untyped_from);
  To* const to = static_cast<To*>(untyped_to);
  const uintptr_t place = reinterpret_cast<uintptr_t>(to) / sizeof(To);
  const int64_t before = std::min(count, static_cast<int64_t>((0 - place) % 8));
  plain::Normalize<uint8_t, To>(from, before, pattern, to);
  __m256 scales[3], offsets[3];
  for (int k = 0; k < 3; ++k) {
    scales[k] = _mm256_loadu_ps(pattern.scale.data() + before + 8 * k);
    offsets[k] = _mm256_loadu_ps(pattern.offset.data() + before + 8 * k);
  }
  int64_t i = before;
  for (; i + 24 <= count; i += 24) {
    for (int k = 0; k < 3; ++k) {
      StreamAs(Floats(from + i + 8 * k) * scales[k] + offsets[k],
               to + i + 8 * k);
    }
  }
  // `rest` is a multiple of the pattern's length, so the pattern can begin
  // there. A few values are stored again.
  const int64_t rest = i - before;
  return plain::Normalize<uint8_t, To>(from + rest, count - rest, pattern,
                                       to + rest);
}

void Fence() { _mm_sfence(); }

// A pair of weights, repeated to fill a vector.
REFURBISH_TF_AVX2 inline __m256i Pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm256_set1_epi32(pair);
}

REFURBISH_TF_AVX2 inline __m256i AddProducts(__m256i sum, __m256i words,
                                             __m256i pair) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(words, pair));
}

// Stores 32-bit sums of a row blend as int16: half of them at each address.
REFURBISH_TF_AVX2 inline void StoreWords(__m256i one, __m256i other,
                                         int16_t* to, int16_t* to_high) {
  constexpr int kShift = kWeightBits - kFractionBits;
  const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(one, kShift),
                                           _mm256_srai_epi32(other, kShift));
  StoreHalf(to, _mm256_castsi256_si128(words));
  StoreHalf(to_high, _mm256_extracti128_si256(words, 1));
}

REFURBISH_TF_AVX2 void BlendRows(const uint8_t* const* rows,
                                 const int16_t* weights, int64_t pairs,
                                 int64_t count, int16_t* to) {
  if (count < 32) return plain::BlendRows(rows, weights, pairs, count, to);
  const __m256i half =
      _mm256_set1_epi32(1 << (kWeightBits - kFractionBits - 1));
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t begin = 0; begin < count; begin += 32) {
    // The last values may be computed twice.
    const int64_t i = std::min(begin, count - 32);
    __m256i one = half, two = half, three = half, four = half;
    for (int64_t k = 0; k < pairs; ++k) {
      const __m256i above = Load(rows[2 * k] + i);
      const __m256i below = Load(rows[2 * k + 1] + i);
      const __m256i low = _mm256_unpacklo_epi8(above, below);
      const __m256i high = _mm256_unpackhi_epi8(above, below);
      const __m256i pair = Pair(weights + 2 * k);
      one = AddProducts(one, _mm256_unpacklo_epi8(low, zero), pair);
      two = AddProducts(two, _mm256_unpackhi_epi8(low, zero), pair);
      three = AddProducts(three, _mm256_unpacklo_epi8(high, zero), pair);
      four = AddProducts(four, _mm256_unpackhi_epi8(high, zero), pair);
    }
    StoreWords(one, two, to + i, to + i + 16);
    StoreWords(three, four, to + i + 8, to + i + 24);
  }
}

// Makes four pixels of both rows at a time, a row in each half of a vector.
template <int channels>
REFURBISH_TF_AVX2 void BlendColumns(const std::array<const int16_t*, 2>& from,
                                    int64_t /*channels*/, const int32_t* start,
                                    const int16_t* weights, int64_t pairs,
                                    int64_t pixels,
                                    const std::array<uint8_t*, 2>& to) {
  constexpr int kShift = kWeightBits + kFractionBits;
  const __m256i half = _mm256_set1_epi32(1 << (kShift - 1));
  // Moves each value next to the one of the same channel in the next pixel.
  const __m256i beside = _mm256_broadcastsi128_si256(
      channels == 4
          ? _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
          : _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1,
                          -1));
  const __m256i dense = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  // Storing 16 bytes also writes to the two pixels after four RGB pixels.
  const int64_t beyond = channels == 4 ? 0 : 2;
  const auto sum = [&](int64_t i) REFURBISH_TF_AVX2
      __attribute__((always_inline)) {
        const int64_t first = int64_t{start[i]} * channels;
        const int16_t* one = from[0] + first;
        const int16_t* other = from[1] + first;
        __m256i sum = half;
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const __m256i words = _mm256_inserti128_si256(
              _mm256_castsi128_si256(LoadHalf(one)), LoadHalf(other), 1);
          sum = AddProducts(sum, _mm256_shuffle_epi8(words, beside),
                            Pair(weights + 2 * (pair * pixels + i)));
          one += 2 * channels;
          other += 2 * channels;
        }
        return _mm256_srai_epi32(sum, kShift);
      };
  int64_t i = 0;
  for (; i + 4 + beyond <= pixels; i += 4) {
    __m256i bytes =
        _mm256_packus_epi16(_mm256_packs_epi32(sum(i), sum(i + 1)),
                            _mm256_packs_epi32(sum(i + 2), sum(i + 3)));
    if (channels == 3) bytes = _mm256_shuffle_epi8(bytes, dense);
    StoreHalf(to[0] + channels * i, _mm256_castsi256_si128(bytes));
    StoreHalf(to[1] + channels * i, _mm256_extracti128_si256(bytes, 1));
  }
  plain::BlendColumnsFrom<channels>(i, from, channels, start, weights, pairs,
                                    pixels, to);
}

REFURBISH_TF_AVX2 inline void StoreAs(__m256 value, uint8_t* to) {
  const __m256i whole = _mm256_cvttps_epi32(value);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole),
                                        _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi16(words, words));
}

template <class To>
REFURBISH_TF_AVX2 void SumRows(const uint8_t* from, int64_t count,
                               const float* weights, int64_t rows, To* to) {
  if (count < 8) return plain::SumRows(from, count, weights, rows, to);
  for (int64_t begin = 0; begin < count; begin += 8) {
    // The last values may be computed twice.
    const int64_t i = std::min(begin, count - 8);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t k = 0; k < rows; ++k) {
      sum = sum + _mm256_set1_ps(weights[k]) * Floats(from + k * count + i);
    }
    StoreAs(sum, to + i);
  }
}

// `taps`: the number of points to add, or 0 for `spans.most`.
template <int taps>
REFURBISH_TF_AVX2 inline void SumPixelsOf(const float* from,
                                          const FloatSpans& spans,
                                          int64_t pixels, uint8_t* to) {
  const __m128 highest = _mm_set1_ps(255), half = _mm_set1_ps(0.5f);
  const int64_t most = taps == 0 ? spans.most : taps;
  const float* weights = spans.paired.data();
  // A copy: compilers assume that storing bytes may change the pointer.
  const int32_t* const start = spans.start.data();
  for (int64_t i = 0; i < pixels; i += 2, weights += 8 * most) {
    // The last of an odd number of pixels is computed twice.
    const int64_t next = std::min(i + 1, pixels - 1);
    const float* const first = from + start[i] * 3;
    const float* const next_first = from + start[next] * 3;
    __m128 sum = _mm_setzero_ps(), next_sum = sum;
#pragma GCC unroll 5
    for (int64_t k = 0; k < most; ++k) {
      sum += _mm_loadu_ps(first + 3 * k) * _mm_loadu_ps(weights + 8 * k);
      next_sum +=
          _mm_loadu_ps(next_first + 3 * k) * _mm_loadu_ps(weights + 8 * k + 4);
    }
    // The clamped value is not negative, so truncating is rounding down.
    const auto rounded = [&](__m128 value) REFURBISH_TF_AVX2 {
      return _mm_cvttps_epi32(
          _mm_min_ps(_mm_max_ps(value + half, _mm_setzero_ps()), highest));
    };
    const __m128i words = _mm_packs_epi32(rounded(sum), rounded(next_sum));
    const uint64_t both = static_cast<uint64_t>(
        _mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
    const uint32_t one = static_cast<uint32_t>(both);
    const uint32_t other = static_cast<uint32_t>(both >> 32);
    if (i + 2 < pixels) {
      // A pixel and one more byte, which the next pixel overwrites.
      std::memcpy(to + 3 * i, &one, 4);
      std::memcpy(to + 3 * i + 3, &other, 4);
    } else {
      std::memcpy(to + 3 * i, &one, 3);
      std::memcpy(to + 3 * next, &other, 3);
    }
  }
}

REFURBISH_TF_AVX2 void SumPixels(const float* from, const FloatSpans& spans,
                                 int64_t pixels, uint8_t* to) {
  if (spans.most == 5) {
    SumPixelsOf<5>(from, spans, pixels, to);
  } else {
    SumPixelsOf<0>(from, spans, pixels, to);
  }
}

REFURBISH_TF_AVX2 void MixBytes(const uint8_t* from, const uint8_t* partner,
                                int64_t count, int32_t lambda, uint8_t* to) {
  static_assert(kLambdaBits == 15, "What `mulhrs` divides by, rounded.");
  const __m256i by = __m256i(Repeated16(lambda));
  const auto mixed = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
    const Words one = InOrder(from + i), other = InOrder(partner + i);
    return other + Words(_mm256_mulhrs_epi16(__m256i(one - other), by));
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    StoreInOrder(to + i, mixed(i), mixed(i + 16));
  }
  plain::MixBytes(from + i, partner + i, count - i, lambda, to + i);
}

REFURBISH_TF_AVX2 void MixFloats(const float* from, const float* partner,
                                 int64_t count, float lambda, float* to) {
  const __m256 by = _mm256_set1_ps(lambda);
  const __m256 partner_by = _mm256_set1_ps(1 - lambda);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    StoreAs(by * Floats(from + i) + partner_by * Floats(partner + i), to + i);
  }
  plain::MixFloats(from + i, partner + i, count - i, lambda, to + i);
}

}  // namespace
}  // namespace vectors

const PixelKernels* VectorKernels() {
  static const PixelKernels kKernels = [] {
    PixelKernels kernels = PlainKernels();
#if defined(__x86_64__)
    kernels.copy = vectors::Copy;
#endif
    kernels.mirrors[0] = vectors::MirrorAny;
    kernels.mirrors[1] = vectors::Mirror<1>;
    kernels.mirrors[2] = vectors::Mirror<2>;
    kernels.mirrors[3] = vectors::Mirror<3>;
    kernels.mirrors[4] = vectors::Mirror<4>;
    kernels.mirrors[6] = vectors::Mirror<6>;
    kernels.mirrors[8] = vectors::Mirror<8>;
    kernels.mirrors[12] = vectors::Mirror<12>;
    kernels.normalize[static_cast<int>(ValueType::kUint8)] =
        vectors::NormalizeFrom<uint8_t>();
    kernels.normalize[static_cast<int>(ValueType::kFloat32)] =
        vectors::NormalizeFrom<float>();
    kernels.normalize_past_caches = kernels.normalize;
    // Not for bfloat16, where rounding takes longer than storing.
    kernels.normalize_past_caches[static_cast<int>(ValueType::kUint8)] =
        PixelKernels::ToFloats(vectors::NormalizePastCaches<float>,
                               vectors::Normalize<uint8_t, plain::Bfloat16>,
                               vectors::NormalizePastCaches<plain::Float16>);
    kernels.fence = vectors::Fence;
    kernels.blend_rows = vectors::BlendRows;
    kernels.blend_columns[3] = vectors::BlendColumns<3>;
    kernels.blend_columns[4] = vectors::BlendColumns<4>;
    kernels.sum_rows = vectors::SumRows<float>;
    kernels.sum_rows_of_bytes = vectors::SumRows<uint8_t>;
    kernels.sum_pixels = vectors::SumPixels;
    kernels.mix_bytes = vectors::MixBytes;
    kernels.mix_floats = vectors::MixFloats;
    vectors::SetNoise(&kernels);
    kernels.distortions = &VectorDistortions();
    return kernels;
  }();
#if defined(__x86_64__)
  static const bool kThere =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (!kThere) return nullptr;
#endif
  return &kKernels;
}

}  // namespace refurbish_tf

#else

namespace refurbish_tf {

const PixelKernels* VectorKernels() { return nullptr; }

}  // namespace refurbish_tf

#endif
