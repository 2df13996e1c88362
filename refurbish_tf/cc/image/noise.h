// Gaussian noise. The noise of a value is a function of a seed and the value's
// place in its image, so it is the same wherever it is computed.
//
// A hash makes 32 random bits from seed and place. The sum of their four bytes,
// plus a fraction from another hash, is nearly normally distributed. An odd
// polynomial makes it more so: see `kNoiseFactors`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {

struct AddedNoise {
  // For bytes, both are fractions of 255.
  double mean, sigma;
  // Whether the result is clipped to 0 to 255 for bytes, or 0 to 1 for floats.
  bool clip;
  std::array<int32_t, 2> seed;
};

// The polynomial for a standard deviation of 1, fitted to the quantiles of a
// normal distribution. The distribution function of the noise is within 1.1e-4
// of the normal one, and no noise is beyond 5.3.
inline constexpr double kNoiseFactors[] = {
    3.3361117228142634, 0.31268683974899514, 1.4296519373922978,
    -3.479164838328435, 3.6930138362335114};
// An image with values beyond these is probably not from 0 to 1. Images from 0
// to 255 or -1 to 1, and normalized images, almost always have such values.
// Images from 0 to 1 almost never do, even with noise.
inline constexpr float kSmallestWithNoise = -0.75f, kLargestWithNoise = 16;

struct NoisePlan {
  NoisePlan(const AddedNoise& noise, ValueType type) {
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
  // Returns `largest` or `smallest` if it is beyond the limits, otherwise 0.
  float Beyond(float smallest, float largest) const {
    return largest > high_limit ? largest : smallest < low_limit ? smallest : 0;
  }

  std::array<uint32_t, 2> key;
  // The coefficients of the polynomial's odd powers.
  std::array<float, 5> factors;
  float offset, lowest, highest;
  // Values beyond these mean that an image is in other units than the noise.
  float low_limit, high_limit;
};

// The multipliers of a hash from Wellons' *hash-prospector*, and a third one,
// which makes the fraction.
inline constexpr uint32_t kNoiseHash[] = {0x21f0aaad, 0xd35a2d97, 0x9e3779b1};
// sum << 8 | fraction is at most 2 * kNoiseMiddle, and scaled to about -1 to 1.
inline constexpr float kNoiseMiddle = (4 * 255 * 256 + 255) / 2.0f;
inline constexpr float kNoiseScale = 1.0f / 131072;

namespace plain {

// The random bits of this place of an image.
inline uint32_t HashOf(uint32_t place, const std::array<uint32_t, 2>& key) {
  uint32_t bits = place + key[0];
  bits = (bits ^ bits >> 16) * kNoiseHash[0];
  bits = ((bits ^ bits >> 15) + key[1]) * kNoiseHash[1];
  return bits ^ bits >> 15;
}

// The noise of the value at this place of its image.
inline float NoiseAt(uint32_t place, const NoisePlan& plan) {
  const uint32_t bits = HashOf(place, plan.key);
  const uint32_t sum =
      (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
  const uint32_t fraction = (bits * kNoiseHash[2]) >> 24;
  const float at =
      (static_cast<float>(sum << 8 | fraction) - kNoiseMiddle) * kNoiseScale;
  const float square = at * at;
  // The compiler fuses no product and sum, because of -ffp-contract=off.
  float factor = plan.factors[4];
  for (int k = 3; k >= 0; --k) factor = factor * square + plan.factors[k];
  return factor * at;
}

// Adds noise to values [begin, count) of an image.
template <class Value>
float AddNoiseFrom(int64_t begin, const Value* from, int64_t count,
                   const NoisePlan& plan, Value* to) {
  float smallest = 0, largest = 0;
  for (int64_t i = begin; i < count; ++i) {
    const float value = static_cast<float>(from[i]);
    const float sum =
        (value + plan.offset) + NoiseAt(static_cast<uint32_t>(i), plan);
    // Comparisons with NaN are false, so NaN stays NaN.
    const float least = plan.lowest > sum ? plan.lowest : sum;
    to[i] = static_cast<Value>(plan.highest < least ? plan.highest : least);
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  return plan.Beyond(smallest, largest);
}

template <class Value>
float AddNoise(const void* from, int64_t count, const NoisePlan& plan,
               void* to) {
  return AddNoiseFrom(0, static_cast<const Value*>(from), count, plan,
                      static_cast<Value*>(to));
}

}  // namespace plain
}  // namespace refurbish_tf
