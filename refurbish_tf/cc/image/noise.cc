#include "refurbish_tf/cc/image/noise.h"

#include <limits>

#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {
namespace {

// The polynomial for a standard deviation of 1, fitted to the quantiles of a
// normal distribution. The distribution function of the noise is within 1.1e-4
// of the normal one, and no noise is beyond 5.3.
constexpr double kNoiseFactors[] = {3.3361117228142634, 0.31268683974899514,
                                    1.4296519373922978, -3.479164838328435,
                                    3.6930138362335114};
// An image with values beyond these is probably not from 0 to 1. Images from 0
// to 255 or -1 to 1, and normalized images, almost always have such values.
// Images from 0 to 1 almost never do, even with noise.
constexpr float kSmallestWithNoise = -0.75f, kLargestWithNoise = 16;

}  // namespace

NoisePlan::NoisePlan(const AddedNoise& noise, ValueType type) {
  const ImageSeed seed(noise.seed[0], noise.seed[1]);
  key = {seed.Word(0), seed.Word(1)};
  const bool is_byte = type == ValueType::kUint8;
  const double unit = is_byte ? 255 : 1;
  for (size_t k = 0; k < factors.size(); ++k) {
    factors[k] = static_cast<float>(kNoiseFactors[k] * (noise.sigma * unit));
  }
  // Bytes are truncated, so the half rounds them to the nearest.
  offset = static_cast<float>(noise.mean * unit) + (is_byte ? 0.5f : 0.0f);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  lowest = noise.clip ? 0 : -kInfinity;
  highest = noise.clip ? static_cast<float>(unit) : kInfinity;
  const bool has_limits = noise.clip && !is_byte;
  low_limit = has_limits ? kSmallestWithNoise : -kInfinity;
  high_limit = has_limits ? kLargestWithNoise : kInfinity;
}

}  // namespace refurbish_tf
