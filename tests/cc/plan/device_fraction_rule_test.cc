#include "refurbish_tf/cc/plan/device_fraction_rule.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

using Batch = DeviceFractionRule::Batch;

constexpr int64_t kTurn = 1000;  // The time from one batch to the next.
constexpr int64_t kLong = kTurn / 5, kMiddling = kTurn / 10, kShort = kTurn / 20;

// Begins and records batches, for each of which training waited `waited`. Returns the fraction for the next batch.
int Record(int num_batches, int64_t waited, DeviceFractionRule* rule) {
  for (int i = 0; i < num_batches; ++i) rule->Record(rule->Begin(), kTurn, waited);
  return rule->Begin().fraction;
}

TEST(DeviceFractionRuleTest, EightBatchesAverageToTheFractionInSupportedSteps) {
  for (int fraction = 0; fraction <= 8; ++fraction) {
    DeviceFractionRule rule(fraction);
    std::set<int> used;
    int eighths = 0;
    for (int i = 0; i < 8; ++i) {
      const Batch batch = rule.Begin();
      EXPECT_EQ(batch.fraction, fraction);
      EXPECT_EQ(std::count(DeviceFractionRule::kEighths.begin(), DeviceFractionRule::kEighths.end(), batch.eighths), 1);
      used.insert(batch.eighths);
      eighths += batch.eighths;
    }
    EXPECT_EQ(eighths, 8 * fraction);
    EXPECT_EQ(used.size(), used.count(fraction) == 1 ? 1 : 2) << fraction;
  }
}

TEST(DeviceFractionRuleTest, AFixedFractionDoesNotChange) {
  DeviceFractionRule rule(4);
  EXPECT_EQ(Record(100, kLong, &rule), 4);
  EXPECT_EQ(Record(100, 0, &rule), 4);
}

TEST(DeviceFractionRuleTest, RisesWhileTrainingWaitsAndFallsWhileBatchesWait) {
  DeviceFractionRule rule(DeviceFractionRule::kAutotuned);
  for (int eighths = 0; eighths < 8; ++eighths) EXPECT_EQ(Record(8, kLong, &rule), eighths + 1);
  EXPECT_EQ(Record(80, kLong, &rule), 8);
  for (int eighths = 8; eighths > 0; --eighths) EXPECT_EQ(Record(8, kShort, &rule), eighths - 1);
  EXPECT_EQ(Record(80, 0, &rule), 0);
}

TEST(DeviceFractionRuleTest, DoesNotChangeWhileBothSidesWait) {
  DeviceFractionRule rule(DeviceFractionRule::kAutotuned);
  ASSERT_EQ(Record(16, kLong, &rule), 2);
  EXPECT_EQ(Record(80, kMiddling, &rule), 2);
}

TEST(DeviceFractionRuleTest, IgnoresBatchesBegunBeforeAChange) {
  DeviceFractionRule rule(DeviceFractionRule::kAutotuned);
  const Batch before = rule.Begin();
  ASSERT_EQ(Record(8, kLong, &rule), 1);
  for (int i = 0; i < 20; ++i) rule.Record(before, kTurn, kTurn);
  EXPECT_EQ(rule.Begin().fraction, 1);
}

// At the beginning of an epoch training waits for batches, however fast the CPU is.
TEST(DeviceFractionRuleTest, DelaysAtTheStartOfShortEpochsDoNotAccumulate) {
  DeviceFractionRule rule(DeviceFractionRule::kAutotuned);
  for (int i = 0; i < 80; ++i) {
    rule.Record(rule.Begin(), i % 8 == 0 ? std::nullopt : std::optional(kTurn), kTurn);
  }
  EXPECT_EQ(rule.Begin().fraction, 0);
}

TEST(DeviceFractionRuleTest, RevertedDecreasesAreRetriedLessAndLessOften) {
  DeviceFractionRule rule(DeviceFractionRule::kAutotuned);
  ASSERT_EQ(Record(16, kLong, &rule), 2);
  for (const int windows : {1, 2, 4, 8, 8}) {
    EXPECT_EQ(Record(8 * windows - 1, 0, &rule), 2) << windows;
    EXPECT_EQ(Record(1, 0, &rule), 1) << windows;
    EXPECT_EQ(Record(8, kLong, &rule), 2) << windows;
  }
  EXPECT_EQ(Record(64, 0, &rule), 1);
  EXPECT_EQ(Record(64, 0, &rule), 0);
  ASSERT_EQ(Record(16, kLong, &rule), 2);
  EXPECT_EQ(Record(16, 0, &rule), 1);
}

