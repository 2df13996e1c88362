// The rule by which jobs use samples in transit, on a real store. The jobs are in one process and take turns.
#include "refurbish_tf/cc/cooperation/shared/transit_order.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/cooperation/shared/shared_job.h"
#include "refurbish_tf/cc/cooperation/used_generations.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

using Own = std::optional<uint32_t>;
using Position = std::optional<uint64_t>;

class TransitOrderTest : public StoreDirectoryTest {
 protected:
  static constexpr size_t kSize = 100;

  // A store with room for `samples` samples in transit.
  std::unique_ptr<DiskStore> OpenRing(int64_t samples, int64_t write_delay_ms = 10) {
    DiskStoreOptions options;
    const int64_t space = RecordSpace(sizeof(RecordHeader) + kSize);
    options.max_bytes = samples * space;
    options.write_delay_ms = write_delay_ms;
    auto store = Open(std::move(options));
    EXPECT_TRUE(store->PlanTransit(samples * space, space).ok());
    store->MakeRoomFor(1000);
    return store;
  }

  static void PutNow(DiskStore& store, uint32_t index, Generation generation) {
    PutUnwritten(store, index, generation);
    store.Flush();
  }
  static void PutUnwritten(DiskStore& store, uint32_t index, Generation generation) {
    const std::string content = Content(index, generation, kSize);
    const iovec part = {const_cast<char*>(content.data()), content.size()};
    ASSERT_EQ(store.PutInTransit(index, generation, {&part, 1}), PutResult::kStored);
  }

  static bool Any(uint32_t, uint32_t) { return true; }
  static int OldestIndex(DiskStore& store, TransitOrder& order) {
    const Position found = order.Oldest(Any);
    return found ? static_cast<int>(store.transit()->At(*found).index) : -1;
  }
  static Slot InOrder(uint32_t place) { return {place, true}; }
};

TEST_F(TransitOrderTest, TakesEachSampleOnceOldestFirst) {
  auto store = OpenRing(64);
  for (const uint32_t index : {7, 3, 5}) PutNow(*store, index, 0);
  TransitOrder order(store->transit(), 0, 0, 0);
  EXPECT_EQ(OldestIndex(*store, order), 7);
  EXPECT_EQ(OldestIndex(*store, order), 3);
  PutNow(*store, 9, 0);
  EXPECT_EQ(OldestIndex(*store, order), 5);
  EXPECT_EQ(OldestIndex(*store, order), 9);
  EXPECT_EQ(OldestIndex(*store, order), -1);
}

TEST_F(TransitOrderTest, SkipsUnusableSamples) {
  auto store = OpenRing(64);
  for (const uint32_t index : {7, 3, 5}) PutNow(*store, index, index);
  TransitOrder order(store->transit(), 0, 0, 0);
  const Position found = order.Oldest([](uint32_t index, uint32_t tag) { return index == 5 && tag == 5; });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(store->transit()->At(*found).index, 5);
  EXPECT_EQ(OldestIndex(*store, order), -1);
}

TEST_F(TransitOrderTest, TakesPendingSamplesOnceTheyAreWritten) {
  auto slow = OpenRing(64, /*write_delay_ms=*/3'600'000);
  auto fast = OpenRing(64);
  PutUnwritten(*slow, 1, 0);
  PutNow(*fast, 2, 0);
  TransitOrder order(fast->transit(), 0, 0, 0);
  EXPECT_EQ(OldestIndex(*fast, order), 2);
  EXPECT_EQ(OldestIndex(*fast, order), -1);
  PutNow(*fast, 3, 0);
  slow->Flush();
  EXPECT_EQ(OldestIndex(*fast, order), 1);  // Sample 1 was put before sample 3.
  EXPECT_EQ(OldestIndex(*fast, order), 3);
}

TEST_F(TransitOrderTest, SkipsSamplesThatAreAboutToBeReplaced) {
  auto store = OpenRing(64);
  TransitOrder order(store->transit(), 0, 0, 0);
  for (uint32_t index = 0; index < 64; ++index) PutNow(*store, index, 0);
  EXPECT_EQ(OldestIndex(*store, order), 8);
  for (uint32_t index = 64; index < 128; ++index) PutNow(*store, index, 0);
  EXPECT_EQ(OldestIndex(*store, order), 72);
}

TEST_F(TransitOrderTest, SkipsSamplesPutBeforeACheckpoint) {
  auto store = OpenRing(64);
  PutNow(*store, 1, 0);
  const uint64_t head = store->transit()->head();
  PutNow(*store, 2, 0);
  TransitOrder order(store->transit(), head, 0, 0);
  EXPECT_EQ(OldestIndex(*store, order), 2);
  // While the ring's head is behind the one in the checkpoint, as in a restored copy of the store, no sample is used.
  TransitOrder ahead(store->transit(), head + 5, 0, 0);
  EXPECT_EQ(OldestIndex(*store, ahead), -1);
  for (uint32_t index = 3; index < 8; ++index) PutNow(*store, index, 0);
  EXPECT_EQ(OldestIndex(*store, ahead), 7);
}

