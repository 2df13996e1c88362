// An epoch of a source by index, or of a stream, while several threads prepare samples.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/refurbish/epoch.h"
#include "refurbish_tf/cc/refurbish/non_blocking_requests.h"
#include "refurbish_tf/cc/store/memory/memory_store.h"
#include "tests/cc/refurbish/plain_samples.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

constexpr uint32_t kEpochSamples = 300;

class EpochTest : public testing::Test {
 protected:
  EpochTest() {
    options_.reuse_factor = 3;
    schedule_ = std::make_shared<Schedule>(options_, kEpochSamples, kEpochSamples);
  }

  std::unique_ptr<Epoch> Begin(uint64_t number, bool random_access) {
    EpochParts parts;
    parts.number = number;
    parts.schedule = schedule_;
    parts.stage.random_access = random_access;
    parts.store = store_;
    parts.job = std::make_shared<Job>();
    parts.counters = std::make_shared<EpochCounters>();
    parts.alive = std::make_shared<std::atomic<int64_t>>(0);
    return std::make_unique<Epoch>(std::move(parts), schedule_->Epoch(number));
  }

  void Keep(const Epoch& epoch, uint32_t index) {
    if (!epoch.ToKeep(index)) return;
    store_->store().Put(index, epoch.PreparedGeneration(index), {tensorflow::Tensor(int64_t{index})});
  }

  // Reads an epoch by index. A source requests ahead. Workers claim one after the other, then prepare and keep samples
  // at the same time. Claims nothing more after `most` samples. Returns the samples in order.
  std::vector<uint32_t> Read(Epoch& epoch, uint32_t most = kEpochSamples) {
    std::mutex claims, mu;
    std::condition_variable changed;
    std::vector<uint32_t> asked;  // Requested by the source.
    size_t num_taken = 0;
    std::vector<uint32_t> came;
    const uint64_t input = epoch.NewInput();
    std::thread source([&] {
      for (size_t n = 0;; ++n) {
        const absl::StatusOr<size_t> index = epoch.Request(n, input);
        std::lock_guard<std::mutex> lock(mu);
        if (!index.ok()) break;
        asked.push_back(static_cast<uint32_t>(*index));
        changed.notify_all();
      }
    });
    const auto work = [&](int) {
      while (true) {
        std::vector<Place> places;
        {
          std::lock_guard<std::mutex> claim(claims);
          if (came.size() >= most || epoch.Next(&places) != Epoch::Step::kPlaces) return;
          for (const Place& place : places) {
            if (place.from == Place::From::kSource) {
              std::unique_lock<std::mutex> lock(mu);
              changed.wait(lock, [&] { return num_taken < asked.size(); });
              EXPECT_EQ(asked[num_taken++], *place.index);
            }
            came.push_back(*place.index);
            epoch.HandedOut(place.index);
          }
        }
        for (const Place& place : places) {
          if (place.from == Place::From::kSource) {
            Keep(epoch, *place.index);
          } else {
            EXPECT_EQ(*static_cast<const int64_t*>(place.sample[0].data()), *place.index);
          }
        }
      }
    };
    Threads(3, work).Join();
    epoch.Close();
    source.join();
    num_read_ += num_taken;
    return came;
  }

  ScheduleOptions options_;
  std::shared_ptr<const Schedule> schedule_;
  const std::shared_ptr<PlainSamples> store_ = std::make_shared<PlainSamples>();
  size_t num_read_ = 0;
};

TEST_F(EpochTest, ConcurrentThreadsReadEachSampleOnceInScheduleOrder) {
  for (uint64_t number = 0; number < 5; ++number) {
    num_read_ = 0;
    const EpochSchedule order = schedule_->Epoch(number);
    const std::vector<uint32_t> came = Read(*Begin(number, /*random_access=*/true));
    ASSERT_EQ(came.size(), kEpochSamples);
    for (uint32_t k = 0; k < kEpochSamples; ++k) EXPECT_EQ(came[k], order.At(k).index);
    EXPECT_EQ(num_read_, order.num_fresh());
  }
}

TEST_F(EpochTest, ResumesAtTheSavedPosition) {
  Read(*Begin(0, /*random_access=*/true));
  const EpochSchedule order = schedule_->Epoch(1);
  for (const uint32_t most : {1u, 17u, 150u, kEpochSamples}) {
    const auto epoch = Begin(1, /*random_access=*/true);
    std::vector<uint32_t> came = Read(*epoch, most);
    EpochPosition saved;
    epoch->Save(&saved);
    const auto resumed = Begin(1, /*random_access=*/true);
    resumed->Resume(saved);
    for (const uint32_t index : Read(*resumed)) came.push_back(index);
    ASSERT_EQ(came.size(), kEpochSamples);
    for (uint32_t k = 0; k < kEpochSamples; ++k) EXPECT_EQ(came[k], order.At(k).index);
  }
}

TEST_F(EpochTest, RequestsWaitForClaimsUntilTheEpochIsClosed) {
  Read(*Begin(0, /*random_access=*/true));
  // With samples of 1 MiB in the store, only a few are read ahead.
  for (uint32_t i = 0; i < kEpochSamples; ++i) {
    store_->store().Put(i, 0, {tensorflow::Tensor(tensorflow::DT_UINT8, {1 << 20})});
  }
  const auto epoch = Begin(1, /*random_access=*/true);
  const uint64_t input = epoch->NewInput();
  {
    const NonBlockingRequests does_not_wait;
    size_t n = 0;
    while (epoch->Request(n, input).ok()) ++n;
    EXPECT_TRUE(absl::IsUnavailable(epoch->Request(n, input).status()));
    EXPECT_LT(n, kEpochSamples / 3);
  }
  std::thread source([&] {
    size_t n = 0;
    while (epoch->Request(n, input).ok()) ++n;
  });
  std::vector<Place> places;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(epoch->Next(&places), Epoch::Step::kPlaces);
  epoch->Close();
  source.join();
  EXPECT_TRUE(absl::IsCancelled(epoch->Request(kEpochSamples, input).status()));
}

// A stream has its own order. A sample that was skipped because it was stored is read again if the store loses it.
TEST_F(EpochTest, StreamedSamplesComeOnceEvenIfAStoredOneIsLost) {
  for (uint64_t number = 0; number < 3; ++number) {
    const auto epoch = Begin(number, /*random_access=*/false);
    std::set<uint32_t> came;
    std::vector<Place> places;
    uint32_t num_places = 0;
    while (epoch->Next(&places) == Epoch::Step::kPlaces) {
      for (const Place& place : places) {
        if (place.new_input) epoch->ReadAnew();
        std::optional<uint32_t> index = place.index;
        if (place.from == Place::From::kSource) {
          Advance advance;
          while (!(advance = epoch->AdvanceStream()).wanted && !advance.at_end) {
          }
          ASSERT_TRUE(advance.wanted);
          index = advance.index;
          Keep(*epoch, *index);
        }
        EXPECT_TRUE(came.insert(*index).second) << *index;
        epoch->HandedOut(index);
        if (++num_places == kEpochSamples / 2) {
          for (uint32_t i = 0; i < kEpochSamples; i += 3) store_->store().Remove(i, /*evict=*/false);
        }
      }
    }
    EXPECT_EQ(came.size(), kEpochSamples);
  }
}

}  // namespace
}  // namespace refurbish_tf