// A simulated pipeline: the CPU makes batches, the stage has room for some, a prefetch that the rule cannot see
// follows, and a device trains. The unit of time is the CPU's time for a whole batch.
struct Pipeline {
  double train;
  double device;  // The device's time if it does all policy layers.
  int prefetch;
  double cpu = 1, other_cpu = 1;
  int change_at = std::numeric_limits<int>::max();  // From this batch on the CPU needs `other_cpu`.

  static constexpr double kFixed = 0.02;  // The part of the CPU's time per batch that no fraction saves.
  static constexpr int kRoom = 2;
};

struct Simulated {
  std::vector<int> fractions;
  std::vector<double> trained;  // When the training on each batch ended.
  double Throughput(int from) const { return (trained.size() - from) / (trained.back() - trained[from - 1]); }
};

Simulated Simulate(const Pipeline& pipeline, int num_batches, int fraction) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr double kNanos = 1e9;
  DeviceFractionRule rule(fraction);
  std::vector<Batch> batches;
  std::vector<double> finished, handed, taken, trained;
  Simulated outcome;
  const auto at = [](const std::vector<double>& times, int i) { return i < 0 ? 0 : times[i]; };
  for (int out = 0; out < num_batches;) {
    const int begun = batches.size();
    const double begin =
        begun - out < Pipeline::kRoom ? std::max(at(finished, begun - 1), at(handed, begun - Pipeline::kRoom)) : kNever;
    const double asked = pipeline.prefetch == 0 ? at(trained, out - 1)
                                                : std::max(at(handed, out - 1), at(taken, out - pipeline.prefetch));
    if (begin < (out < begun ? std::max(asked, finished[out]) : kNever)) {
      batches.push_back(rule.Begin());
      const double cpu = begun < pipeline.change_at ? pipeline.cpu : pipeline.other_cpu;
      finished.push_back(begin + cpu * (1 - batches.back().eighths / 8.0) + Pipeline::kFixed);
      continue;
    }
    handed.push_back(std::max(asked, finished[out]));
    std::optional<int64_t> since;
    if (out > 0) since = static_cast<int64_t>(kNanos * (handed[out] - handed[out - 1]));
    rule.Record(batches[out], since, static_cast<int64_t>(kNanos * (handed[out] - asked)));
    taken.push_back(std::max(handed[out], at(trained, out - 1)));
    trained.push_back(taken[out] + pipeline.train + pipeline.device * batches[out].eighths / 8);
    outcome.fractions.push_back(batches[out++].fraction);
  }
  outcome.trained = trained;
  return outcome;
}

std::vector<Pipeline> Pipelines() {
  std::vector<Pipeline> pipelines;
  for (const double train : {0.1, 0.35, 0.8, 1.2, 2.0}) {
    for (const double device : {0.001, 0.1, 0.4, 1.0}) {
      for (const int prefetch : {1, 2, 4, 16}) pipelines.push_back({train, device, prefetch});
    }
  }
  return pipelines;
}

// A long prefetch may make the rule worse, because it learns nothing until the prefetch's queue is full or empty.
TEST(DeviceFractionRuleTest, IsNearlyAsFastAsTheBestFixedFraction) {
  for (const Pipeline& pipeline : Pipelines()) {
    double best = 0;
    for (int fraction = 0; fraction <= 8; ++fraction) {
      best = std::max(best, Simulate(pipeline, 1000, fraction).Throughput(200));
    }
    const Simulated found = Simulate(pipeline, 1000, DeviceFractionRule::kAutotuned);
    const auto [least, most] = std::minmax_element(found.fractions.begin() + 200, found.fractions.end());
    const bool is_long = pipeline.prefetch > 4;
    const auto name = testing::Message() << "train " << pipeline.train << " device " << pipeline.device << " prefetch "
                                         << pipeline.prefetch;
    EXPECT_GE(found.Throughput(200), (is_long ? 0.8 : 0.9) * best) << name;
    EXPECT_LE(*most - *least, 5) << name;
  }
}

TEST(DeviceFractionRuleTest, ASlowCpuOffloadsEverythingAndAFastOneNothing) {
  const auto most = [](const Pipeline& pipeline, int fraction) {
    const std::vector<int> found = Simulate(pipeline, 600, DeviceFractionRule::kAutotuned).fractions;
    return std::count(found.end() - 200, found.end(), fraction) >= 150;
  };
  EXPECT_TRUE(most({0.1, 0.001, 2}, 8));
  EXPECT_TRUE(most({2, 0.1, 2}, 0));
  EXPECT_TRUE(most({0.1, 0.001, 2, 1, 0.01, 200}, 0));
  EXPECT_TRUE(most({2, 0.1, 2, 1, 40, 200}, 8));
}

}  // namespace
}  // namespace refurbish_tf
