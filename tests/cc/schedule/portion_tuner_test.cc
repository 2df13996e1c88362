// The tuner in a simulated pipeline, and by what is recorded.
#include "refurbish_tf/cc/schedule/portion_tuner.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/schedule/portion_tuner_testing.h"

namespace refurbish_tf {
namespace {

TEST(PortionTunerTest, IsAsGoodAsTheBestPortion) {
  for (const Pipeline& pipeline : Pipelines()) {
    const Ratios ratios = Compare(pipeline, 100, 300);
    EXPECT_GE(ratios.to_best, 0.95) << pipeline.Name();
    EXPECT_GE(ratios.to_extreme, 0.97) << pipeline.Name();
  }
}

TEST(PortionTunerTest, NoiseIsNoChange) {
  Pipeline pipeline;
  pipeline.train = 0.2;
  pipeline.device = 0.6;
  pipeline.room = 2;
  pipeline.prefetch = 16;
  pipeline.noise = 0.2;
  EXPECT_GE(Compare(pipeline, 100, 400).to_best, 0.95);
}

TEST(PortionTunerTest, FollowsAChangeOfTheCpu) {
  OneOf has(7);
  for (Pipeline pipeline : Pipelines()) {
    // A long queue shows late what a portion brings.
    const bool is_long = pipeline.prefetch == 16;
    for (const int change_at : {200, 300}) {
      pipeline.change_at = change_at;
      const int from = change_at + pipeline.room + pipeline.prefetch + (is_long ? 100 : 60);
      for (const double change : {0.5, 0.7, 1.4, 2.0}) {
        pipeline.change = change;
        if (!has()) continue;
        EXPECT_GE(Compare(pipeline, from, from + 140).to_best, is_long ? 0.90 : 0.94) << pipeline.Name();
      }
    }
  }
}

TEST(PortionTunerTest, TheExtremesArePure) {
  Pipeline pipeline;
  pipeline.train = 2;
  EXPECT_EQ(Simulation(pipeline, 300, kTuned, 0).Count(0, 100, 300), 200);
  pipeline.train = 0.1;
  pipeline.device = 0.001;
  EXPECT_EQ(Simulation(pipeline, 300, kTuned, 0).Count(kNumPortions - 1, 100, 250), 150);
}

// An evaluation, a checkpoint.
TEST(PortionTunerTest, APauseChangesNothing) {
  for (Pipeline pipeline : Pipelines()) {
    // Meanwhile a long queue fills, which hides for a while what a portion brings.
    const double least = pipeline.prefetch == 16 ? 0.87 : 0.95;
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
TEST(PortionTunerTest, LateThreadsAreNoSlowDevice) {
  for (Pipeline pipeline : Pipelines()) {
    if (pipeline.train < 0.3 || pipeline.prefetch == 0) continue;
    pipeline.delay = 0.5;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.93) << pipeline.Name();
  }
}

TEST(PortionTunerTest, BurstsAreNoChange) {
  for (Pipeline pipeline : Pipelines()) {
    // With less than a burst's length queued the device is without work at any portion.
    if (pipeline.room == 2 && pipeline.prefetch == 0) continue;
    pipeline.burst = 3;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.95) << pipeline.Name();
  }
}

// steps_per_execution, or several iterators of one stage.
TEST(PortionTunerTest, TrainingMayTakeSeveralBatchesAtATime) {
  for (const int execution : {3, 16, 32}) {
    for (Pipeline pipeline : Pipelines()) {
      if (pipeline.prefetch == 1 || pipeline.train == 0.8) continue;
      pipeline.execution = execution;
      // A trial takes longer.
      const double least = execution == 32 ? 0.86 : pipeline.prefetch == 16 ? 0.92 : 0.93;
      EXPECT_GE(Compare(pipeline, 500, 1500).to_best, least) << pipeline.Name();
      if (execution > 5) continue;
      EXPECT_GE(Compare(pipeline, 100, 300).to_best, 0.90) << pipeline.Name();
    }
  }
}

TEST(PortionTunerTest, TheTimeBetweenTwoIteratorsIsNotMeasured) {
  for (Pipeline pipeline : Pipelines()) {
    // At the beginning of each the CPU fills the queue, and works all the time: with a long one it looks late.
    if (pipeline.prefetch == 16) continue;
    pipeline.epoch = 20;
    pipeline.gap = 4;
    EXPECT_GE(Compare(pipeline, 100, 300).to_best, pipeline.prefetch > 1 ? 0.88 : 0.95) << pipeline.Name();
  }
}

// The lower of the two portions would leave the device without work. That it still would is tried for hardly any
// batches.
TEST(PortionTunerTest, APortionThatIsTooSlowIsTriedSeldom) {
  Pipeline pipeline;
  pipeline.train = 0.1;
  pipeline.device = 0.001;
  pipeline.prefetch = 0;
  const Simulation tuned(pipeline, 9000, kTuned, 0);
  const int tried = 8900 - tuned.Count(kNumPortions - 1, 100, 9000);
  EXPECT_GE(tried, 1);
  EXPECT_GE(tuned.Throughput(100, 9000), 0.98 * Simulation(pipeline, 9000, kNumPortions - 1, 0).Throughput(100, 9000));
}

// The first batches take long: files and caches are cold. What was measured then does not count for ever.
TEST(PortionTunerTest, APortionThatWasTooSlowIsTriedAgain) {
  Pipeline pipeline;
  pipeline.train = 1.1;
  pipeline.device = 1;
  for (const auto& [warm_up, from] : {std::pair{1.3, 100}, {2.0, 100}, {4.0, 300}, {30.0, 1700}}) {
    pipeline.warm_up = warm_up;
    EXPECT_GE(Compare(pipeline, from, from + 200).to_best, 0.95) << warm_up;
  }
}

// What a portion takes from one batch to the next, and how much of that the CPU works.
struct Measured {
  double time, busy;
};

// The portions of the batches of a pipeline without a queue.
std::vector<int> Portions(const std::vector<Measured>& measured, int num_batches, PortionTuner* tuner) {
  std::vector<int> portions;
  for (int i = 0; i < num_batches; ++i) {
    const int portion = tuner->Begin();
    const auto& [time, busy] = measured[portion];
    portions.push_back(portion);
    tuner->Record({portion, Nanos(time), Nanos(time * busy)});
  }
  return portions;
}

std::vector<int> Portions(const std::vector<Measured>& measured, int num_batches) {
  PortionTuner tuner;
  return Portions(measured, num_batches, &tuner);
}

// The portion behind these.
int Found(const std::vector<Measured>& measured, int num_batches, PortionTuner* tuner) {
  Portions(measured, num_batches, tuner);
  return tuner->portion();
}

int Found(const std::vector<Measured>& measured, int num_batches) {
  PortionTuner tuner;
  return Found(measured, num_batches, &tuner);
}

// Without the single batches of probes.
int NumTimes(const std::vector<int>& portions, int portion) {
  int times = 0;
  for (size_t i = 2; i < portions.size(); ++i) {
    times += portions[i] == portion && portions[i - 1] == portion && portions[i - 2] != portion;
  }
  return times;
}

TEST(PortionTunerTest, WorkersThatLoseSomeTimeAreBusy) {
  EXPECT_EQ(Found({{1, 0.85}, {0.9, 0.85}, {0.8, 0.85}, {0.6, 0.85}, {0.4, 0.85}}, 100), 4);
}

TEST(PortionTunerTest, AGreaterPortionThatBringsNothingIsNotTaken) {
  EXPECT_EQ(Found({{1, 1}, {0.99, 0.5}}, 100), 0);
  EXPECT_EQ(Found({{1, 1}, {0.97, 0.5}}, 100), 1);
}

TEST(PortionTunerTest, AMeasurementDoesNotWaitForATimeThatIsSomewhatLonger) {
  PortionTuner tuner;
  for (int i = 0; i < 15; ++i) tuner.Record({0, Nanos(i == 7 ? 2.2 : 1), Nanos(1)});
  EXPECT_EQ(tuner.Begin(), 1);
}

TEST(PortionTunerTest, SmallGainsAreFoundAsSoon) {
  EXPECT_EQ(Found({{1, 1}, {0.99, 1}, {0.98, 1}, {0.96, 1}, {0.92, 1}}, 70), 4);
}

TEST(PortionTunerTest, SmallGainsAreFoundAfterAChange) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.2, 0.81}, {1.3, 0.74}}, 80, &tuner), 0);
  EXPECT_EQ(Found({{2, 1}, {1.98, 1}, {1.96, 1}, {1.93, 1}, {1.88, 1}}, 120, &tuner), 4);
}

