// The tuner in a simulated pipeline, and by what is recorded.
#include "refurbish_tf/cc/schedule/share_tuner.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/share_tuner_testing.h"

namespace refurbish_tf {
namespace {

// A long queue shows late what a share brings.
double LeastExtreme(const Pipeline& pipeline) { return pipeline.prefetch == 16 ? 0.965 : 0.97; }

TEST(ShareTunerTest, IsAsGoodAsTheBestShare) {
  for (const Pipeline& pipeline : Pipelines()) {
    const Ratios ratios = Compare(pipeline, 100, 300);
    EXPECT_GE(ratios.to_best, 0.95) << pipeline.Name();
    EXPECT_GE(ratios.to_extreme, LeastExtreme(pipeline)) << pipeline.Name();
  }
}

TEST(ShareTunerTest, NoiseIsNoChange) {
  Pipeline pipeline;
  pipeline.train = 0.2;
  pipeline.device = 0.6;
  pipeline.room = 2;
  pipeline.prefetch = 16;
  pipeline.noise = 0.2;
  EXPECT_GE(Compare(pipeline, 100, 400).to_best, 0.95);
}

TEST(ShareTunerTest, FollowsAChangeOfTheCpu) {
  for (Pipeline pipeline : Pipelines()) {
    pipeline.change_at = 200;
    // A long queue shows late what a share brings.
    const bool is_long = pipeline.prefetch == 16;
    const int from = pipeline.change_at + pipeline.room + pipeline.prefetch + (is_long ? 160 : 60);
    for (const double change : {0.5, 2.0}) {
      pipeline.change = change;
      EXPECT_GE(Compare(pipeline, from, from + 140).to_best, is_long ? 0.90 : 0.94) << pipeline.Name();
    }
  }
}

TEST(ShareTunerTest, TheExtremesArePure) {
  Pipeline pipeline;
  pipeline.train = 2;
  EXPECT_EQ(Simulation(pipeline, 300, kTuned, 0).Count(0, 100, 300), 200);
  pipeline.train = 0.1;
  pipeline.device = 0.001;
  EXPECT_EQ(Simulation(pipeline, 300, kTuned, 0).Count(kNumShares - 1, 100, 250), 150);
}

// An evaluation, a checkpoint.
TEST(ShareTunerTest, APauseChangesNothing) {
  for (Pipeline pipeline : Pipelines()) {
    // Meanwhile a long queue fills, which hides for a while what a share brings.
    const double least = pipeline.prefetch == 16 ? 0.85 : 0.95;
    std::array<double, 5> ratios;
    for (int seed = 0; seed < 5; ++seed) {
      pipeline.pause = 0;
      const double without = Simulation(pipeline, 500, kTuned, seed).Throughput(100, 500);
      pipeline.pause_every = 40;
      pipeline.pause = 300;
      ratios[seed] = Simulation(pipeline, 500, kTuned, seed).Throughput(100, 500) / without;
    }
    std::sort(ratios.begin(), ratios.end());
    EXPECT_GE(ratios[2], least) << pipeline.Name();
  }
}

// A busy machine lets threads wake late.
TEST(ShareTunerTest, LateThreadsAreNoSlowDevice) {
  for (Pipeline pipeline : Pipelines()) {
    if (pipeline.train < 0.3 || pipeline.prefetch == 0) continue;
    pipeline.delay = 0.5;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.93) << pipeline.Name();
  }
}

TEST(ShareTunerTest, BurstsAreNoChange) {
  for (Pipeline pipeline : Pipelines()) {
    // With less than a burst's length queued the device is without work at any share.
    if (pipeline.room == 2 && pipeline.prefetch == 0) continue;
    pipeline.burst = 3;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, pipeline.prefetch == 16 ? 0.88 : 0.95) << pipeline.Name();
  }
}

