#include "refurbish_tf/cc/store/disk/disk_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "tests/cc/disk_store_testing.h"

namespace refurbish_tf {
namespace {

using DiskStoreTest = StoreDirectoryTest;

// Reads that fail when they are told to.
class FaultyReadQueue : public ReadQueue {
 public:
  explicit FaultyReadQueue(const std::atomic<bool>* failing)
      : queue_(ReadQueue::Create(8)), failing_(failing) {}
  void Start(Read* const* reads, size_t count) override {
    queue_->Start(reads, count);
  }
  int64_t Wait(Read* read) override {
    const int64_t bytes = queue_->Wait(read);
    return *failing_ ? -EIO : bytes;
  }

 private:
  const std::unique_ptr<ReadQueue> queue_;
  const std::atomic<bool>* const failing_;
};

// Reads before which something happens.
class HookedReadQueue : public ReadQueue {
 public:
  explicit HookedReadQueue(const std::function<void()>* before)
      : queue_(ReadQueue::Create(8)), before_(before) {}
  void Start(Read* const* reads, size_t count) override {
    const std::function<void()> before = *before_;
    if (before != nullptr) before();
    queue_->Start(reads, count);
  }
  int64_t Wait(Read* read) override { return queue_->Wait(read); }

 private:
  const std::unique_ptr<ReadQueue> queue_;
  const std::function<void()>* const before_;
};

// A system in which something happens, once, before a write or before a file is
// locked: what another process may do at that moment.
class HookedEnv : public StoreEnv {
 public:
  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    DoOnce(&before_write);
    return StoreEnv::Write(fd, offset, std::move(parts));
  }
  bool TryLock(int fd) override {
    DoOnce(&before_lock);
    return StoreEnv::TryLock(fd);
  }

  // Set while the writer does nothing.
  std::function<void()> before_write;
  std::function<void()> before_lock;

