// The loops that mix images, in AVX2.
#include "refurbish_tf/cc/image/vector_mixing.h"

#include "refurbish_tf/cc/image/plain_kernels.h"
#include "refurbish_tf/cc/image/vectors.h"

#if defined(__x86_64__)

namespace refurbish_tf::vectors {
namespace {

REFURBISH_TF_AVX2 void MixBytes(const uint8_t* from, const uint8_t* partner,
                                int64_t count, int32_t lambda, uint8_t* to) {
  using namespace distortions;
  static_assert(kLambdaBits == 15, "What `mulhrs` divides by, rounded.");
  const __m256i by = Repeated16(lambda);
  const auto mixed = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
    const __m256i one = _mm256_cvtepu8_epi16(distortions::LoadHalf(from + i));
    const __m256i other =
        _mm256_cvtepu8_epi16(distortions::LoadHalf(partner + i));
    return _mm256_add_epi16(
        other, _mm256_mulhrs_epi16(_mm256_sub_epi16(one, other), by));
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i both = _mm256_packus_epi16(mixed(i), mixed(i + 16));
    distortions::Store(to + i, _mm256_permute4x64_epi64(both, 0xd8));
  }
  plain::MixBytes(from, partner, i, count, lambda, to);
}

REFURBISH_TF_AVX2 void MixFloats(const float* from, const float* partner,
                                 int64_t count, float lambda, float* to) {
  const __m256 by = _mm256_set1_ps(lambda);
  const __m256 partner_by = _mm256_set1_ps(1 - lambda);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(
        to + i,
        _mm256_add_ps(_mm256_mul_ps(by, _mm256_loadu_ps(from + i)),
                      _mm256_mul_ps(partner_by, _mm256_loadu_ps(partner + i))));
  }
  plain::MixFloats(from, partner, i, count, lambda, to);
}

}  // namespace

void SetMixing(PixelKernels* kernels) {
  kernels->mix_bytes = MixBytes;
  kernels->mix_floats = MixFloats;
}

}  // namespace refurbish_tf::vectors

#endif