TEST(PortionTunerTest, BatchesOfAnotherPortionAreNotMeasured) {
  PortionTuner tuner;
  for (int i = 0; i < 100; ++i) tuner.Record({4, Nanos(1), Nanos(1)});
  EXPECT_EQ(tuner.Begin(), 0);
}

// As other programs compute now and then.
TEST(PortionTunerTest, WhatIsNewAndDoesNotComeAgainIsNotBelieved) {
  PortionTuner tuner;
  for (int i = 0; i < 300; ++i) {
    // A measurement is of ten, behind the first four.
    const double time = i >= 4 && (i - 4) / 10 % 3 == 2 ? 2 : 1;
    tuner.Record({tuner.Begin(), Nanos(time), Nanos(time == 2 ? 2 : 0.5)});
    ASSERT_EQ(tuner.Begin(), 0) << i;
  }
}

TEST(PortionTunerTest, BothSidesMayBeLateByTurns) {
  EXPECT_EQ(Found({{1, 0.75}, {0.8, 0.5}}, 100), 1);
  EXPECT_EQ(NumTimes(Portions({{1, 0.5}, {0.8, 0.3}}, 3000), 1), 0);
}

TEST(PortionTunerTest, TheCpuIsBusyWhileWorkersAreOrWhileOneReads) {
  EXPECT_EQ(PortionTuner::Work(10, 30, 2), 20);
  EXPECT_EQ(PortionTuner::Work(10, 30, 16), 10);
  EXPECT_EQ(PortionTuner::Work(10, 30, 0), 40);
}

