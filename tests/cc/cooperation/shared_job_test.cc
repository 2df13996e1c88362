// Which generations a job on a shared store may use, and how jobs claim samples, including from several threads.
#include "refurbish_tf/cc/cooperation/shared/shared_job.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/cooperation/used_generations.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

TEST(UsedGenerationsTest, AGenerationIsUsedAtMostRTimesAndNeverAfterANewerOne) {
  for (const auto& [reuse_factor, most] : {std::pair<double, int>{1, 1}, {2.5, 3}, {3, 3}}) {
    UsedGenerations used(reuse_factor);
    EXPECT_EQ(used.Wanted(7, 4).least, 4u);
    for (int use = 0; use < most; ++use) {
      EXPECT_EQ(used.Wanted(7, 4).least, use == 0 ? 4u : 5u);
      EXPECT_TRUE(used.Use(7, 5));
    }
    EXPECT_EQ(used.Wanted(7, 4).least, 6u);
    EXPECT_FALSE(used.Use(7, 5));
    EXPECT_FALSE(used.Use(7, 4));
    EXPECT_EQ(used.Wanted(7, 9).least, 9u);  // The schedule wants a newer one.
    EXPECT_TRUE(used.Use(7, 6));
    EXPECT_EQ(used.Wanted(6, 4).least, 4u);  // Sample 6 has its own generations.
    used.Clear();
    EXPECT_EQ(used.Wanted(7, 0).least, 0u);
  }
}

TEST(UsedGenerationsTest, GenerationsOfUnkeptSamplesAreUsedOnce) {
  UsedGenerations used(3);
  EXPECT_EQ(used.NextUnused(5), 0u);
  EXPECT_TRUE(used.UseOnce(5, 2));
  EXPECT_FALSE(used.UseOnce(5, 2));
  EXPECT_FALSE(used.UseOnce(5, 1));
  EXPECT_EQ(used.NextUnused(5), 3u);
  EXPECT_TRUE(used.UseOnce(5, 4));
  EXPECT_EQ(used.NextUnused(5), 5u);
  EXPECT_EQ(used.NextUnused(6), 0u);
  // A generation that was used while its sample was kept is not used again.
  EXPECT_TRUE(used.Use(8, 1));
  EXPECT_FALSE(used.UseOnce(8, 1));
  used.Clear();
  EXPECT_EQ(used.NextUnused(5), 0u);
}

TEST(UsedGenerationsTest, ConcurrentThreadsUseEachGenerationRTimes) {
  constexpr uint32_t kSamples = 300, kGenerations = 5;
  UsedGenerations used(3), once(3);
  used.MakeRoomFor(kSamples);
  std::atomic<int> num_used{0}, num_used_once{0};
  for (Generation generation = 0; generation < kGenerations; ++generation) {
    Threads(4, [&](int) {
      for (uint32_t i = 0; i < kSamples; ++i) {
        EXPECT_LE(used.Wanted(i, generation).least, generation + 1);
        for (int use = 0; use < 2; ++use) num_used += used.Use(i, generation);
        num_used_once += once.UseOnce(i, generation);
        EXPECT_EQ(once.NextUnused(i), generation + 1);
      }
    }).Join();
  }
  EXPECT_EQ(num_used, int{3 * kSamples * kGenerations});
  EXPECT_EQ(num_used_once, int{kSamples * kGenerations});
}

class SharedJobTest : public StoreDirectoryTest {
 protected:
  static constexpr uint32_t kSamples = 400;

  SharedJobTest() {
    options_.reuse_factor = 3;
    schedule_.emplace(options_, kSamples, kSamples);
    store_->MakeRoomFor(kSamples);
  }

  std::unique_ptr<SharedJob> MakeJob() {
    return std::make_unique<SharedJob>(/*reuse_factor=*/3, store_.get(), *store_->Join());
  }
  std::unique_ptr<JobEpoch> Begin(SharedJob& job, const EpochSchedule& order) {
    return job.InEpoch({order.epoch(), job.BeginEpoch(order.epoch()), &order, Shard(), /*hands_on=*/false});
  }

