#include "refurbish_tf/cc/plan/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

ScheduleOptions OptionsOf(double reuse_factor, uint64_t seed = 1) {
  ScheduleOptions options;
  options.seed = seed;
  options.reuse_factor = reuse_factor;
  return options;
}

// (samples, capacity, reuse factor, origin)
using Case = std::tuple<uint32_t, uint32_t, double, uint64_t>;

class BalancedScheduleTest : public ::testing::TestWithParam<Case> {
 protected:
  BalancedScheduleTest()
      : samples_(std::get<0>(GetParam())),
        capacity_(std::get<1>(GetParam())),
        reuse_factor_(std::get<2>(GetParam())),
        origin_(std::get<3>(GetParam())),
        schedule_(OptionsOf(reuse_factor_), samples_, capacity_, origin_) {}

  uint64_t NumEpochs() const { return static_cast<uint64_t>(4 * std::ceil(reuse_factor_)) + 3; }

  const uint32_t samples_;
  const uint32_t capacity_;
  const double reuse_factor_;
  const uint64_t origin_;
  const Schedule schedule_;
};

// Guarantee G1 of ARCHITECTURE.md.
TEST_P(BalancedScheduleTest, EveryEpochContainsEverySampleOnce) {
  for (uint64_t epoch = origin_; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    ASSERT_EQ(order.num_samples(), samples_);
    std::vector<bool> seen(samples_);
    for (uint32_t k = 0; k < samples_; ++k) seen.at(order.At(k).index) = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), samples_);
  }
}

// Guarantee G2: a generation of a kept sample is used at most ceil(r) times, and never after a newer one. It is used at
// least floor(r) times, unless it is the first generation or cut off by the end.
TEST_P(BalancedScheduleTest, ReuseIsBounded) {
  const uint64_t most = static_cast<uint64_t>(std::ceil(reuse_factor_));
  const uint64_t least = static_cast<uint64_t>(std::floor(reuse_factor_));
  std::vector<std::vector<uint64_t>> generations(samples_);
  for (uint64_t epoch = origin_; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    for (uint32_t i = 0; i < samples_; ++i) {
      generations[i].push_back(order.Generation(i));
    }
  }
  for (uint32_t i = 0; i < samples_; ++i) {
    ASSERT_TRUE(std::is_sorted(generations[i].begin(), generations[i].end()));
    EXPECT_EQ(generations[i].front(), origin_);
    std::map<uint64_t, uint64_t> uses;
    for (uint64_t generation : generations[i]) ++uses[generation];
    for (const auto& [generation, count] : uses) {
      EXPECT_LE(count, schedule_.Kept(i) ? most : 1);
      const bool whole = generation != generations[i].front() && generation != generations[i].back();
      if (whole && schedule_.Kept(i)) {
        EXPECT_GE(count, least);
      }
    }
  }
}

// A place is fresh if and only if its sample has a new generation.
TEST_P(BalancedScheduleTest, FreshMeansNewGeneration) {
  std::vector<uint64_t> before(samples_);
  for (uint64_t epoch = origin_; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    uint32_t fresh = 0;
    for (uint32_t k = 0; k < samples_; ++k) {
      const Slot slot = order.At(k);
      const uint64_t generation = order.Generation(slot.index);
      EXPECT_EQ(slot.fresh, epoch == origin_ || generation != before[slot.index]);
      EXPECT_EQ(slot.generation, generation);
      EXPECT_EQ(slot.reused, order.Reused(slot.index));
      before[slot.index] = generation;
      fresh += slot.fresh;
    }
    EXPECT_EQ(fresh, order.num_fresh());
  }
}

TEST_P(BalancedScheduleTest, ReusedMeansSameGenerationInTheNextEpoch) {
  for (uint64_t epoch = origin_; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule now = schedule_.Epoch(epoch);
    const EpochSchedule next = schedule_.Epoch(epoch + 1);
    for (uint32_t i = 0; i < samples_; ++i) {
      EXPECT_EQ(now.Reused(i), now.Generation(i) == next.Generation(i));
    }
  }
}