// steps_per_execution, or several iterators of one stage.
TEST(ShareTunerTest, TrainingMayTakeSeveralBatchesAtATime) {
  for (const int execution : {3, 16, 32}) {
    for (Pipeline pipeline : Pipelines()) {
      if (pipeline.prefetch == 1 || pipeline.train == 0.8) continue;
      pipeline.execution = execution;
      // A trial takes longer.
      const double least = execution == 32 ? 0.88 : pipeline.prefetch == 16 ? 0.92 : 0.93;
      EXPECT_GE(Compare(pipeline, 500, 1500).to_best, least) << pipeline.Name();
      if (execution > 5) continue;
      EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.90) << pipeline.Name();
    }
  }
}

TEST(ShareTunerTest, TheTimeBetweenTwoIteratorsIsNotMeasured) {
  for (Pipeline pipeline : Pipelines()) {
    // At the beginning of each the CPU fills the queue, and works all the time: with a long one it looks late.
    if (pipeline.prefetch == 16) continue;
    pipeline.epoch = 20;
    pipeline.gap = 4;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, pipeline.prefetch > 1 ? 0.88 : 0.95) << pipeline.Name();
  }
}

// The lower of the two shares would leave the device without work. That it still would is tried for hardly any batches.
TEST(ShareTunerTest, AShareThatIsTooSlowIsTriedSeldom) {
  Pipeline pipeline;
  pipeline.train = 0.1;
  pipeline.device = 0.001;
  pipeline.prefetch = 0;
  const Simulation tuned(pipeline, 9000, kTuned, 0);
  const int tried = 8900 - tuned.Count(kNumShares - 1, 100, 9000);
  EXPECT_GE(tried, 1);
  EXPECT_GE(tuned.Throughput(100, 9000), 0.98 * Simulation(pipeline, 9000, kNumShares - 1, 0).Throughput(100, 9000));
}

// The first batches take long: files and caches are cold. What was measured then does not count for ever.
TEST(ShareTunerTest, AShareThatWasTooSlowIsTriedAgain) {
  Pipeline pipeline;
  pipeline.train = 1.1;
  pipeline.device = 1;
  pipeline.warm_up = 30;
  EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.95);
}

// What a share takes from one batch to the next, and how much of that the CPU works.
struct Measured {
  double time, busy;
};

// The shares of the batches of a pipeline without a queue.
std::vector<int> Shares(const std::vector<Measured>& measured, int num_batches, ShareTuner* tuner) {
  std::vector<int> shares;
  for (int i = 0; i < num_batches; ++i) {
    const int share = tuner->Next();
    const auto& [time, busy] = measured[share];
    shares.push_back(share);
    tuner->Record({share, Nanos(time), Nanos(time * busy)});
  }
  return shares;
}

std::vector<int> Shares(const std::vector<Measured>& measured, int num_batches) {
  ShareTuner tuner;
  return Shares(measured, num_batches, &tuner);
}

int NumTimes(const std::vector<int>& shares, int share) {
  int times = 0;
  for (size_t i = 1; i < shares.size(); ++i) times += shares[i] == share && shares[i - 1] != share;
  return times;
}

TEST(ShareTunerTest, WorkersThatLoseSomeTimeAreBusy) {
  EXPECT_EQ(Shares({{1, 0.85}, {0.9, 0.85}, {0.8, 0.85}, {0.6, 0.85}, {0.4, 0.85}}, 100).back(), 4);
}

TEST(ShareTunerTest, AGreaterShareThatBringsNothingIsNotTaken) {
  EXPECT_EQ(Shares({{1, 1}, {0.99, 0.5}}, 100).back(), 0);
  EXPECT_EQ(Shares({{1, 1}, {0.97, 0.5}}, 100).back(), 1);
}

TEST(ShareTunerTest, AMeasurementDoesNotWaitForATimeThatIsSomewhatLonger) {
  ShareTuner tuner;
  for (int i = 0; i < 15; ++i) tuner.Record({0, Nanos(i == 7 ? 2.2 : 1), Nanos(1)});
  EXPECT_EQ(tuner.Next(), 1);
}