 private:
  static void DoOnce(std::function<void()>* hook) {
    std::function<void()> once;
    once.swap(*hook);
    if (once != nullptr) once();
  }
};

TEST_F(DiskStoreTest, GetsWhatWasPutBeforeAndAfterItIsWrittenAndInTheNextRun) {
  const size_t sizes[] = {0, 1, 3000, 16 << 10, 150'000, 3'000'000};
  {
    auto store = Open();
    for (uint64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(Put(*store, i, i, Content(i, i, sizes[i])), PutResult::kStored);
      EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    }
    store->Flush();
    for (uint64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    }
  }
  auto store = Open();
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    EXPECT_EQ(store->StoredGeneration(i), i);
  }
  EXPECT_EQ(Get(*store, 6), "absent");
  const DiskStore::Counts counts = store->Stats();
  EXPECT_EQ(counts.store.entries, 6);
  EXPECT_EQ(counts.store.hits, 6);
  EXPECT_EQ(counts.store.misses, 1);
  EXPECT_EQ(counts.corrupt, 0);
  EXPECT_EQ(counts.foreign_hits, 6);
}

TEST_F(DiskStoreTest, WhatIsWantedIsARangeOfGenerations) {
  auto store = Open();
  Put(*store, 7, 3, "three");
  for (const bool written : {false, true}) {
    EXPECT_EQ(Get(*store, 7, AtLeast(2)), "three");
    EXPECT_EQ(Get(*store, 7, {3, 3}), "three");
    EXPECT_EQ(Get(*store, 7, AtLeast(4)), "absent");
    EXPECT_EQ(Get(*store, 7, {2, 2}), "absent");
    EXPECT_TRUE(store->Contains(7, {3, 3}));
    EXPECT_FALSE(store->Contains(7, AtLeast(4)));
    EXPECT_EQ(Put(*store, 7, 2, "two"), PutResult::kNewerKept);
    if (!written) store->Flush();
  }
  EXPECT_EQ(Put(*store, 7, 4, "four"), PutResult::kStored);
  EXPECT_EQ(Get(*store, 7, AtLeast(4)), "four");
  store->Flush();
  EXPECT_EQ(Get(*store, 7, {3, 3}), "absent");
  EXPECT_EQ(store->Stats().store.evictions, 1);
}

TEST_F(DiskStoreTest, RemoveAndClear) {
  auto store = Open();
  for (const bool written : {false, true}) {
    Put(*store, 1, 0, "one");
    Put(*store, 2, 0, "two");
    if (written) store->Flush();
    EXPECT_TRUE(store->Remove(1, false));
    EXPECT_FALSE(store->Remove(1, false));
    EXPECT_EQ(Get(*store, 1), "absent");
    EXPECT_EQ(Get(*store, 2), "two");
    store->Flush();
    EXPECT_EQ(Get(*store, 1), "absent");
    EXPECT_EQ(store->Stats().store.entries, 1);
    store->Clear();
    EXPECT_EQ(Get(*store, 2), "absent");
    EXPECT_EQ(store->Stats().store.entries, 0);
    EXPECT_EQ(store->Stats().store.bytes, 0);
    EXPECT_EQ(store->Stats().disk_bytes, 0);
  }
  EXPECT_EQ(store->Stats().store.evictions, 0);
}

TEST_F(DiskStoreTest, ReadAheadGetsWhatGetGets) {
  auto store = Open();
  for (uint64_t i = 0; i < 500; ++i) Put(*store, i, 1, Content(i, 1, 100 * i));
  store->Flush();
  Put(*store, 3, 2, "newer, in memory");
  store->Remove(5, false);
  DiskReadAhead ahead(store.get());
  uint64_t started = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    std::vector<WantedSample> wanted;
    // Every third one is not started.
    for (size_t room = ahead.Room(); room > 0 && started < 500; --room) {
      if (started % 3 != 0) wanted.push_back({started, started, AtLeast(1)});
      ++started;
    }
    ahead.Start(wanted);
    if (i == 100) store->Remove(101, false);
    if (i == 200) Put(*store, 201, 5, "newest");
    RecordBuffer record;
    const bool hit = ahead.Get({i, i, AtLeast(1)}, &record);
    const std::string content = hit ? std::string(record.payload(), record.payload_size()) : "absent";
    EXPECT_EQ(content, i == 3                ? "newer, in memory"
                       : i == 5 || i == 101  ? "absent"
                       : i == 201            ? content
                                             : Content(i, 1, 100 * i));
  }
  EXPECT_EQ(store->Stats().store.hits, 498);
}

TEST_F(DiskStoreTest, TwoProcessesSeeEachOther) {
  auto one = Open();
  auto two = Open();
  Put(*one, 1, 0, "of one");
  Put(*two, 2, 0, "of two");
  one->Flush();
  two->Flush();
  EXPECT_EQ(Get(*one, 2), "of two");
  EXPECT_EQ(Get(*two, 1), "of one");
  EXPECT_EQ(two->Stats().store.entries, 2);
  EXPECT_EQ(two->Stats().foreign_hits, 1);
  Put(*two, 1, 1, "of two, newer");
  two->Flush();
  EXPECT_EQ(Get(*one, 1, AtLeast(1)), "of two, newer");
  EXPECT_TRUE(one->Remove(1, false));
  EXPECT_EQ(Get(*two, 1), "absent");
  auto overwriting = DiskStore::Open(directory_, [] {
    DiskStoreOptions options;
    options.overwrite = true;
    return options;
  }());
  EXPECT_TRUE(absl::IsFailedPrecondition(overwriting.status()));
  EXPECT_EQ(Get(*two, 2), "of two");
}