TEST_F(TransitOrderTest, PostponesSamplesThatOtherJobsPrepare) {
  auto store = OpenRing(64);
  std::set<uint32_t> claimed = {0, 1, 4};
  std::vector<bool> used(6);
  used[2] = true;
  TransitOrder order(store->transit(), 0, 0, 6);
  const auto next = [&] {
    const Own own = order.NextOwn(
        InOrder, [&](uint32_t index) { return !used[index]; },
        [&](uint32_t index, bool also_claimed) { return also_claimed || claimed.count(index) == 0; });
    if (own) used[*own] = true;
    return own;
  };
  EXPECT_EQ(next(), Own(3));
  claimed.erase(1);
  EXPECT_EQ(next(), Own(1));  // No longer claimed, and before 5 in the order.
  EXPECT_EQ(next(), Own(5));
  // At the end of the order, samples that other jobs are preparing are also returned.
  EXPECT_EQ(next(), Own(0));
  used[3] = false;
  order.GiveBack(3);
  EXPECT_EQ(next(), Own(3));
  EXPECT_EQ(next(), Own(4));
  EXPECT_EQ(next(), std::nullopt);
}

TEST_F(TransitOrderTest, PassesOnOnlyUnkeptSamples) {
  constexpr uint32_t kSamples = 200, kKept = 120;
  auto store = OpenRing(20);
  SharedJob job(/*reuse_factor=*/3, store.get(), *store->Join());
  const auto other = *store->Join();
  other->BeginEpoch(0);
  ScheduleOptions options;
  options.reuse_factor = 3;
  const Schedule schedule(options, kSamples, kKept);
  const EpochSchedule order = schedule.Epoch(0);
  const auto epoch = job.InEpoch({0, job.BeginEpoch(0), &order, Shard(), /*hands_on=*/true});
  for (uint32_t i = 0; i < 10; ++i) PutNow(*store, i, 5);  // Some of them are kept.
  std::set<uint32_t> came;
  while (true) {
    epoch->BeginDecisions();
    const auto next = epoch->NextUnkept([&](uint32_t index) { return came.count(index) == 0; });
    if (!next.has_value()) break;
    EXPECT_FALSE(order.Kept(*next->index));
    EXPECT_TRUE(came.insert(*next->index).second);
  }
  EXPECT_EQ(came.size(), kSamples - kKept);
}

TEST_F(TransitOrderTest, TheNewerOfTwoConcurrentEpochsTakesSamples) {
  auto store = OpenRing(20);
  SharedJob job(/*reuse_factor=*/1, store.get(), *store->Join());
  const auto other = *store->Join();
  other->BeginEpoch(0);
  const Schedule schedule(ScheduleOptions(), 20, /*capacity=*/0);
  const EpochSchedule orders[] = {schedule.Epoch(0), schedule.Epoch(1)};
  // Both epochs have begun before either epoch object exists.
  const uint64_t older = job.BeginEpoch(0), newer = job.BeginEpoch(1);
  const auto first = job.InEpoch({0, older, &orders[0], Shard(), /*hands_on=*/true});
  const auto second = job.InEpoch({1, newer, &orders[1], Shard(), /*hands_on=*/true});
  for (uint32_t i = 0; i < 4; ++i) PutNow(*store, i, 5);
  const auto any = [](uint32_t) { return true; };
  EXPECT_FALSE(first->NextUnkept(any)->position.has_value());
  EXPECT_TRUE(second->NextUnkept(any)->position.has_value());
}

TEST_F(TransitOrderTest, LimitsRefusedClaimsPerDecision) {
  constexpr uint32_t kPlaces = 1000;
  auto store = OpenRing(64);
  TransitOrder order(store->transit(), 0, 0, kPlaces);
  std::set<uint32_t> needed;
  for (uint32_t index = 0; index < kPlaces; ++index) needed.insert(index);
  while (!needed.empty()) {
    uint32_t refused = 0;
    const Own own = order.NextOwn(
        InOrder, [&](uint32_t index) { return needed.count(index) > 0; },
        [&](uint32_t, bool also_claimed) {
          refused += !also_claimed;
          return also_claimed;
        });
    ASSERT_LE(refused, 64);
    ASSERT_TRUE(own && needed.erase(*own));
  }
}