TEST(ShareTunerTest, SmallGainsAreFoundAsSoon) {
  EXPECT_EQ(Shares({{1, 1}, {0.99, 1}, {0.98, 1}, {0.96, 1}, {0.92, 1}}, 70).back(), 4);
}

TEST(ShareTunerTest, SmallGainsAreFoundAfterAChange) {
  ShareTuner tuner;
  ASSERT_EQ(Shares({{1.2, 0.81}, {1.3, 0.74}}, 80, &tuner).back(), 0);
  EXPECT_EQ(Shares({{2, 1}, {1.98, 1}, {1.96, 1}, {1.93, 1}, {1.88, 1}}, 120, &tuner).back(), 4);
}

TEST(ShareTunerTest, BatchesOfAnotherShareAreNotMeasured) {
  ShareTuner tuner;
  for (int i = 0; i < 100; ++i) tuner.Record({4, Nanos(1), Nanos(1)});
  EXPECT_EQ(tuner.Next(), 0);
}

// As other programs compute now and then.
TEST(ShareTunerTest, WhatIsNewAndDoesNotComeAgainIsNotBelieved) {
  ShareTuner tuner;
  for (int i = 0; i < 300; ++i) {
    // A measurement is of ten, behind the first four.
    const double time = i >= 4 && (i - 4) / 10 % 3 == 2 ? 2 : 1;
    tuner.Record({tuner.Next(), Nanos(time), Nanos(time == 2 ? 2 : 0.5)});
    ASSERT_EQ(tuner.Next(), 0) << i;
  }
}

TEST(ShareTunerTest, BothSidesMayBeLateByTurns) {
  EXPECT_EQ(Shares({{1, 0.75}, {0.8, 0.5}}, 100).back(), 1);
  EXPECT_EQ(NumTimes(Shares({{1, 0.5}, {0.8, 0.3}}, 3000), 1), 0);
}

TEST(ShareTunerTest, TheCpuIsBusyWhileWorkersAreOrWhileOneReads) {
  EXPECT_EQ(ShareTuner::Work(10, 30, 2), 20);
  EXPECT_EQ(ShareTuner::Work(10, 30, 16), 10);
  EXPECT_EQ(ShareTuner::Work(10, 30, 0), 40);
}

TEST(ShareTunerTest, ANeighbourThatWasNotBetterIsTriedAgain) {
  // Once it is early.
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.1, 0.5}}, 120), 1), 1);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.1, 0.5}}, 160), 1), 2);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.1, 0.5}}, 840), 1), 2);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.1, 0.5}}, 900), 1), 3);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.9, 0.5}}, 690), 1), 1);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {1.9, 0.5}}, 740), 1), 2);
  // If it takes far longer, later.
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {3, 0.5}}, 2000), 1), 1);
  EXPECT_EQ(NumTimes(Shares({{1, 1}, {3, 0.5}}, 2200), 1), 2);
}

TEST(ShareTunerTest, WhatIsTriedAgainIsTwoPercentOfTheBatches) {
  for (const double time : {1.03, 1.5, 3.0, 10.0}) {
    ShareTuner tuner;
    Shares({{1, 1}, {time, 0.5}}, 1000, &tuner);
    const std::vector<int> shares = Shares({{1, 1}, {time, 0.5}}, 50000, &tuner);
    const double tried = std::count(shares.begin(), shares.end(), 1);
    EXPECT_GE(tried, 10);
    EXPECT_LE(tried, 0.02 * shares.size()) << time;
    EXPECT_LE(time * tried, (time > 2 ? 0.021 : 0.03) * shares.size()) << time;
  }
  // Also where a trial leads to other shares, behind a long queue.
  Pipeline pipeline;
  pipeline.train = 0.35;
  pipeline.device = 1;
  pipeline.room = 4;
  pipeline.prefetch = 16;
  const Simulation tuned(pipeline, 20000, kTuned, 0);
  EXPECT_GE(tuned.Count(2, 1000, 20000), 0.975 * 19000);
}