// Balanced eviction of r = 2: each epoch puts newer ones for every other sample,
// in a random order. The first epoch's segments hold both kinds.
TEST_F(DiskStoreTest, SpaceAndWriteAmplificationAreBounded) {
  for (const size_t size : {3'000, 40'000}) {
    DiskStoreOptions options;
    options.overwrite = true;
    auto store = Open(std::move(options));
#if defined(__SANITIZE_THREAD__)
    std::vector<uint64_t> order(20'000'000 / size);
#else
    std::vector<uint64_t> order(60'000'000 / size);
#endif
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    double most = 0;
    for (Generation generation = 0; generation < 6; ++generation) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i = 0; i < order.size(); ++i) {
        const uint64_t index = order[i];
        if (generation > 0 && index % 2 != generation % 2) continue;
        Put(*store, index, generation, Content(index, generation, size));
        if (generation > 0 && i % 100 == 0) {
          const DiskStore::Counts counts = store->Stats();
          most = std::max(most, 1.0 * counts.disk_bytes / counts.store.bytes);
        }
      }
    }
    store->Flush();
    const DiskStore::Counts counts = store->Stats();
    EXPECT_EQ(counts.store.entries, static_cast<int64_t>(order.size()));
    EXPECT_LT(most, 2) << size;
    const double amplification =
        1.0 * (counts.bytes_put + counts.bytes_moved) / counts.bytes_put;
    EXPECT_LT(amplification, 2) << size;
    // The space of large records is given back one by one.
    EXPECT_EQ(counts.compactions > 0, size < kLargeRecord);
    for (const uint64_t index : order) {
      const Generation generation = index % 2 == 1 ? 5 : 4;
      ASSERT_EQ(Get(*store, index), Content(index, generation, size)) << index;
    }
  }
}

// Four jobs, each in an order of its own, each putting what the others have not
// yet put.
TEST_F(DiskStoreTest, FourProcessesKeepTheSameBounds) {
  constexpr size_t kSamples = 8'000;
  constexpr size_t kSize = 3'000;
  struct Process {
    std::unique_ptr<DiskStore> store;
    std::vector<uint64_t> order;
    std::mt19937 random;
  };
  std::vector<Process> processes(4);
  for (size_t i = 0; i < processes.size(); ++i) {
    processes[i].store = Open();
    processes[i].order.resize(kSamples);
    std::iota(processes[i].order.begin(), processes[i].order.end(), 0);
    processes[i].random.seed(i);
  }
  double most = 0;
  for (Generation generation = 0; generation < 6; ++generation) {
    for (Process& process : processes) {
      std::shuffle(process.order.begin(), process.order.end(), process.random);
    }
    for (size_t i = 0; i < kSamples; ++i) {
      for (Process& process : processes) {
        const uint64_t index = process.order[i];
        if (generation > 0 && index % 2 != generation % 2) continue;
        if (process.store->Contains(index, AtLeast(generation))) continue;
        Put(*process.store, index, generation,
            Content(index, generation, kSize));
      }
      if (generation > 0 && i % 100 == 0) {
        const DiskStore::Counts counts = processes[0].store->Stats();
        most = std::max(most, 1.0 * counts.disk_bytes / counts.store.bytes);
      }
    }
  }
  double put = 0;
  double moved = 0;
  for (Process& process : processes) {
    process.store->Flush();
    put += process.store->Stats().bytes_put;
    moved += process.store->Stats().bytes_moved;
  }
  RecordProperty("space", std::to_string(most));
  RecordProperty("amplification", std::to_string((put + moved) / put));
  EXPECT_LT(most, 2);
  EXPECT_LT((put + moved) / put, 2);
  const DiskStore::Counts counts = processes[0].store->Stats();
  EXPECT_EQ(counts.store.entries, kSamples);
  EXPECT_EQ(counts.store.bytes, kSamples * RecordSpace(32 + kSize));
  for (uint64_t index = 0; index < kSamples; ++index) {
    ASSERT_EQ(Get(*processes[index % 4].store, index),
              Content(index, index % 2 == 1 ? 5 : 4, kSize));
  }
}