  const std::unique_ptr<DiskStore> store_ = Open();
  ScheduleOptions options_;
  std::optional<Schedule> schedule_;
};

TEST_F(SharedJobTest, EachSampleIsClaimedByExactlyOneJob) {
  const EpochSchedule order = schedule_->Epoch(0);
  std::vector<std::unique_ptr<SharedJob>> jobs;
  std::vector<std::unique_ptr<JobEpoch>> epochs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(MakeJob());
    epochs.push_back(Begin(*jobs.back(), order));
  }
  std::array<std::atomic<int>, kSamples> num_claimed{};
  Threads(3, [&](int i) {
    epochs[i]->BeginDecisions();
    for (uint32_t index = 0; index < kSamples; ++index) num_claimed[index] += epochs[i]->Claim(index, false);
  }).Join();
  for (const std::atomic<int>& number : num_claimed) EXPECT_EQ(number, 1);
  // At the end of the order, a job also prepares samples that other jobs claimed but have not put.
  for (uint32_t index = 0; index < kSamples; ++index) EXPECT_TRUE(epochs[0]->Claim(index, true));
}

TEST_F(SharedJobTest, UsesNewerGenerationsOfOtherJobsBeforePreparingTheNextOne) {
  const auto job = MakeJob();
  const EpochSchedule order = schedule_->Epoch(1);
  const auto epoch = Begin(*job, order);
  const Generation own = order.Generation(8);
  EXPECT_EQ(epoch->Wanted(8, own).least, own);
  for (int use = 0; use < 3; ++use) EXPECT_TRUE(epoch->Use(8, 5, /*in_ring=*/false));
  EXPECT_FALSE(epoch->Use(8, 5, /*in_ring=*/false));
  EXPECT_EQ(epoch->Wanted(8, own).least, 6u);
  EXPECT_EQ(epoch->Claimed(8), own);
  EXPECT_TRUE(epoch->Claim(8, false));
  EXPECT_EQ(epoch->Claimed(8), 6u);
  EXPECT_EQ(epoch->Claimed(9), order.Generation(9));
}

TEST_F(SharedJobTest, AfterARestoreEarlierEpochsUseOnlyTheirOwnGenerations) {
  const auto job = MakeJob();
  job->Restore(/*exact_before=*/2, /*ring_from=*/0);
  for (const uint64_t number : {1, 2}) {
    const EpochSchedule order = schedule_->Epoch(number);
    const auto epoch = Begin(*job, order);
    EXPECT_EQ(epoch->Wanted(8, 0).Contains(1), number == 2);
  }
}

TEST_F(SharedJobTest, WorkersReadDecisionsWhileAnotherThreadMakesThem) {
  const auto job = MakeJob();
  for (uint64_t number = 0; number < 4; ++number) {
    const EpochSchedule order = schedule_->Epoch(number);
    const auto epoch = Begin(*job, order);
    std::atomic<uint32_t> num_decided{0};
    Threads(4, [&](int thread) {
      for (uint32_t k = 0; k < kSamples; ++k) {
        const Slot slot = order.At(k);
        if (thread == 0) {
          epoch->BeginDecisions();
          EXPECT_TRUE(epoch->Claim(slot.index, true));
          num_decided = k + 1;
          continue;
        }
        while (num_decided <= k) std::this_thread::yield();
        EXPECT_GE(epoch->Claimed(slot.index), slot.generation);
        EXPECT_GE(epoch->Wanted(slot.index, slot.generation).least, slot.generation);
        EXPECT_FALSE(epoch->KeepsForOthers(slot.index));
        EXPECT_FALSE(epoch->ShouldPublish(slot.index));
      }
    }).Join();
  }
}

}  // namespace
}  // namespace refurbish_tf
