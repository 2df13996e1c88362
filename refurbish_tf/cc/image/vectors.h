// What the loops in AVX2 have in common.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>

#include "refurbish_tf/cc/image/distortion_kernels.h"

// Only these functions, and lambdas in them, are compiled for AVX2.
#define REFURBISH_TF_AVX2 __attribute__((target("avx2,f16c")))
#define REFURBISH_TF_AVX2_INLINE \
  __attribute__((target("avx2,f16c"), always_inline))

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

REFURBISH_TF_AVX2_INLINE inline __m256i Repeated16(int word) {
  return _mm256_set1_epi16(static_cast<int16_t>(word));
}

REFURBISH_TF_AVX2_INLINE inline __m256i Repeated32(int64_t word) {
  return _mm256_set1_epi32(static_cast<int32_t>(word));
}

// Blends 16 words each; the result is beyond 0 to 255 in part.
struct WordBlend {
  REFURBISH_TF_AVX2_INLINE explicit WordBlend(const BlendPlan& plan)
      : whole(Repeated16(plan.whole)),
        up(Repeated16(plan.up)),
        more(Repeated16(plan.down - plan.up)) {}
  REFURBISH_TF_AVX2_INLINE __m256i operator()(__m256i from, __m256i to) const {
    const __m256i d = _mm256_sub_epi16(to, from);
    const __m256i multiplier =
        _mm256_add_epi16(up, _mm256_and_si256(_mm256_srai_epi16(d, 15), more));
    return _mm256_add_epi16(
        _mm256_add_epi16(from, _mm256_mullo_epi16(d, whole)),
        _mm256_mulhi_epi16(d, multiplier));
  }
  __m256i whole, up, more;
};

struct FloatBlend {
  REFURBISH_TF_AVX2_INLINE explicit FloatBlend(const BlendPlan& plan)
      : factor(_mm256_set1_ps(plan.factor)) {}
  REFURBISH_TF_AVX2_INLINE __m256i Half(__m128i from, __m128i to) const {
    const __m256 d =
        _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_sub_epi16(to, from)));
    return _mm256_cvttps_epi32(
        _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(from)),
                      _mm256_mul_ps(factor, d)));
  }
  REFURBISH_TF_AVX2_INLINE __m256i operator()(__m256i from, __m256i to) const {
    const __m256i low =
        Half(_mm256_castsi256_si128(from), _mm256_castsi256_si128(to));
    const __m256i high = Half(_mm256_extracti128_si256(from, 1),
                              _mm256_extracti128_si256(to, 1));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  }
  __m256 factor;
};

}  // namespace refurbish_tf::vectors

#endif