// What was found by a trial is no trial, however long it lasted.
TEST(ShareTunerTest, ATrialThatIsKeptTriesNoPatience) {
  ShareTuner tuner;
  Shares({{1, 1}, {1.02, 0.5}}, 500, &tuner);
  ASSERT_EQ(Shares({{1, 1}, {0.9, 0.6}}, 1000, &tuner).back(), 1);
  ASSERT_EQ(Shares({{0.5, 1}, {0.9, 0.3}}, 300, &tuner).back(), 0);
  EXPECT_EQ(Shares({{0.5, 1}, {0.3, 0.6}}, 1000, &tuner).back(), 1);
}

TEST(ShareTunerTest, AfterAChangeItIsTriedAgainEarly) {
  ShareTuner tuner;
  // The last trial ended some 400 batches ago.
  Shares({{1, 1}, {1.5, 0.5}}, 1860, &tuner);
  EXPECT_EQ(NumTimes(Shares({{1.35, 1}, {1.5, 0.5}}, 100, &tuner), 1), 1);
}

TEST(ShareTunerTest, ADeviceThatBecomesFasterIsFound) {
  ShareTuner tuner;
  Shares({{1, 1}, {1.2, 0.5}}, 300, &tuner);
  EXPECT_EQ(Shares({{1, 1}, {0.6, 0.6}}, 900, &tuner).back(), 1);
}

TEST(ShareTunerTest, WhatIsKnownOfASlowerDeviceIsForgotten) {
  ShareTuner tuner;
  ASSERT_EQ(Shares({{1, 1}, {0.9, 1}, {0.8, 0.7}, {1.2, 0.3}}, 150, &tuner).back(), 2);
  EXPECT_EQ(Shares({{1, 1}, {0.9, 1}, {0.6, 1}, {0.45, 0.7}, {0.6, 0.1}}, 100, &tuner).back(), 3);
}

// A CPU that other programs slow down does as much as before for a share that leaves it time.
TEST(ShareTunerTest, WhatOtherSharesTellOfTheCpuNeedNotHold) {
  ShareTuner tuner;
  ASSERT_EQ(Shares({{1, 1}, {0.9, 1}, {1, 0.3}}, 80, &tuner).back(), 1);
  const std::vector<int> shares = Shares({{1.7, 1}, {1.5, 1}, {1, 0.3}}, 140, &tuner);
  EXPECT_EQ(shares.back(), 2);
  EXPECT_EQ(NumTimes(shares, 1), 0);
}

// While the CPU has time left only its work tells that it has become faster.
TEST(ShareTunerTest, ACpuThatBecomesFasterIsSeenByItsWork) {
  for (const double faster : {1.2, 1.4, 1.6, 2.5}) {
    ShareTuner tuner;
    ASSERT_EQ(Shares({{1, 1}, {0.9, 0.6}}, 300, &tuner).back(), 1);
    const std::vector<Measured> now = {{1 / faster, 1}, {0.9, 0.6 / faster}};
    EXPECT_EQ(Shares(now, 140, &tuner).back(), 0) << faster;
  }
  // The more it is, the sooner.
  ShareTuner tuner;
  ASSERT_EQ(Shares({{1, 1}, {0.5, 0.6}}, 300, &tuner).back(), 1);
  EXPECT_EQ(Shares({{0.4, 1}, {0.5, 0.24}}, 60, &tuner).back(), 0);
}

TEST(ShareTunerTest, MeasurementsThatGoToAndFroAreBelieved) {
  ShareTuner tuner;
  ASSERT_EQ(Shares({{1, 1}, {1.5, 0.5}}, 100, &tuner).back(), 0);
  // The device has become faster than the CPU, which now takes longer by turns.
  for (int i = 0; i < 20 && tuner.Next() == 0; ++i) {
    for (int k = 0; k < 10; ++k) tuner.Record({tuner.Next(), Nanos(i % 2 == 0 ? 2 : 2.6), Nanos(2)});
  }
  EXPECT_EQ(tuner.Next(), 1);
}

}  // namespace
}  // namespace refurbish_tf