TEST(PortionTunerTest, ANeighbourThatWasNotBetterIsTriedAgain) {
  // Once it is early.
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.1, 0.5}}, 60), 1), 1);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.1, 0.5}}, 90), 1), 2);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.1, 0.5}}, 760), 1), 2);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.1, 0.5}}, 820), 1), 3);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.9, 0.5}}, 690), 1), 1);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {1.9, 0.5}}, 740), 1), 2);
  // If it takes far longer, later.
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {3, 0.5}}, 2000), 1), 1);
  EXPECT_EQ(NumTimes(Portions({{1, 1}, {3, 0.5}}, 2200), 1), 2);
}

TEST(PortionTunerTest, OnlyAtTheBeginningANeighbourIsTriedEarly) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.2, 0.5}}, 250, &tuner), 0);
  EXPECT_EQ(NumTimes(Portions({{2.4, 1}, {2.5, 0.5}}, 400, &tuner), 1), 1);
}

TEST(PortionTunerTest, WhatIsTriedAgainIsTwoPercentOfTheBatches) {
  for (const double time : {1.03, 1.5, 3.0, 10.0}) {
    PortionTuner tuner;
    Portions({{1, 1}, {time, 0.5}}, 1000, &tuner);
    const std::vector<int> portions = Portions({{1, 1}, {time, 0.5}}, 50000, &tuner);
    const double tried = std::count(portions.begin(), portions.end(), 1);
    EXPECT_GE(tried, 10);
    EXPECT_LE(tried, 0.02 * portions.size()) << time;
    EXPECT_LE(time * tried, (time > 2 ? 0.021 : 0.03) * portions.size()) << time;
  }
  // Also where a trial leads to other portions, behind a long queue.
  Pipeline pipeline;
  pipeline.train = 0.35;
  pipeline.device = 1;
  pipeline.room = 4;
  pipeline.prefetch = 16;
  const Simulation tuned(pipeline, 20000, kTuned, 0);
  EXPECT_GE(tuned.Count(2, 1000, 20000), 0.975 * 19000);
}

