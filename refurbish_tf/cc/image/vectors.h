// Helpers of the vector loops, which are written with AVX2 intrinsics. On
// aarch64, neon.h defines these.
#pragma once

#include "refurbish_tf/cc/image/distortion_kernels.h"

#if defined(__aarch64__)

#include "refurbish_tf/cc/image/neon.h"
#define REFURBISH_TF_VECTORS

#elif defined(__x86_64__)

#include <immintrin.h>

#define REFURBISH_TF_VECTORS
// Only functions and lambdas with these attributes are compiled for AVX2.
#define REFURBISH_TF_AVX2 __attribute__((target("avx2,f16c")))
#define REFURBISH_TF_AVX2_INLINE \
  __attribute__((target("avx2,f16c"), always_inline))

namespace refurbish_tf::vectors {

// 16 words. Their arithmetic operators must not overflow.
using Words = int16_t __attribute__((vector_size(32)));

// Byte i of the result is byte i + 1 of `value`; the last byte is the first.
REFURBISH_TF_AVX2_INLINE inline __m256i MovedDown(__m256i value) {
  return _mm256_alignr_epi8(_mm256_permute2x128_si256(value, value, 0x01),
                            value, 1);
}

// Byte i of the result is byte i - 1 of `value`; the first byte is the last.
REFURBISH_TF_AVX2_INLINE inline __m256i MovedUp(__m256i value) {
  return _mm256_alignr_epi8(value,
                            _mm256_permute2x128_si256(value, value, 0x01), 15);
}

// The 64-bit (32-bit) parts of `value`, alternating between its two lanes.
REFURBISH_TF_AVX2_INLINE inline __m256i Interleaved64(__m256i value) {
  return _mm256_permute4x64_epi64(value, 0xd8);
}

REFURBISH_TF_AVX2_INLINE inline __m256i Interleaved32(__m256i value) {
  return _mm256_permutevar8x32_epi32(value,
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

REFURBISH_TF_AVX2_INLINE inline __m256i SumsOfFour(__m256i bytes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)),
                           _mm256_set1_epi16(1));
}

}  // namespace refurbish_tf::vectors

#else

#define REFURBISH_TF_AVX2

#endif

#if defined(REFURBISH_TF_VECTORS)

namespace refurbish_tf::vectors {

REFURBISH_TF_AVX2_INLINE inline __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

REFURBISH_TF_AVX2_INLINE inline void Store(void* to, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), value);
}

REFURBISH_TF_AVX2_INLINE inline __m128i LoadHalf(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

REFURBISH_TF_AVX2_INLINE inline void StoreHalf(void* to, __m128i value) {
  _mm_storeu_si128(static_cast<__m128i*>(to), value);
}

REFURBISH_TF_AVX2_INLINE inline __m256i Repeated(uint8_t byte) {
  return _mm256_set1_epi8(static_cast<char>(byte));
}

REFURBISH_TF_AVX2_INLINE inline Words Repeated16(int word) {
  return Words(_mm256_set1_epi16(static_cast<int16_t>(word)));
}

REFURBISH_TF_AVX2_INLINE inline __m256i Repeated32(int64_t word) {
  return _mm256_set1_epi32(static_cast<int32_t>(word));
}

REFURBISH_TF_AVX2_INLINE inline Words Chosen(Words which, Words a, Words b) {
  return Words(_mm256_blendv_epi8(__m256i(b), __m256i(a), __m256i(which)));
}

REFURBISH_TF_AVX2_INLINE inline Words Least(Words a, Words b) {
  return Words(_mm256_min_epi16(__m256i(a), __m256i(b)));
}

REFURBISH_TF_AVX2_INLINE inline Words Most(Words a, Words b) {
  return Words(_mm256_max_epi16(__m256i(a), __m256i(b)));
}

// `Low` and `High` convert the first and the last eight bytes of each lane to
// words. `Packed` converts these to bytes again, clamped to 0 to 255.
REFURBISH_TF_AVX2_INLINE inline Words Low(__m256i bytes) {
  return Words(_mm256_unpacklo_epi8(bytes, _mm256_setzero_si256()));
}

REFURBISH_TF_AVX2_INLINE inline Words High(__m256i bytes) {
  return Words(_mm256_unpackhi_epi8(bytes, _mm256_setzero_si256()));
}

REFURBISH_TF_AVX2_INLINE inline __m256i Packed(Words low, Words high) {
  return _mm256_packus_epi16(__m256i(low), __m256i(high));
}

// `InOrder` and `StoreInOrder` keep words in the order of their bytes.
REFURBISH_TF_AVX2_INLINE inline Words InOrder(const uint8_t* bytes) {
  return Words(_mm256_cvtepu8_epi16(LoadHalf(bytes)));
}

REFURBISH_TF_AVX2_INLINE inline void StoreInOrder(uint8_t* to, Words first,
                                                  Words second) {
  Store(to, Interleaved64(Packed(first, second)));
}

// `WordBlend` and `FloatBlend` blend 16 words. Results may be outside 0 to 255.
struct WordBlend {
  REFURBISH_TF_AVX2_INLINE explicit WordBlend(const BlendPlan& plan)
      : whole(Repeated16(plan.whole)),
        up(Repeated16(plan.up)),
        more(Repeated16(plan.down - plan.up)) {}
  REFURBISH_TF_AVX2_INLINE Words operator()(Words from, Words to) const {
    const Words d = to - from;
    const __m256i multiplier = __m256i(up + ((d < 0) & more));
    return from + d * whole + Words(_mm256_mulhi_epi16(__m256i(d), multiplier));
  }
  Words whole, up, more;
};

struct FloatBlend {
  REFURBISH_TF_AVX2_INLINE explicit FloatBlend(const BlendPlan& plan)
      : factor(_mm256_set1_ps(plan.factor)) {}
  REFURBISH_TF_AVX2_INLINE __m256i Half(__m128i from, __m128i to) const {
    const __m256 d =
        _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_sub_epi16(to, from)));
    return _mm256_cvttps_epi32(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(from)) +
                               factor * d);
  }
  REFURBISH_TF_AVX2_INLINE Words operator()(Words from, Words to) const {
    const __m256i low = Half(_mm256_castsi256_si128(__m256i(from)),
                             _mm256_castsi256_si128(__m256i(to)));
    const __m256i high = Half(_mm256_extracti128_si256(__m256i(from), 1),
                              _mm256_extracti128_si256(__m256i(to), 1));
    return Words(Interleaved64(_mm256_packs_epi32(low, high)));
  }
  __m256 factor;
};

// Calls work(by) with a `WordBlend` or `FloatBlend` of this plan.
template <class Work>
REFURBISH_TF_AVX2_INLINE inline void WithBlend(const BlendPlan& plan,
                                               const Work& work) {
  if (plan.in_words) {
    work(WordBlend(plan));
  } else {
    work(FloatBlend(plan));
  }
}

}  // namespace refurbish_tf::vectors

#endif