// Guarantees G3 and G8 of ARCHITECTURE.md.
TEST_P(BalancedScheduleTest, EpochsEvictTheSameNumberOfSamples) {
  EXPECT_EQ(schedule_.Epoch(origin_).num_fresh(), samples_);
  EXPECT_EQ(schedule_.Epoch(origin_).num_evicted(), 0u);
  const double evicted = capacity_ / reuse_factor_;
  for (uint64_t epoch = origin_ + 1; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    EXPECT_LT(std::abs(order.num_evicted() - evicted), 1);
    EXPECT_EQ(order.num_fresh(), samples_ - capacity_ + order.num_evicted());
  }
}

// Guarantee G3 of ARCHITECTURE.md.
TEST_P(BalancedScheduleTest, EvictionsCycleThroughOnePermutation) {
  if (samples_ > 100) GTEST_SKIP() << "compares all pairs";
  std::vector<std::set<uint32_t>> evicted;
  std::vector<uint64_t> before(samples_, origin_);
  std::vector<std::pair<uint64_t, uint32_t>> stream;
  for (uint64_t epoch = origin_ + 1; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    for (uint32_t i = 0; i < samples_; ++i) {
      if (schedule_.Kept(i) && order.Generation(i) != before[i]) {
        stream.push_back({epoch, i});
      }
      before[i] = order.Generation(i);
    }
  }
  // In each round every kept sample is evicted once, before any is evicted again. If one sample is evicted in an
  // earlier epoch than another in one round, it is not evicted in a later epoch than the other in any round.
  std::vector<std::vector<uint64_t>> when(samples_);
  for (const auto& [epoch, index] : stream) when[index].push_back(epoch);
  for (uint32_t i = 0; i < samples_; ++i) {
    if (!schedule_.Kept(i)) continue;
    for (uint32_t j = 0; j < i; ++j) {
      if (!schedule_.Kept(j)) continue;
      const size_t rounds = std::min(when[i].size(), when[j].size());
      EXPECT_LE(std::max(when[i].size(), when[j].size()), rounds + 1);
      bool first = false, second = false;
      for (size_t round = 0; round < rounds; ++round) {
        first |= when[i][round] < when[j][round];
        second |= when[i][round] > when[j][round];
      }
      EXPECT_FALSE(first && second);
    }
  }
}