// A simulated job that keeps no samples.
class Trainee {
 public:
  Trainee(DiskStore* store, uint32_t num_samples, uint64_t seed)
      : store_(*store), job_(*store->Join()), random_(seed), order_(num_samples), unused_(num_samples) {
    std::iota(order_.begin(), order_.end(), 0);
    epoch_ = job_->BeginFirstEpoch();
  }

  // Uses the next sample. Returns whether it had to be prepared.
  bool Step() {
    if (num_left_ == 0) BeginEpoch();
    --num_left_;
    const auto needed = [&](uint32_t index) { return needed_[index]; };
    uint32_t sample;
    Generation generation;
    const Position taken = order_of_epoch_->Oldest([&](uint32_t index, uint32_t tag) {
      sample = index;
      generation = NearestGeneration(tag, unused_[index]);
      return needed_[index] && generation >= unused_[index];
    });
    bool prepares = !taken || !job_->OthersAreAlive();
    if (prepares) {
      const Own own = order_of_epoch_->NextOwn([&](uint32_t place) { return Slot{order_[place], true}; }, needed,
                                               [&](uint32_t index, bool also_claimed) {
                                                 const auto claimed =
                                                     job_->ClaimNext(index, unused_[index], also_claimed);
                                                 if (claimed) generation = *claimed;
                                                 return claimed.has_value();
                                               });
      EXPECT_TRUE(own.has_value());
      sample = *own;
      const std::string content = Content(sample, generation, 100);
      const iovec part = {const_cast<char*>(content.data()), content.size()};
      EXPECT_EQ(store_.PutInTransit(sample, generation, {&part, 1}), PutResult::kStored);
      store_.Flush();
    }
    EXPECT_TRUE(needed_[sample]);  // Each sample comes once.
    needed_[sample] = false;
    EXPECT_GE(generation, unused_[sample]);  // Each generation is used once.
    unused_[sample] = generation + 1;
    return prepares;
  }

 private:
  void BeginEpoch() {
    job_->BeginEpoch(epoch_++);
    ShuffleRange(order_.begin(), order_.end(), random_);
    needed_.assign(order_.size(), true);
    num_left_ = order_.size();
    order_of_epoch_.emplace(store_.transit(), 0, 0, order_.size());
  }

  DiskStore& store_;
  const std::unique_ptr<SharedState::Job> job_;
  RandomStream random_;
  std::vector<uint32_t> order_;
  std::vector<Generation> unused_;
  std::vector<bool> needed_;
  uint32_t num_left_ = 0;
  uint64_t epoch_;
  std::optional<TransitOrder> order_of_epoch_;
};

// Runs jobs that begin at these fractions of an epoch, at these speeds. Returns the number of samples that they prepare
// while all of them run, divided by the number that the fastest job would prepare alone.
double Quotient(DiskStore& store, const std::vector<double>& starts, const std::vector<double>& speeds) {
  constexpr uint32_t kSamples = 600;
  constexpr int kEpochs = 4;
  std::vector<std::unique_ptr<Trainee>> jobs(starts.size());
  std::vector<double> due(starts.size());
  for (size_t k = 0; k < starts.size(); ++k) due[k] = starts[k] * kSamples;
  const double begin = *std::max_element(due.begin(), due.end());
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  int prepared = 0;
  while (true) {
    const size_t k = std::min_element(due.begin(), due.end()) - due.begin();
    if (due[k] >= begin + kEpochs * kSamples / fastest) break;
    if (jobs[k] == nullptr) jobs[k] = std::make_unique<Trainee>(&store, kSamples, k);
    const bool counts = due[k] >= begin;
    prepared += jobs[k]->Step() && counts;
    due[k] += 1 / speeds[k];
  }
  return static_cast<double>(prepared) / (kEpochs * kSamples);
}

TEST_F(TransitOrderTest, JobsInPhasePrepareNoMoreThanASingleJob) {
  EXPECT_LE(Quotient(*OpenRing(40), {0, 0, 0, 0}, {1, 1, 1, 1}), 1.02);
}

TEST_F(TransitOrderTest, JobsOutOfPhasePrepareNoMoreThanASingleJob) {
  EXPECT_LE(Quotient(*OpenRing(40), {0, 0.13, 0.47, 0.8}, {1, 1, 1, 1}), 1.05);
}

TEST_F(TransitOrderTest, JobsOfUnequalSpeedPrepareLittleMoreThanASingleJob) {
  EXPECT_LE(Quotient(*OpenRing(40), {0, 0.25, 0.5, 0.75}, {1, 1, 0.9, 0.7}), 1.15);
}

TEST_F(TransitOrderTest, ASingleJobPreparesEverySampleItself) {
  auto store = OpenRing(40);
  EXPECT_EQ(Quotient(*store, {0}, {1}), 1);
}

}  // namespace
}  // namespace refurbish_tf
