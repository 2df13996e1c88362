// Elementary functions: close to the C library's, and the same bytes everywhere.
#include "refurbish_tf/cc/base/elementary.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

constexpr int kElementaryPoints = 100000;

// A hash that differs if a CPU, a compiler flag or a C library changes a last digit.
uint64_t HashOf(uint64_t hash, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (hash ^ bits) * 0x100000001b3;
}

TEST(ElementaryFunctionsTest, AreAccurateAndBitIdenticalOnAllPlatforms) {
  uint64_t logarithms = 0, powers = 0, turns = 0;
  for (int i = -kElementaryPoints; i <= kElementaryPoints; ++i) {
    const double x = i * (20.0 / kElementaryPoints), above = 0.01 + x * x;
    ASSERT_NEAR(Log2(above), std::log2(above), 4e-15) << above;
    ASSERT_NEAR(Exp2(x) / std::exp2(x), 1, 2e-15) << x;
    ASSERT_NEAR(Exp(x) / std::exp(x), 1, 8e-15) << x;
    const auto [sine, cosine] = SineCosineOf(x);
    ASSERT_NEAR(sine, std::sin(x), 2e-16) << x;
    ASSERT_NEAR(cosine, std::cos(x), 2e-16) << x;
    logarithms = HashOf(logarithms, Log2(above));
    powers = HashOf(HashOf(powers, Exp2(x)), Exp(x));
    turns = HashOf(HashOf(turns, sine), cosine);
  }
  EXPECT_EQ(logarithms, 8517068516949349959u);
  EXPECT_EQ(powers, 596940204408114133u);
  EXPECT_EQ(turns, 14481578298416346736u);
}

TEST(ElementaryFunctionsTest, PowersOfTwoAreExact) {
  for (int k = -999; k < 1000; ++k) {
    ASSERT_EQ(Log2(std::ldexp(1, k)), k);
    ASSERT_EQ(Exp2(k), std::ldexp(1, k));
  }
  EXPECT_EQ(Exp2(-1e9), 0);
}

}  // namespace
}  // namespace refurbish_tf