// Guarantee G4 of ARCHITECTURE.md.
TEST_P(BalancedScheduleTest, EveryWindowHasItsShareOfFreshSamples) {
  for (uint64_t epoch = origin_; epoch < origin_ + NumEpochs(); ++epoch) {
    const EpochSchedule order = schedule_.Epoch(epoch);
    // `more` is N times the surplus of fresh samples among the first k of N places. The surplus of any window is the
    // difference of two such values.
    int64_t more = 0, least = 0, most = 0;
    for (uint32_t k = 0; k < samples_; ++k) {
      more += int64_t{samples_} * order.At(k).fresh - order.num_fresh();
      least = std::min(least, more);
      most = std::max(most, more);
    }
    EXPECT_EQ(more, 0);
    EXPECT_LT(most - least, samples_);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, BalancedScheduleTest,
                         ::testing::Values(Case{1, 1, 1, 0}, Case{1, 1, 3, 0}, Case{2, 2, 1.5, 0}, Case{7, 7, 3, 0},
                                           Case{12, 12, 3, 0}, Case{12, 12, 1, 0}, Case{10, 10, 2.5, 0},
                                           Case{13, 13, M_PI, 4}, Case{50, 50, 1.01, 0}, Case{9, 9, 40, 0},
                                           Case{30, 11, 2, 3}, Case{30, 1, 3, 0}, Case{30, 0, 3, 0},
                                           Case{64, 63, 1.75, 0}, Case{70'000, 70'000, 3, 0},
                                           Case{140'001, 69'000, 1.5, 2}));

TEST(EvictionsUntilTest, IsExact) {
  EXPECT_EQ(EvictionsUntil(0, 10, 3), 0u);
  EXPECT_EQ(EvictionsUntil(3, 10, 3), 10u);
  EXPECT_EQ(EvictionsUntil(1, 10, 3), 3u);
  EXPECT_EQ(EvictionsUntil(1, 10, 1e300), 0u);
  EXPECT_EQ(EvictionsUntil(kMaxEpochs, 4000000000u, 1), 4000000000ULL * kMaxEpochs);
  EXPECT_EQ(EvictionsUntil(kMaxEpochs, kMaxSamples, 1), kMaxSamples * kMaxEpochs);
  // As a double, 1.1 is a little more than 11 / 10, so the exact quotient is just below 10,000,000. A floating-point
  // division would round it up.
  EXPECT_EQ(EvictionsUntil(11, 1000000, 1.1), 9999999u);
  for (uint64_t r = 1; r <= 9; ++r) {
    for (uint64_t t = 0; t < 40; ++t) {
      EXPECT_EQ(EvictionsUntil(t, 1281167, r), t * 1281167 / r);
    }
  }
}

TEST(ScheduleTest, AGenerationNeverEqualsKNoGeneration) {
  constexpr uint64_t kLast = kMaxEpochs - 1;
  for (const Eviction eviction : {Eviction::kBalanced, Eviction::kReferenceCount}) {
    for (const double reuse_factor : {1.0, 1.5, 3.0}) {
      for (const uint64_t origin : {uint64_t{0}, kLast - 4, kLast}) {
        ScheduleOptions options = OptionsOf(reuse_factor);
        options.eviction = eviction;
        const Schedule schedule(options, 5, 3, origin);
        for (uint64_t epoch = std::max(origin, kLast - 3); epoch <= kLast; ++epoch) {
          const EpochSchedule order = schedule.Epoch(epoch);
          for (uint32_t i = 0; i < 5; ++i) {
            EXPECT_LE(order.Generation(i), epoch);
            // The largest number of the type means "none".
            EXPECT_LT(order.Generation(i), std::numeric_limits<uint32_t>::max());
          }
        }
      }
    }
  }
}

TEST(UniformShuffleTest, FreshSamplesAppearAnywhere) {
  ScheduleOptions options = OptionsOf(2);
  options.shuffle = Shuffle::kUniform;
  const Schedule schedule(options, 100, 100);
  uint32_t least = 100, most = 0;
  for (uint64_t epoch = 1; epoch < 200; ++epoch) {
    const EpochSchedule order = schedule.Epoch(epoch);
    ASSERT_EQ(order.num_fresh(), 50u);
    uint32_t fresh = 0;
    std::set<uint32_t> seen;
    for (uint32_t k = 0; k < 100; ++k) {
      const Slot slot = order.At(k);
      seen.insert(slot.index);
      if (k < 10) fresh += slot.fresh;
    }
    EXPECT_EQ(seen.size(), 100u);
    least = std::min(least, fresh);
    most = std::max(most, fresh);
  }
  // The number of fresh samples among the first ten is hypergeometric with mean 5. A cache-aware order always has 5.
  EXPECT_LE(least, 2u);
  EXPECT_GE(most, 8u);
}

// The chi-squared statistic of `counts` for equal frequencies.
double ChiSquared(const std::vector<int>& counts) {
  double total = 0, sum = 0;
  for (int count : counts) total += count;
  const double expected = total / counts.size();
  for (int count : counts) sum += (count - expected) * (count - expected);
  return sum / expected;
}

// Guarantee G6: over many seeds, each sample is equally often at each place, and each pair at the first two places.
TEST(OrderTest, IsUniformlyRandom) {
  constexpr uint32_t kSamples = 6;
  constexpr int kTrials = 6000;
  for (uint64_t epoch : {0, 1, 2}) {
    std::vector<int> place(kSamples * kSamples), pair(kSamples * kSamples);
    std::vector<int> fresh_at(kSamples);
    for (int trial = 0; trial < kTrials; ++trial) {
      const Schedule schedule(OptionsOf(3, trial), kSamples, kSamples);
      const EpochSchedule order = schedule.Epoch(epoch);
      for (uint32_t k = 0; k < kSamples; ++k) {
        const Slot slot = order.At(k);
        ++place[k * kSamples + slot.index];
        fresh_at[k] += slot.fresh;
      }
      ++pair[order.At(0).index * kSamples + order.At(1).index];
    }
    // Each row and column has a fixed sum, so there are 25 degrees of freedom; by chance 60 is exceeded once in 10,000.
    EXPECT_LT(ChiSquared(place), 60);
    for (uint32_t i = 0; i < kSamples; ++i) pair[i * (kSamples + 1)] = -1;
    pair.erase(std::remove(pair.begin(), pair.end(), -1), pair.end());
    EXPECT_LT(ChiSquared(pair), 65);  // 29 degrees of freedom.
    if (epoch > 0) {
      EXPECT_LT(ChiSquared(fresh_at), 26);  // 5 degrees of freedom.
    }
  }
}

// Guarantee G6: a sample's place in an epoch says nothing about its place in the next epoch.
TEST(OrderTest, EpochsAreIndependent) {
  constexpr uint32_t kSamples = 6;
  std::vector<int> places(kSamples * kSamples);
  for (int trial = 0; trial < 6000; ++trial) {
    const Schedule schedule(OptionsOf(1, trial), kSamples, kSamples);
    const EpochSchedule orders[] = {schedule.Epoch(1), schedule.Epoch(2)};
    for (uint32_t k = 0; k < kSamples; ++k) {
      for (uint32_t l = 0; l < kSamples; ++l) {
        places[k * kSamples + l] += orders[0].At(k).index == orders[1].At(l).index;
      }
    }
  }
  EXPECT_LT(ChiSquared(places), 60);  // 25 degrees of freedom.
}

// Guarantee G6 of ARCHITECTURE.md, for a large source.
TEST(OrderTest, IsUniformlyRandomForManySamples) {
  constexpr uint32_t kSamples = 250'000, kParts = 50;
  for (const double reuse_factor : {1.0, 3.0}) {
    const Schedule schedule(OptionsOf(reuse_factor), kSamples, kSamples);
    for (uint64_t epoch : {0, 1, 2}) {
      const EpochSchedule order = schedule.Epoch(epoch), next = schedule.Epoch(epoch + 1);
      std::vector<int> place(kParts * kParts), pair(kParts * kParts), epochs(kParts * kParts);
      std::vector<uint32_t> part_of(kSamples);
      uint32_t before = order.At(kSamples - 1).index / (kSamples / kParts);
      for (uint32_t k = 0; k < kSamples; ++k) {
        const uint32_t index = order.At(k).index, part = index / (kSamples / kParts);
        ++place[k / (kSamples / kParts) * kParts + part];
        ++pair[before * kParts + part];
        before = part;
        part_of[index] = k / (kSamples / kParts);
      }
      for (uint32_t k = 0; k < kSamples; ++k) {
        ++epochs[k / (kSamples / kParts) * kParts + part_of[next.At(k).index]];
      }
      // The rows and columns of these tables have fixed sums, which leaves 49 * 49 = 2,401 degrees of freedom.
      for (const auto& counts : {place, pair, epochs}) {
        EXPECT_GT(ChiSquared(counts), 2401 - 5 * 70);
        EXPECT_LT(ChiSquared(counts), 2401 + 5 * 70);
      }
    }
  }
}

TEST(OrderWalkTest, EachRemainingSampleComesOnceAfterARestore) {
  constexpr uint32_t kSamples = 1000;
  const Schedule schedule(OptionsOf(3), kSamples, kSamples);
  const EpochSchedule order = schedule.Epoch(1);
  // From a source with random access, the samples at the first places have come; from a stream, other samples.
  for (const bool others : {false, true}) {
    std::vector<bool> has_come(kSamples);
    for (uint32_t k = 0; k < 400; ++k) has_come[others ? k : order.At(k).index] = true;
    const std::vector<bool> before = has_come;
    OrderWalk walk(order, has_come);
    for (uint32_t k = 400; k < kSamples; ++k) {
      const Slot planned = order.At(k), slot = walk.Next();
      EXPECT_FALSE(has_come[slot.index]);
      has_come[slot.index] = true;
      if (!before[planned.index]) {
        EXPECT_EQ(slot.index, planned.index);
      }
    }
    EXPECT_EQ(std::count(has_come.begin(), has_come.end(), true), kSamples);
  }
}

// In any new shard, a sample has the generations that it had in its former shard.
TEST(MovedShardTest, SamplesKeepTheScheduleOfTheirFormerShards) {
  constexpr uint64_t kOrigin = 2;
  for (const uint64_t whole : {1u, 7u, 24u, 103u}) {
    for (const double reuse_factor : {1.0, 1.5, 2.0, 3.0}) {
      for (uint32_t former = 1; former <= 5; ++former) {
        std::vector<Schedule> before;
        for (uint32_t i = 0; i < former; ++i) {
          const auto size = static_cast<uint32_t>(Shard{i, former}.Size(whole));
          before.emplace_back(OptionsOf(reuse_factor), size, size, kOrigin);
        }
        for (uint32_t count = 1; count <= 5; ++count) {
          for (uint32_t i = 0; i < count; ++i) {
            const Shard shard{i, count};
            const Schedule moved(OptionsOf(reuse_factor), MovedShard{shard, former, whole}, kOrigin);
            ASSERT_EQ(moved.num_samples(), shard.Size(whole));
            for (uint64_t epoch = kOrigin; epoch < kOrigin + 8; ++epoch) {
              const EpochSchedule order = moved.Epoch(epoch);
              uint32_t evicted = 0;
              std::set<uint32_t> seen;
              for (uint32_t k = 0; k < order.num_samples(); ++k) {
                const Slot slot = order.At(k);
                seen.insert(slot.index);
                const uint64_t in_whole = shard.InWhole(slot.index);
                const EpochSchedule then = before[in_whole % former].Epoch(epoch);
                const auto index = static_cast<uint32_t>(in_whole / former);
                EXPECT_EQ(order.Generation(slot.index), then.Generation(index));
                EXPECT_EQ(order.Reused(slot.index), then.Reused(index));
                EXPECT_TRUE(order.Kept(slot.index));
                const bool is_evicted =
                    epoch > kOrigin &&
                    then.Generation(index) != before[in_whole % former].Epoch(epoch - 1).Generation(index);
                EXPECT_EQ(slot.fresh, epoch == kOrigin || is_evicted);
                evicted += is_evicted;
              }
              EXPECT_EQ(seen.size(), order.num_samples());
              EXPECT_EQ(order.num_evicted(), evicted);
            }
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, KeepsTheSamplesWithTheSmallestKeys) {
  std::vector<uint64_t> keys;
  for (uint32_t i = 0; i < 1000; ++i) keys.push_back(KeptKey(9, i));
  std::vector<uint64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  const Schedule schedule(OptionsOf(2, 9), 1000, 300);
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(schedule.Kept(i), keys[i] < sorted[300]);
}

TEST(StatelessSeedTest, IsUniqueToPurposeCounterAndIndex) {
  std::set<std::array<int32_t, 2>> seeds;
  for (Purpose purpose : {Purpose::kPartialFunction, Purpose::kFinalFunction}) {
    for (uint64_t counter = 0; counter < 50; ++counter) {
      for (uint64_t index = 0; index < 200; ++index) {
        seeds.insert(StatelessSeed(3, purpose, counter, index));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 2u * 50 * 200);
}

TEST(RandomStreamTest, BelowIsUniform) {
  RandomStream random(5);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[random.Below(7)];
  EXPECT_LT(ChiSquared(counts), 28);  // 6 degrees of freedom.
}

}  // namespace
}  // namespace refurbish_tf