// What was found by a trial is no trial, however long it lasted.
TEST(PortionTunerTest, ATrialThatIsKeptTriesNoPatience) {
  PortionTuner tuner;
  Portions({{1, 1}, {1.02, 0.5}}, 500, &tuner);
  ASSERT_EQ(Found({{1, 1}, {0.9, 0.6}}, 1000, &tuner), 1);
  ASSERT_EQ(Found({{0.5, 1}, {0.9, 0.3}}, 300, &tuner), 0);
  EXPECT_EQ(Found({{0.5, 1}, {0.3, 0.6}}, 1000, &tuner), 1);
}

TEST(PortionTunerTest, ADeviceThatBecomesFasterIsFound) {
  PortionTuner tuner;
  Portions({{1, 1}, {1.2, 0.5}}, 300, &tuner);
  EXPECT_EQ(Found({{1, 1}, {0.6, 0.6}}, 900, &tuner), 1);
}

TEST(PortionTunerTest, WhatIsKnownOfASlowerDeviceIsForgotten) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1, 1}, {0.9, 1}, {0.8, 0.7}, {1.2, 0.3}}, 150, &tuner), 2);
  EXPECT_EQ(Found({{1, 1}, {0.9, 1}, {0.6, 1}, {0.45, 0.7}, {0.6, 0.1}}, 100, &tuner), 3);
}

// A CPU that other programs slow down does as much as before for a portion that leaves it time.
TEST(PortionTunerTest, WhatOtherPortionsTellOfTheCpuNeedNotHold) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1, 1}, {0.9, 1}, {1, 0.3}}, 80, &tuner), 1);
  const std::vector<int> portions = Portions({{1.7, 1}, {1.5, 1}, {1, 0.3}}, 140, &tuner);
  EXPECT_EQ(tuner.portion(), 2);
  EXPECT_EQ(NumTimes(portions, 1), 0);
}

// While the CPU has time left only its work tells that it has become faster.
TEST(PortionTunerTest, ACpuThatBecomesFasterIsSeenByItsWork) {
  for (const double faster : {1.2, 1.4, 1.6, 2.5}) {
    PortionTuner tuner;
    ASSERT_EQ(Found({{1, 1}, {0.9, 0.6}}, 300, &tuner), 1);
    const std::vector<Measured> now = {{1 / faster, 1}, {0.9, 0.6 / faster}};
    EXPECT_EQ(Found(now, 140, &tuner), 0) << faster;
  }
  // The more it is, the sooner.
  PortionTuner tuner;
  ASSERT_EQ(Found({{1, 1}, {0.5, 0.6}}, 300, &tuner), 1);
  EXPECT_EQ(Found({{0.4, 1}, {0.5, 0.24}}, 60, &tuner), 0);
}

// What the CPU does for portion 1 is so little that a load does not hold it up.
TEST(PortionTunerTest, ProbesTellThatALoadHasEnded) {
  for (const double slow : {1.1, 1.7, 2.2}) {
    PortionTuner tuner;
    ASSERT_EQ(Found({{slow, 1}, {1, 0.1}}, 300, &tuner), 1);
    EXPECT_EQ(Found({{slow / 2, 1}, {1, 0.1}}, slow < 2 ? 60 : 120, &tuner), slow / 2 < 1 ? 0 : 1);
  }
}

TEST(PortionTunerTest, ProbesTellOfAChangeThatComesSlowly) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.2, 1}, {1, 0.1}}, 300, &tuner), 1);
  EXPECT_EQ(Found({{0.95, 1}, {1, 0.1}}, 500, &tuner), 0);
}

// The tuner in a pipeline of which so many batches are begun before one is handed out: a portion's time, and the work
// of a batch by its portion and that of the tuner.
template <typename Work>
std::vector<int> Portions(const std::vector<double>& times, int num_begun, int num_batches, const Work& work,
                          PortionTuner* tuner) {
  std::deque<int> begun;
  std::vector<int> portions;
  for (int i = 0; i < num_batches; ++i) {
    while (static_cast<int>(begun.size()) < num_begun) begun.push_back(tuner->Begin());
    const int portion = begun.front();
    begun.pop_front();
    portions.push_back(tuner->portion());
    tuner->Record({portion, Nanos(times[tuner->portion()]), Nanos(work(portion, tuner->portion()))});
  }
  return portions;
}

