// Noise, plain and in AVX2, against its definition; and how near it is to a normal distribution.
#include "refurbish_tf/cc/image/noise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

// Of a product that is rounded before anything is added.
float RoundedProduct(float a, float b) {
  volatile float product = a * b;
  return product;
}

// Of sigma 1, from the sum of four bytes and a fraction in 256ths.
float ByDefinition(uint32_t place, const NoisePlan& plan) {
  uint32_t bits = place + plan.key[0];
  bits = (bits ^ (bits >> 16)) * 0x21f0aaad;
  bits = ((bits ^ (bits >> 15)) + plan.key[1]) * 0xd35a2d97;
  bits ^= bits >> 15;
  uint8_t bytes[4];
  std::memcpy(bytes, &bits, sizeof bits);
  const int sum = bytes[0] + bytes[1] + bytes[2] + bytes[3];
  const uint32_t fraction = (bits * 0x9e3779b1) >> 24;
  const float at = (static_cast<float>(256 * sum + static_cast<int>(fraction)) - 130687.5f) / 131072;
  const float square = RoundedProduct(at, at);
  float factor = plan.factors[3];
  for (int k = 2; k >= 0; --k) factor = RoundedProduct(factor, square) + plan.factors[k];
  return RoundedProduct(factor, at);
}

template <class Value>
void ExpectNoise(std::mt19937_64& random, const std::vector<Value>& values, const AddedNoise& noise, ValueType type,
                 PixelKernels::AddNoise PixelKernels::*kernel) {
  const NoisePlan plan(noise, type);
  const int64_t count = static_cast<int64_t>(values.size());
  // Beyond 32 bits the noise begins again.
  const int64_t first = random() % 3 == 0 ? (int64_t{1} << 32) - 20 : static_cast<int64_t>(random() % 100000);
  std::vector<Value> expected;
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(values[i]);
    float sum = (value + plan.offset) + ByDefinition(static_cast<uint32_t>(first + i), plan);
    if (noise.clip && !std::isnan(sum)) sum = std::clamp(sum, 0.0f, type == ValueType::kUint8 ? 255.0f : 1.0f);
    expected.push_back(static_cast<Value>(sum));
    if (value > largest) largest = value;
  }
  const bool is_refused = noise.clip && type == ValueType::kFloat32 && largest > 16;
  for (const PixelKernels* kernels : {&PlainKernels(), &BestKernels()}) {
    // Exactly as long as they are, for the sanitizer to see what is beyond; in place or not.
    std::unique_ptr<Value[]> from(new Value[count]), to(new Value[count]);
    std::copy(values.begin(), values.end(), from.get());
    Value* const made = random() % 2 == 0 ? from.get() : to.get();
    const float beyond = (kernels->*kernel)(from.get(), count, first, plan, made);
    EXPECT_EQ(beyond, is_refused ? largest : 0);
    ASSERT_EQ(std::memcmp(made, expected.data(), count * sizeof(Value)), 0) << count << " from " << first;
  }
}

TEST(NoiseTest, IsAsItsDefinition) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 600; ++round) {
    AddedNoise noise = {round % 3 == 0 ? 0 : static_cast<double>(random() % 100) / 300, static_cast<double>(random() % 100) / 200,
                   round % 4 != 0, {static_cast<int32_t>(random() >> 33), static_cast<int32_t>(random() >> 33)}};
    std::vector<float> floats(random() % 70);
    for (float& value : floats) value = static_cast<float>(random() % 1000) / 1000;
    if (!floats.empty() && round % 5 == 0) floats.back() = std::numeric_limits<float>::quiet_NaN();
    if (!floats.empty() && round % 7 == 0) floats[random() % floats.size()] = 16.5f;
    ExpectNoise(random, floats, noise, ValueType::kFloat32, &PixelKernels::add_noise_to_floats);
    noise.clip = true;
    if (round % 50 == 0) noise.sigma = 1e6;
    std::vector<uint8_t> bytes(random() % 200);
    for (uint8_t& value : bytes) value = static_cast<uint8_t>(random());
    ExpectNoise(random, bytes, noise, ValueType::kUint8, &PixelKernels::add_noise_to_bytes);
    if (HasFatalFailure()) return;
  }
}

// Of all sums and fractions, each with how probable it is.
TEST(NoiseTest, IsNormal) {
  std::vector<double> sums = {1};
  for (int byte = 0; byte < 4; ++byte) {
    std::vector<double> more(sums.size() + 255);
    for (size_t i = 0; i < sums.size(); ++i) {
      for (int value = 0; value < 256; ++value) more[i + value] += sums[i] / 256;
    }
    sums = more;
  }
  const NoisePlan plan({0, 1, false, {7, 0}}, ValueType::kFloat32);
  double below = 0, furthest = 0, variance = 0, before = -100, last = 0;
  for (size_t sum = 0; sum < sums.size(); ++sum) {
    for (int fraction = 0; fraction < 256; ++fraction) {
      const double at = (256.0 * static_cast<double>(sum) + fraction - 130687.5) / 131072, square = at * at;
      last = at * (plan.factors[0] + square * (plan.factors[1] + square * (plan.factors[2] + square * plan.factors[3])));
      EXPECT_GT(last, before) << "not rising";
      const double normal = 0.5 * std::erfc(-last / std::sqrt(2.0));
      furthest = std::max(furthest, std::abs(below - normal));
      below += sums[sum] / 256;
      furthest = std::max(furthest, std::abs(below - normal));
      variance += sums[sum] / 256 * last * last;
      before = last;
    }
  }
  EXPECT_LT(furthest, 2e-4);
  EXPECT_NEAR(variance, 1, 1e-3);
  EXPECT_GT(last, 4.5);
}

// In an image: its values are as if drawn independently, also from those of other seeds.
TEST(NoiseTest, IsIndependentOfPlaceAndSeed) {
  constexpr int kCount = 1 << 16;
  const auto of_seed = [](int32_t first, int32_t second) {
    std::vector<float> values(kCount, 0);
    const NoisePlan plan({0, 1, false, {first, second}}, ValueType::kFloat32);
    PlainKernels().add_noise_to_floats(values.data(), kCount, 0, plan, values.data());
    return values;
  };
  const std::vector<float> one = of_seed(7, 0);
  const auto correlation = [&](const std::vector<float>& other, int shift) {
    double sum = 0;
    for (int i = shift; i < kCount; ++i) sum += one[i] * other[i - shift];
    return sum / kCount;
  };
  EXPECT_NEAR(correlation(one, 0), 1, 0.03);
  // Five standard deviations.
  for (const int shift : {1, 2, 3, 96, 224 * 3, 1 << 15}) EXPECT_LT(std::abs(correlation(one, shift)), 0.02) << shift;
  for (const auto& [first, second] : {std::pair(8, 0), std::pair(7, 1), std::pair(0, 7), std::pair(7, 1 << 30)}) {
    for (const int shift : {0, 1, 3}) EXPECT_LT(std::abs(correlation(of_seed(first, second), shift)), 0.02);
  }
}

}  // namespace
}  // namespace refurbish_tf