TEST_F(DiskStoreTest, WhatIsInMemoryIsReplacedByWhatIsNewerOnly) {
  auto store = Open();
  Put(*store, 1, 2, "two");
  EXPECT_EQ(Put(*store, 1, 1, "one"), PutResult::kNewerKept);
  EXPECT_EQ(Get(*store, 1), "two");
  EXPECT_EQ(Put(*store, 1, 3, "three"), PutResult::kStored);
  EXPECT_EQ(Get(*store, 1), "three");
  // A large one is written at once.
  const std::string large = Content(1, 4, 50'000);
  EXPECT_EQ(Put(*store, 1, 4, large), PutResult::kStored);
  EXPECT_EQ(store->StoredGeneration(1), 4);
  EXPECT_EQ(Get(*store, 1), large);
  store->Flush();
  EXPECT_EQ(Get(*store, 1), large);
  EXPECT_EQ(store->Stats().store.entries, 1);
  EXPECT_EQ(store->Stats().store.bytes, RecordSpace(32 + 50'000));
}

TEST_F(DiskStoreTest, WhatCannotBeStoredIsNot) {
  auto store = Open();
  EXPECT_EQ(Put(*store, 1, kNoGeneration - 1, "last"), PutResult::kStored);
  EXPECT_EQ(Put(*store, 1, kNoGeneration, "none"), PutResult::kFailed);
  EXPECT_EQ(Put(*store, Index::kMaxSamples, 0, "far"), PutResult::kFailed);
  EXPECT_EQ(Put(*store, ~uint64_t{0}, 0, "farther"), PutResult::kFailed);
  EXPECT_FALSE(store->Contains(~uint64_t{0}, kAny));
  EXPECT_FALSE(store->Remove(~uint64_t{0}, false));
  const iovec empty = {nullptr, 0};
  EXPECT_EQ(store->Put(2, 0, &empty, 1), PutResult::kStored);
  EXPECT_EQ(store->Put(3, 0, nullptr, 0), PutResult::kStored);
  for (const bool written : {false, true}) {
    if (written) store->Flush();
    EXPECT_EQ(Get(*store, 1), "last");
    EXPECT_EQ(Get(*store, 2), "");
    EXPECT_EQ(Get(*store, 3), "");
    EXPECT_EQ(store->StoredGeneration(1), kNoGeneration - 1);
  }
  // Not touched: it is too large to be looked at.
  std::vector<char> byte(1);
  const iovec huge = {byte.data(), kMaxRecord};
  EXPECT_EQ(store->Put(4, 0, &huge, 1), PutResult::kFailed);
  EXPECT_EQ(store->Stats().failed_writes, 0);
}

// The limit ------------------------------------------------------------------

class DiskStoreLimitTest : public DiskStoreTest {
 protected:
  static DiskStoreOptions Limit(int64_t bytes) {
    DiskStoreOptions options;
    options.max_bytes = bytes;
    return options;
  }

  // By what can be got.
  static int64_t LiveBytes(DiskStore& store, uint64_t samples) {
    int64_t bytes = 0;
    for (uint64_t i = 0; i < samples; ++i) {
      RecordBuffer record;
      if (store.Get(i, kAny, &record)) {
        bytes += RecordSpace(sizeof(RecordHeader) + record.payload_size());
      }
    }
    return bytes;
  }
};

TEST_F(DiskStoreLimitTest, AsManyAsTheCapacityFitAndOneMoreDoesNot) {
  for (const size_t size : {1'000, 20'000}) {
    std::filesystem::remove_all(directory_);
    const int64_t space = RecordSpace(sizeof(RecordHeader) + size);
    auto store = Open(Limit(10 * space + space / 2));
    EXPECT_EQ(store->max_bytes() / space, 10);
    // What takes the place of an older one needs no room, wherever that is.
    for (Generation generation = 0; generation < 4; ++generation) {
      for (uint64_t i = 0; i < 10; ++i) {
        EXPECT_EQ(Put(*store, i, generation, Content(i, generation, size)),
                  PutResult::kStored);
      }
      EXPECT_EQ(Put(*store, 10, generation, Content(10, generation, size)),
                PutResult::kNoRoom);
      EXPECT_EQ(store->Stats().store.entries, 10);
      EXPECT_EQ(store->Stats().store.bytes, 10 * space);
      if (generation % 2 == 1) store->Flush();
    }
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Get(*store, i), Content(i, 3, size));
    // A larger one is not kept, and the older one is gone.
    EXPECT_EQ(Put(*store, 3, 4, Content(3, 4, 2 * size)), PutResult::kNoRoom);
    EXPECT_EQ(Get(*store, 3), "absent");
    EXPECT_EQ(Put(*store, 10, 4, Content(10, 4, size)), PutResult::kStored);
    EXPECT_EQ(store->Stats().store.bytes, 10 * space);
  }
}

TEST_F(DiskStoreLimitTest, IsNotExceededByThreadsAndProcessesTogether) {
  static constexpr uint64_t kSamples = 200;
  static constexpr size_t kSizes[] = {500, 3'000, 18'000};
  constexpr int64_t kLimit = 400'000;
  std::vector<std::unique_ptr<DiskStore>> stores;
  for (int i = 0; i < 2; ++i) stores.push_back(Open(Limit(kLimit)));
  std::vector<std::thread> threads;
  std::atomic<int64_t> most{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&stores, &most, i] {
      DiskStore& store = *stores[i % 2];
      std::mt19937 random(i);
      for (int k = 0; k < 800; ++k) {
        const uint64_t index = random() % kSamples;
        const Generation generation = k / 100;
        const size_t size = kSizes[random() % 3];
        Put(store, index, generation, Content(index, generation, size));
        if (random() % 10 == 0) store.Remove(random() % kSamples, true);
        // What is counted is at least what is live.
        most = std::max<int64_t>(most, store.state().bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& store : stores) store->Flush();
  EXPECT_LE(most, kLimit);
  const int64_t live = LiveBytes(*stores[0], kSamples);
  EXPECT_LE(live, kLimit);
  EXPECT_GT(live, kLimit / 2);
  EXPECT_EQ(stores[0]->Stats().store.bytes, live);
}

// Wrong counts of a process that died, or a damaged file.
TEST_F(DiskStoreLimitTest, CountsAreCorrectedByWhoeverIsAlone) {
  const int64_t space = RecordSpace(sizeof(RecordHeader) + 1'000);
  {
    auto store = Open(Limit(10 * space));
    for (uint64_t i = 0; i < 5; ++i) Put(*store, i, 0, Content(i, 0, 1'000));
    store->Flush();
    store->state().Add(77, std::numeric_limits<int64_t>::max() - 10 * space);
  }
  auto store = Open(Limit(10 * space));
  for (uint64_t i = 5; i < 10; ++i) {
    EXPECT_EQ(Put(*store, i, 0, Content(i, 0, 1'000)), PutResult::kStored);
  }
  EXPECT_EQ(store->Stats().store.entries, 10);
  EXPECT_EQ(store->Stats().store.bytes, 10 * space);
}

// What comes between ---------------------------------------------------------

TEST_F(DiskStoreTest, ASampleReplacedWhileItIsReadIsReadAgain) {
  for (const size_t size : {300, 30'000}) {
    std::filesystem::remove_all(directory_);
    auto other = Open();
    std::function<void()> before_read;
    DiskStoreOptions options;
    options.read_queue = std::make_unique<HookedReadQueue>(&before_read);
    auto store = Open(std::move(options));
    Put(*other, 1, 1, Content(1, 1, size));
    other->Flush();
    before_read = [&] {
      before_read = nullptr;
      Put(*other, 1, 2, Content(1, 2, size));
      other->Flush();
      // Deletes the segment of the old one.
      other->Put(2, 0, nullptr, 0);
      other->Flush();
      other->Compact();
    };
    const std::string content = Get(*store, 1);
    EXPECT_TRUE(content == Content(1, 1, size) || content == Content(1, 2, size));
    EXPECT_EQ(Get(*store, 1), Content(1, 2, size));
    EXPECT_EQ(store->Stats().corrupt, 0);
    EXPECT_EQ(store->Stats().store.misses, 0);
  }
}

// Of what is written by others between the look and the leap.
TEST_F(DiskStoreTest, WhatIsMovedTakesNothingsPlace) {
  constexpr size_t kSize = 3'000;
  for (const bool removed : {false, true}) {
    std::filesystem::remove_all(directory_);
    auto other = Open();
    HookedEnv env;
    DiskStoreOptions options;
    options.small_segment = 32 << 10;
    options.write_buffer = 16 << 10;
    options.env = &env;
    auto store = Open(std::move(options));
    // A few segments, too little for the background thread. All but a sample of
    // the first is dead.
    for (uint64_t i = 0; i <= 40; ++i) Put(*store, i, 0, Content(i, 0, kSize));
    store->Flush();
    for (uint64_t i = 1; i <= 40; ++i) store->Remove(i, false);
    env.before_write = [&] {
      if (removed) {
        other->Remove(0, false);
      } else {
        Put(*other, 0, 1, Content(0, 1, kSize));
        other->Flush();
      }
    };
    store->Compact();
    EXPECT_EQ(env.before_write, nullptr);
    EXPECT_EQ(Get(*store, 0), removed ? "absent" : Content(0, 1, kSize));
    EXPECT_EQ(store->Stats().store.entries, removed ? 0 : 1);
  }
}

// Another process may adopt a segment that has been made and is not yet locked.
TEST_F(DiskStoreTest, ANewSegmentIsNotWrittenOverWhatAnotherHasPutThere) {
  HookedEnv env;
  DiskStoreOptions options;
  options.env = &env;
  auto store = Open(std::move(options));
  env.before_lock = [&] {
    auto other = Open();
    Put(*other, 1, 0, "of the other");
  };
  Put(*store, 2, 0, "own");
  store->Flush();
  EXPECT_EQ(env.before_lock, nullptr);
  EXPECT_EQ(Get(*store, 1), "of the other");
  EXPECT_EQ(Get(*store, 2), "own");
}

TEST_F(DiskStoreTest, WhatIsInMemoryIsWrittenAtTheEnd) {
  {
    DiskStoreOptions options;
    options.write_delay_ms = 1'000'000;
    Put(*Open(std::move(options)), 1, 0, "one");
  }
  EXPECT_EQ(Get(*Open(), 1), "one");
}

// What fails -----------------------------------------------------------------

TEST_F(DiskStoreTest, WhatCannotBeReadIsAbsentAndMayBePutAgain) {
  std::atomic<bool> failing{false};
  DiskStoreOptions options;
  options.read_queue = std::make_unique<FaultyReadQueue>(&failing);
  auto store = Open(std::move(options));
  const auto size = [](uint64_t i) { return i % 2 == 0 ? 3'000 : 30'000; };
  for (uint64_t i = 0; i < 20; ++i) {
    Put(*store, i, 1, Content(i, 1, size(i)));
  }
  store->Flush();
  DiskReadAhead ahead(store.get());
  ahead.Start({{0, 0, AtLeast(1)}, {1, 1, AtLeast(1)}});
  failing = true;
  testing::internal::CaptureStderr();
  RecordBuffer record;
  EXPECT_FALSE(ahead.Get({0, 0, AtLeast(1)}, &record));
  EXPECT_FALSE(ahead.Get({1, 1, AtLeast(1)}, &record));
  for (uint64_t i = 2; i < 10; ++i) EXPECT_EQ(Get(*store, i), "absent");
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_EQ(store->Stats().corrupt, 10);
  EXPECT_EQ(store->Stats().store.misses, 10);
  EXPECT_EQ(store->Stats().store.entries, 10);
  failing = false;
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(store->Contains(i, AtLeast(1)), i >= 10);
    EXPECT_EQ(Put(*store, i, 1, Content(i, 1, size(i))), PutResult::kStored);
    EXPECT_EQ(Get(*store, i), Content(i, 1, size(i)));
  }
  EXPECT_EQ(store->Stats().corrupt, 10);
  EXPECT_EQ(store->Stats().store.entries, 20);
}

TEST_F(DiskStoreTest, WithoutAFreeDescriptorNothingIsLost) {
  auto one = Open();
  auto two = Open();
  for (uint64_t i = 0; i < 4; ++i) Put(*one, i, 0, Content(i, 0, 9'000 * i));
  one->Flush();
  testing::internal::CaptureStderr();
  const int free_fd = dup(0);
  close(free_fd);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none = {static_cast<rlim_t>(free_fd), limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  std::vector<std::string> contents;
  for (uint64_t i = 0; i < 4; ++i) contents.push_back(Get(*two, i));
  Put(*two, 7, 0, Content(7, 0, 50'000));
  two->Flush();
  EXPECT_EQ(Get(*two, 7), "absent");
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("open files"),
            std::string::npos);
  EXPECT_THAT(contents, testing::Each("absent"));
  EXPECT_EQ(two->Stats().corrupt, 0);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Get(*two, i), Content(i, 0, 9'000 * i));
  }
  EXPECT_EQ(Put(*two, 7, 0, Content(7, 0, 50'000)), PutResult::kStored);
}

// The space of a deleted file is free when the last descriptor is closed.
TEST_F(DiskStoreTest, DeletedSegmentsAreNotHeldOpen) {
  const auto deleted_but_open = [this] {
    int count = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string name = std::filesystem::read_symlink(fd, error).string();
      count += name.find(directory_) == 0 &&
               name.find("(deleted)") != std::string::npos;
    }
    return count;
  };
  auto one = Open();
  auto two = Open();
  Put(*one, 1, 0, Content(1, 0, 20'000));
  one->Flush();
  EXPECT_EQ(Get(*two, 1), Content(1, 0, 20'000));
  one->Clear();
  EXPECT_EQ(deleted_but_open(), 1);
  two->Compact();
  EXPECT_EQ(deleted_but_open(), 0);
  // Read by two, then adopted by it.
  Put(*one, 2, 0, Content(2, 0, 20'000));
  one->Flush();
  EXPECT_EQ(Get(*two, 2), Content(2, 0, 20'000));
  one.reset();
  two->Compact();
  two->Clear();
  EXPECT_EQ(deleted_but_open(), 0);
}

// Everything at once, for the thread sanitizer and for what comes out ---------

TEST_F(DiskStoreTest, ReadersWritersAndCompactionTogether) {
  constexpr uint64_t kSamples = 300;
  constexpr Generation kGenerations = 40;
  const auto size = [](uint64_t index) -> size_t {
    return index % 10 == 0 ? 20'000 + index : 100 + 9 * index;
  };
  std::vector<std::unique_ptr<DiskStore>> stores;
  for (int i = 0; i < 2; ++i) {
    DiskStoreOptions options;
    options.small_segment = 64 << 10;
    options.large_segment = 256 << 10;
    options.write_buffer = 8 << 10;
    options.write_delay_ms = 1;
    stores.push_back(Open(std::move(options)));
  }
  std::atomic<bool> writing{true};
  std::atomic<int> wrong{0};
  std::atomic<int64_t> right{0};
  const auto check = [&](uint64_t index, const RecordBuffer& record) {
    const std::string expected =
        Content(index, record.header().generation, size(index));
    const bool same = record.header().index == index &&
                      std::string(record.payload(), record.payload_size()) ==
                          expected;
    right += same;
    wrong += !same;
  };
  std::vector<std::thread> writers;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    DiskStore& store = *stores[i];
    writers.emplace_back([&store, &size, i] {
      std::mt19937 random(i);
      for (Generation generation = 0; generation < kGenerations; ++generation) {
        for (uint64_t k = 0; k < kSamples; ++k) {
          const uint64_t index = random() % kSamples;
          Put(store, index, generation, Content(index, generation, size(index)));
          if (k % 8 == 0) store.Remove(random() % kSamples, k % 16 == 0);
          if (k % 64 == 0) store.Flush();
        }
      }
    });
    others.emplace_back([&, i] {
      std::mt19937 random(100 + i);
      uint64_t ticket = 0;
      while (writing) {
        DiskReadAhead ahead(stores[i].get());
        std::vector<WantedSample> wanted;
        for (size_t room = ahead.Room(); room > 0; --room) {
          wanted.push_back({ticket++, random() % kSamples, kAny});
        }
        ahead.Start(wanted);
        for (const auto& sample : wanted) {
          RecordBuffer record;
          if (sample.ticket % 5 != 0 && ahead.Get(sample, &record)) {
            check(sample.index, record);
          }
        }
      }
    });
    others.emplace_back([&, i] {
      DiskStore& store = *stores[i];
      std::mt19937 random(200 + i);
      while (writing) {
        const uint64_t index = random() % kSamples;
        RecordBuffer record;
        if (store.Get(index, kAny, &record)) check(index, record);
        store.Contains(index, AtLeast(2));
        store.StoredGeneration(index);
        if (index % 16 == 0) store.Stats();
        if (index % 64 == 0) store.Compact();
      }
    });
  }
  for (std::thread& thread : writers) thread.join();
  writing = false;
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(right, 0);
  int64_t entries = 0;
  for (auto& store : stores) {
    store->Flush();
    EXPECT_EQ(store->Stats().corrupt, 0);
    EXPECT_EQ(store->Stats().failed_writes, 0);
  }
  for (uint64_t i = 0; i < kSamples; ++i) entries += Get(*stores[0], i) != "absent";
  EXPECT_EQ(stores[1]->Stats().store.entries, entries);
  EXPECT_EQ(stores[0]->Verify(), std::make_pair(entries, int64_t{0}));
}

// Settings -------------------------------------------------------------------

using SettingsTest = StoreDirectoryTest;

TEST_F(SettingsTest, AgreeAddAndDiffer) {
  {
    auto store = Open();
    EXPECT_TRUE(store->settings().empty());
    EXPECT_TRUE(store->Agree({{"r", "3"}, {"seed", "7"}}).ok());
    EXPECT_TRUE(store->Agree({{"r", "3"}}).ok());
    EXPECT_TRUE(store->Agree({{"version", "two\nlines \\n of it\\"}}).ok());
  }
  auto store = Open();
  const Settings expected = {
      {"r", "3"}, {"seed", "7"}, {"version", "two\nlines \\n of it\\"}};
  EXPECT_EQ(store->settings(), expected);
  EXPECT_TRUE(store->Agree(expected).ok());
  const absl::Status status =
      store->Agree({{"r", "4"}, {"seed", "8"}, {"spec", "uint8"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(), "r is 4, but it was 3; seed is 8, but it was 7");
  // Nothing of it was taken over.
  EXPECT_EQ(store->settings(), expected);
  EXPECT_EQ(Open()->settings(), expected);
}

TEST_F(SettingsTest, OfSeveralAtOnceOneIsAgreedOn) {
  constexpr int kSettings = 100;
  std::vector<std::unique_ptr<DiskStore>> stores;
  for (int i = 0; i < 4; ++i) stores.push_back(Open());
  std::promise<void> begin;
  std::shared_future<void> begun(begin.get_future());
  std::atomic<int> agreed[kSettings] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&agreed, begun, store = stores[i].get(), i] {
      begun.wait();
      for (int k = 0; k < kSettings; ++k) {
        agreed[k] += store->Agree({{std::to_string(k), std::to_string(i)}}).ok();
      }
    });
  }
  begin.set_value();
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : agreed) EXPECT_EQ(count, 1);
  EXPECT_EQ(Open()->settings().size(), kSettings);
}

}  // namespace
}  // namespace refurbish_tf
