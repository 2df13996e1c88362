// The loops of `plain` that add noise, in AVX2 or NEON.
#include "refurbish_tf/cc/image/vector_noise.h"

#include "refurbish_tf/cc/image/noise.h"
#include "refurbish_tf/cc/image/vectors.h"

#if defined(REFURBISH_TF_VECTORS)

namespace refurbish_tf::vectors {
namespace {

// The noise of eight values, from `place` on.
REFURBISH_TF_AVX2_INLINE inline __m256 NoiseFrom(uint32_t place,
                                                 const NoisePlan& plan) {
  __m256i bits = _mm256_add_epi32(Repeated32(place + plan.key[0]),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const auto times = [&bits](int k) REFURBISH_TF_AVX2_INLINE {
    return _mm256_mullo_epi32(bits, Repeated32(kNoiseHash[k]));
  };
  bits = bits ^ _mm256_srli_epi32(bits, 16);
  bits = times(0);
  bits = _mm256_add_epi32(bits ^ _mm256_srli_epi32(bits, 15),
                          Repeated32(plan.key[1]));
  bits = times(1);
  bits = bits ^ _mm256_srli_epi32(bits, 15);
  const __m256i whole =
      _mm256_slli_epi32(SumsOfFour(bits), 8) | _mm256_srli_epi32(times(2), 24);
  const __m256 at = (_mm256_cvtepi32_ps(whole) - _mm256_set1_ps(kNoiseMiddle)) *
                    _mm256_set1_ps(kNoiseScale);
  const __m256 square = at * at;
  __m256 factor = _mm256_set1_ps(plan.factors[4]);
  for (int k = 3; k >= 0; --k) {
    factor = factor * square + _mm256_set1_ps(plan.factors[k]);
  }
  return factor * at;
}

REFURBISH_TF_AVX2_INLINE inline __m256 WithNoise(__m256 value, int64_t place,
                                                 const NoisePlan& plan) {
  const __m256 sum = (value + _mm256_set1_ps(plan.offset)) +
                     NoiseFrom(static_cast<uint32_t>(place), plan);
  // Both intrinsics return the second operand if it is NaN: NaN stays NaN.
  return _mm256_min_ps(_mm256_set1_ps(plan.highest),
                       _mm256_max_ps(_mm256_set1_ps(plan.lowest), sum));
}

REFURBISH_TF_AVX2 float AddNoiseToBytes(const void* untyped_from, int64_t count,
                                        const NoisePlan& plan,
                                        void* untyped_to) {
  const auto* const from = static_cast<const uint8_t*>(untyped_from);
  auto* const to = static_cast<uint8_t*>(untyped_to);
  const auto eight = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
    const __m256i values = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i)));
    return _mm256_cvttps_epi32(WithNoise(_mm256_cvtepi32_ps(values), i, plan));
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i low = _mm256_packs_epi32(eight(i), eight(i + 8));
    const __m256i high = _mm256_packs_epi32(eight(i + 16), eight(i + 24));
    Store(to + i, Interleaved32(_mm256_packus_epi16(low, high)));
  }
  return plain::AddNoiseFrom(i, from, count, plan, to);
}

REFURBISH_TF_AVX2 float AddNoiseToFloats(const void* untyped_from,
                                         int64_t count, const NoisePlan& plan,
                                         void* untyped_to) {
  const auto* const from = static_cast<const float*>(untyped_from);
  auto* const to = static_cast<float*>(untyped_to);
  __m256 least = _mm256_setzero_ps(), most = least;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_loadu_ps(from + i);
    least = _mm256_min_ps(values, least);
    most = _mm256_max_ps(values, most);
    _mm256_storeu_ps(to + i, WithNoise(values, i, plan));
  }
  float low[8], high[8];
  _mm256_storeu_ps(low, least);
  _mm256_storeu_ps(high, most);
  const float beyond = plan.Beyond(*std::min_element(low, low + 8),
                                   *std::max_element(high, high + 8));
  const float rest = plain::AddNoiseFrom(i, from, count, plan, to);
  return beyond != 0 ? beyond : rest;
}

}  // namespace

void SetNoise(PixelKernels* kernels) {
  kernels->add_noise_to_bytes = AddNoiseToBytes;
  kernels->add_noise_to_floats = AddNoiseToFloats;
}

}  // namespace refurbish_tf::vectors

#endif