// A load holds up some batches, and others not.
TEST(PortionTunerTest, OddProbesAreNotBelieved) {
  for (const int fast : {1, 3}) {
    PortionTuner tuner;
    ASSERT_EQ(Found({{1.4, 1}, {1, 0.1}}, 300, &tuner), 1);
    int probes = 0;
    const auto portions = Portions(
        {1.4, 1}, 3, 4000,
        [&](int portion, int) { return portion == 1                   ? 0.1
                                       : ++probes % (3 * fast) < fast ? 0.4
                                                                      : 1.4; }, &tuner);
    EXPECT_EQ(std::count(portions.begin(), portions.end(), 0), 0);
    EXPECT_GE(probes, 50);
    EXPECT_LE(probes, 4000 / 10) << fast;
  }
}

// Single batches may be fast beside a load that holds up many.
TEST(PortionTunerTest, WhatProbesToldIsMeasuredAndSeldomIfItIsWrong) {
  for (const double slow : {1.1, 1.4, 2.0}) {
    PortionTuner tuner;
    ASSERT_EQ(Found({{slow, 1}, {1, 0.1}}, 300, &tuner), 1);
    const auto portions = Portions(
        {slow, 1}, 2, 20000,
        [&](int portion, int tuned) { return portion == 1 ? 0.1
                                             : tuned == 1 ? 0.5 * slow
                                                          : slow; }, &tuner);
    int visits = 0;
    for (size_t i = 1; i < portions.size(); ++i) visits += portions[i] < portions[i - 1];
    const auto batches = std::count(portions.begin(), portions.end(), 0);
    EXPECT_GE(visits, 10) << slow;
    EXPECT_LE(batches, 18 * visits) << slow;
    EXPECT_LE((slow - 1) * batches, 0.025 * portions.size()) << slow;
  }
}

TEST(PortionTunerTest, ProbesAreTrustedAgain) {
  PortionTuner tuner;
  const auto wrong = [](int portion, int tuned) { return portion == 1 ? 0.1 : tuned == 1 ? 0.7 : 1.4; };
  const auto visits = [&](int num_batches) {
    const auto portions = Portions({1.4, 1}, 2, num_batches, wrong, &tuner);
    int visits = 0;
    for (size_t i = 1; i < portions.size(); ++i) visits += portions[i] < portions[i - 1];
    return visits;
  };
  ASSERT_EQ(Found({{1.4, 1}, {1, 0.1}}, 300, &tuner), 1);
  EXPECT_GE(visits(700), 4);
  visits(3000);
  EXPECT_LE(visits(700), 3);
  // Now they are right.
  EXPECT_EQ(Found({{0.7, 1}, {1, 0.1}}, 700, &tuner), 0);
  ASSERT_EQ(Found({{1.4, 1}, {1, 0.1}}, 60, &tuner), 1);
  EXPECT_GE(visits(700), 4);
}

TEST(PortionTunerTest, ASlowerDeviceIsFollowedWhateverProbesTold) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.8, 1}, {1, 0.1}}, 300, &tuner), 1);
  Portions(
      {1.8, 1}, 2, 6000, [](int portion, int tuned) { return portion == 1 ? 0.1
                                                             : tuned == 1 ? 0.9
                                                                          : 1.8; }, &tuner);
  while (tuner.portion() == 0) Portions({{1.8, 1}, {1, 0.1}}, 1, &tuner);
  EXPECT_EQ(Found({{1.8, 1}, {2.5, 0.1}}, 60, &tuner), 0);
}

