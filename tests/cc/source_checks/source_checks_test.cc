#include "refurbish_tf/cc/source_checks/source_checks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace refurbish_tf {
namespace {

// Returns what a RepetitionWatch reports for elements with these checksums, if it reports anything.
template <class SumOf>
std::optional<uint32_t> Watch(uint32_t num_elements, SumOf sum_of) {
  RepetitionWatch watch;
  std::optional<uint32_t> told;
  for (uint32_t i = 0; i < num_elements; ++i) {
    const std::optional<uint32_t> noted = watch.Note(i, sum_of(i));
    EXPECT_FALSE(noted.has_value() && told.has_value()) << "told twice";
    if (noted.has_value()) told = noted;
  }
  return told;
}

uint32_t Hashed(uint32_t i) { return (i + 1) * 2654435761u >> 8; }

TEST(RepetitionWatchTest, FindsThePeriodOfAnEndlessSource) {
  for (const uint32_t period : {2u, 15u, 16u, 64u, 65u, 3000u}) {
    EXPECT_EQ(Watch(12 * period + 1000, [&](uint32_t i) { return i % period; }), period);
  }
}

TEST(RepetitionWatchTest, DetectsAnEndlessSourceWithoutAFixedOrder) {
  EXPECT_EQ(Watch(20'000, [](uint32_t i) { return Hashed(i) % 300; }), 0u);
}

TEST(RepetitionWatchTest, AFiniteSourceMayRepeatItsElements) {
  EXPECT_FALSE(Watch(100'000, [](uint32_t i) { return i; }).has_value());
  EXPECT_FALSE(Watch(100'000, [](uint32_t i) { return i / 20; }).has_value());
  EXPECT_FALSE(Watch(100'000, [](uint32_t i) { return i % 10'000; }).has_value());
  EXPECT_FALSE(Watch(9'000, [](uint32_t i) { return Hashed(i) % 2; }).has_value());
  EXPECT_FALSE(Watch(9'000, [](uint32_t) { return 7; }).has_value());
}

}  // namespace
}  // namespace refurbish_tf
