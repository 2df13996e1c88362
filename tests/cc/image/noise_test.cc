// Noise, with and without AVX2, compared with its definition.
#include "refurbish_tf/cc/image/noise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

// A product that is rounded before anything is added.
float RoundedProduct(float a, float b) {
  volatile float product = a * b;
  return product;
}

float NoiseByDefinition(uint32_t place, const NoisePlan& plan) {
  uint32_t bits = place + plan.key[0];
  bits = (bits ^ (bits >> 16)) * 0x21f0aaad;
  bits = ((bits ^ (bits >> 15)) + plan.key[1]) * 0xd35a2d97;
  bits ^= bits >> 15;
  uint8_t bytes[4];
  std::memcpy(bytes, &bits, sizeof bits);
  const uint32_t sum = bytes[0] + bytes[1] + bytes[2] + bytes[3], fraction = (bits * 0x9e3779b1) >> 24;
  const float at = (static_cast<float>(256 * sum + fraction) - 130687.5f) / 131072;
  const float square = RoundedProduct(at, at);
  float factor = plan.factors[4];
  for (int k = 3; k >= 0; --k) factor = RoundedProduct(factor, square) + plan.factors[k];
  return RoundedProduct(factor, at);
}

template <class Value>
void ExpectNoise(const std::vector<Value>& values, const AddedNoise& noise, ValueType type,
                 PixelKernels::AddNoise PixelKernels::* kernel, bool in_place) {
  const NoisePlan plan(noise, type);
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<Value> expected;
  float largest = 0, smallest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(values[i]);
    float sum = (value + plan.offset) + NoiseByDefinition(static_cast<uint32_t>(i), plan);
    if (noise.clip && !std::isnan(sum)) sum = std::clamp(sum, 0.0f, type == ValueType::kUint8 ? 255.0f : 1.0f);
    expected.push_back(static_cast<Value>(sum));
    if (value > largest) largest = value;
    if (value < smallest) smallest = value;
  }
  const bool has_limits = noise.clip && type == ValueType::kFloat32;
  const float beyond = has_limits && largest > 16 ? largest : has_limits && smallest < -1 ? smallest : 0;
  for (const PixelKernels* kernels : {&PlainKernels(), &BestKernels()}) {
    // Exactly as long as the values, so that the sanitizer reports accesses beyond them.
    std::unique_ptr<Value[]> from(new Value[count]), to(new Value[count]);
    std::copy(values.begin(), values.end(), from.get());
    Value* const made = in_place ? from.get() : to.get();
    EXPECT_EQ((kernels->*kernel)(from.get(), count, plan, made), beyond);
    ASSERT_EQ(std::memcmp(made, expected.data(), count * sizeof(Value)), 0) << count;
  }
}

// Goes through each sum of four bytes with each fraction, weighted by its probability.
TEST(NoiseTest, IsNormallyDistributed) {
  std::vector<double> sums = {1};
  for (int byte = 0; byte < 4; ++byte) {
    std::vector<double> next(sums.size() + 255);
    for (size_t i = 0; i < sums.size() * 256; ++i) next[i / 256 + i % 256] += sums[i / 256] / 256;
    sums = next;
  }
  const NoisePlan plan({0, 1, false, {}}, ValueType::kFloat32);
  double below = 0, squares = 0, fourths = 0, last = -6;
  for (size_t i = 0; i < sums.size() * 256; ++i) {
    const double at = (static_cast<double>(i) - 130687.5) / 131072, probability = sums[i / 256] / 256;
    double noise = 0;
    for (int k = 4; k >= 0; --k) noise = noise * at * at + plan.factors[k];
    noise *= at;
    ASSERT_GT(noise, last);
    last = noise;
    ASSERT_NEAR(below + probability / 2, 0.5 * std::erfc(-noise / std::sqrt(2)), 1.1e-4) << i;
    below += probability;
    squares += probability * noise * noise;
    fourths += probability * noise * noise * noise * noise;
  }
  EXPECT_NEAR(last, 5.25, 0.05);
  EXPECT_NEAR(squares, 1, 3e-4);
  EXPECT_NEAR(fourths, 3, 0.01);
}

TEST(NoiseTest, MatchesItsDefinition) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 600; ++round) {
    AddedNoise noise = {static_cast<double>(random() % 100) / 300,
                        round % 50 == 0 ? 1e6 : static_cast<double>(random() % 100) / 200,
                        round % 4 != 0,
                        {static_cast<int32_t>(random() >> 33), static_cast<int32_t>(random() >> 33)}};
    std::vector<float> floats(1 + random() % 70);
    for (float& value : floats) value = static_cast<float>(random() % 1000) / 1000;
    if (round % 5 == 0) floats.back() = std::numeric_limits<float>::quiet_NaN();
    if (round % 7 == 0) floats[random() % floats.size()] = round % 3 == 0 ? -1.5f : 16.5f;
    ExpectNoise(floats, noise, ValueType::kFloat32, &PixelKernels::add_noise_to_floats, round % 2 == 0);
    noise.clip = true;
    std::vector<uint8_t> bytes(1 + random() % 200);
    for (uint8_t& value : bytes) value = static_cast<uint8_t>(random());
    ExpectNoise(bytes, noise, ValueType::kUint8, &PixelKernels::add_noise_to_bytes, round % 2 == 0);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace refurbish_tf
