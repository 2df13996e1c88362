#include "refurbish_tf/cc/plan/echo.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kElements = 100'000;

TEST(EchoScheduleTest, AWholeFactorRepeatsAllElementsEqually) {
  for (const double factor : {1.0, 2.0, 7.0, 2147483647.0}) {
    const EchoSchedule schedule(/*seed=*/1, factor);
    EXPECT_TRUE(schedule.is_whole());
    for (int64_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(schedule.Repetitions(i), static_cast<int64_t>(factor));
    }
  }
}

class FractionalFactorTest : public ::testing::TestWithParam<double> {};

TEST_P(FractionalFactorTest, IsMetInExpectation) {
  const double factor = GetParam();
  const double fraction = factor - std::floor(factor);
  const double standard_error = std::sqrt(fraction * (1 - fraction) / kElements);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const EchoSchedule schedule(seed, factor);
    EXPECT_FALSE(schedule.is_whole());
    double sum = 0;
    for (int64_t i = 0; i < kElements; ++i) {
      const int64_t repetitions = schedule.Repetitions(i);
      ASSERT_TRUE(repetitions == std::floor(factor) || repetitions == std::floor(factor) + 1);
      sum += static_cast<double>(repetitions);
    }
    // Four standard errors, because one of ten seeds may well exceed three (probability 1 in 370 each).
    EXPECT_NEAR(sum / kElements, factor, 4 * standard_error);
  }
}

INSTANTIATE_TEST_SUITE_P(Factors, FractionalFactorTest, ::testing::Values(1.5, 3.14159265358979, 1.001));

TEST(EchoScheduleTest, NeighboursAreIndependent) {
  const EchoSchedule schedule(/*seed=*/5, /*factor=*/1.5);
  // How often each of the 16 patterns of four neighbours occurs.
  std::vector<int> seen(16);
  int pattern = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    pattern = (2 * pattern + (schedule.Repetitions(i) == 2)) % 16;
    if (i >= 3) ++seen[pattern];
  }
  for (const int count : seen) {
    EXPECT_NEAR(count, kElements / 16.0, 5 * std::sqrt(kElements / 16.0));
  }
}

TEST(EchoScheduleTest, DependsOnlyOnSeedAndPosition) {
  const EchoSchedule first(/*seed=*/1, /*factor=*/1.5);
  const EchoSchedule same(/*seed=*/1, /*factor=*/1.5);
  const EchoSchedule other(/*seed=*/2, /*factor=*/1.5);
  int different = 0;
  for (int64_t i = 1000; i-- > 0;) {
    ASSERT_EQ(first.Repetitions(i), same.Repetitions(i));
    different += first.Repetitions(i) != other.Repetitions(i);
  }
  EXPECT_GT(different, 400);
  EXPECT_LT(different, 600);
}

// A schedule with a larger factor echoes the same elements and more.
TEST(EchoScheduleTest, GrowsWithTheFactor) {
  const EchoSchedule small(/*seed=*/3, /*factor=*/2.25);
  const EchoSchedule large(/*seed=*/3, /*factor=*/2.75);
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_LE(small.Repetitions(i), large.Repetitions(i));
  }
}

}  // namespace
}  // namespace refurbish_tf