TEST(PortionTunerTest, AVisitIsNotWrongIfTheDeviceHasChanged) {
  PortionTuner tuner;
  const auto work = [](int portion, int tuned) { return portion == 1 ? 0.1 : tuned == 1 ? 0.7 : 1.4; };
  ASSERT_EQ(Found({{1.4, 1}, {1, 0.1}}, 300, &tuner), 1);
  while (tuner.portion() == 1) Portions({1.4, 1}, 2, 1, work, &tuner);
  // The device is late, and then it is not. So it is not known how it does with the greater portion.
  ASSERT_EQ(Found({{1, 0.5}}, 50, &tuner), 0);
  while (tuner.portion() == 0) Portions({{1.4, 1}, {1, 0.1}}, 1, &tuner);
  const auto portions = Portions({1.4, 1}, 2, 200, work, &tuner);
  EXPECT_GE(std::count(portions.begin(), portions.end(), 0), 10);
}

TEST(PortionTunerTest, WhatIsLeftOfAPortionIsNoProbe) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1, 1}, {1.1, 0.5}}, 300, &tuner), 0);
  while (tuner.portion() == 0) tuner.Record({tuner.Begin(), Nanos(1), Nanos(1)});
  tuner.Record({0, Nanos(1), Nanos(0.4)});
  EXPECT_EQ(tuner.Begin(), 1);
}

// They are 17 batches apart, or not seen if only the others of an iterator were.
TEST(PortionTunerTest, TheFirstBatchOfAnIteratorMayBeAProbe) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.2, 1}, {1, 0.1}}, 300, &tuner), 1);
  for (int i = 0; i < 60; ++i) {
    const int portion = tuner.Begin();
    const std::optional<int64_t> since = portion == 0 ? std::nullopt : std::optional(Nanos(1));
    tuner.Record({portion, since, Nanos(portion == 0 ? 0.6 : 0.1)});
  }
  EXPECT_EQ(tuner.portion(), 0);
}

// Else what is known of the others would grow, or shrink, with each visit.
TEST(PortionTunerTest, WhatProbesToldSaysNothingOfOtherPortions) {
  PortionTuner tuner;
  const std::vector<Measured> measured = {{1.5, 1}, {1.2, 1}, {1, 0.1}};
  ASSERT_EQ(Found(measured, 300, &tuner), 2);
  Portions(
      {1.5, 1.2, 1}, 1, 20000, [](int portion, int tuned) { return portion == 2 ? 0.1
                                                                   : tuned == 2 ? 0.98
                                                                                : 1.2; },
      &tuner);
  EXPECT_EQ(Found({{0.5, 1}, {0.55, 0.6}, {1, 0.1}}, 400, &tuner), 0);
}

// Its first measurement may have held a pause.
TEST(PortionTunerTest, APortionThatSeemedSlowOnceIsVisitedAgain) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1.2, 0.84}, {1.1, 0.1}}, 60, &tuner), 1);
  EXPECT_EQ(Found({{1, 1}, {1.1, 0.1}}, 600, &tuner), 0);
}

TEST(PortionTunerTest, ProbesTakeTwoPercentOfTheTime) {
  for (const double time : {1.05, 1.5, 2.0, 3.0, 10.0}) {
    PortionTuner tuner;
    Portions({{time, 1}, {1, 0.1}}, 1000, &tuner);
    const std::vector<int> portions = Portions({{time, 1}, {1, 0.1}}, 50000, &tuner);
    const double probes = std::count(portions.begin(), portions.end(), 0);
    EXPECT_GE(probes, 10) << time;
    EXPECT_LE(probes, portions.size() / 16) << time;
    EXPECT_LE((time - 1) * probes, 0.021 * portions.size()) << time;
    EXPECT_EQ(NumTimes(portions, 0), 0) << time;
  }
}

TEST(PortionTunerTest, MeasurementsThatGoToAndFroAreBelieved) {
  PortionTuner tuner;
  ASSERT_EQ(Found({{1, 1}, {1.5, 0.5}}, 100, &tuner), 0);
  // The device has become faster than the CPU, which now takes longer by turns.
  for (int i = 0; i < 20 && tuner.Begin() == 0; ++i) {
    for (int k = 0; k < 10; ++k) tuner.Record({tuner.Begin(), Nanos(i % 2 == 0 ? 2 : 2.6), Nanos(2)});
  }
  EXPECT_EQ(tuner.Begin(), 1);
}

}  // namespace
}  // namespace refurbish_tf
