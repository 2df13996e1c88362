#include "refurbish_tf/cc/store/disk/disk_store.h"

#include <sys/uio.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

using DiskStoreTest = StoreDirectoryTest;

TEST_F(DiskStoreTest, GetsSamplesBeforeAndAfterTheyAreWrittenAndInTheNextRun) {
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
  const SampleMapStats stats = store->Stats();
  EXPECT_EQ(stats.entries, 6);
  EXPECT_EQ(stats.hits, 6);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(store->counts().corrupt, 0);
  EXPECT_EQ(store->counts().from_other_jobs, 6);
}

TEST_F(DiskStoreTest, GetsOnlyGenerationsInTheWantedRange) {
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
  EXPECT_EQ(store->Stats().evictions, 1);
}

TEST_F(DiskStoreTest, RemoveAndClearDeleteSamples) {
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
    EXPECT_EQ(store->Stats().entries, 1);
    store->Clear();
    EXPECT_EQ(Get(*store, 2), "absent");
    EXPECT_EQ(store->Stats().entries, 0);
    EXPECT_EQ(store->Stats().bytes, 0);
    EXPECT_EQ(store->DiskUsage().disk_bytes, 0);
  }
  EXPECT_EQ(store->Stats().evictions, 0);
}

TEST_F(DiskStoreTest, ReadAheadReturnsTheSameSamplesAsGet) {
  auto store = Open();
  for (uint64_t i = 0; i < 500; ++i) Put(*store, i, 1, Content(i, 1, 100 * i));
  store->Flush();
  Put(*store, 3, 2, "newer, in memory");
  store->Remove(5, false);
  DiskReadAhead ahead(store.get());
  uint64_t started = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    std::vector<WantedSample> wanted;
    // Every third read is not started.
    for (size_t room = ahead.Room(); room > 0 && started < 500; --room) {
      if (started % 3 != 0) wanted.push_back({started, started, AtLeast(1)});
      ++started;
    }
    ahead.Want(wanted);
    ahead.Start();
    if (i == 100) store->Remove(101, false);
    if (i == 200) Put(*store, 201, 5, "newest");
    RecordBuffer record;
    const bool hit = ahead.Get({i, i, AtLeast(1)}, &record);
    const std::string content = hit ? std::string(record.payload(), record.payload_size()) : "absent";
    EXPECT_EQ(content, i == 3               ? "newer, in memory"
                       : i == 5 || i == 101 ? "absent"
                       : i == 201           ? content
                                            : Content(i, 1, 100 * i));
  }
  EXPECT_EQ(store->Stats().hits, 498);
}

TEST_F(DiskStoreTest, TwoProcessesSeeEachOthersSamples) {
  auto one = Open();
  auto two = Open();
  Put(*one, 1, 0, "of one");
  Put(*two, 2, 0, "of two");
  one->Flush();
  two->Flush();
  EXPECT_EQ(Get(*one, 2), "of two");
  EXPECT_EQ(Get(*two, 1), "of one");
  EXPECT_EQ(two->Stats().entries, 2);
  EXPECT_EQ(two->counts().from_other_jobs, 1);
  Put(*two, 1, 1, "of two, newer");
  two->Flush();
  EXPECT_EQ(Get(*one, 1, AtLeast(1)), "of two, newer");
  EXPECT_TRUE(one->Remove(1, false));
  EXPECT_EQ(Get(*two, 1), "absent");
  auto overwriting = DiskStore::Open(directory_, With(&DiskStoreOptions::overwrite, true));
  EXPECT_TRUE(absl::IsFailedPrecondition(overwriting.status()));
  EXPECT_EQ(Get(*two, 2), "of two");
}

// A file system that only frees whole blocks of this size.
class BlockEnv : public StoreEnv {
 public:
  explicit BlockEnv(uint64_t block) : block_(block) {}
  void Free(int fd, uint64_t offset, uint64_t size) override {
    const uint64_t begin = (offset + block_ - 1) / block_ * block_;
    const uint64_t end = (offset + size) / block_ * block_;
    if (begin < end) StoreEnv::Free(fd, begin, end - begin);
  }

 private:
  const uint64_t block_;
};

// Balanced eviction with r = 2: each epoch puts a newer generation of every other sample, in random order. The first
// epoch's segments hold both halves.
TEST_F(DiskStoreTest, SpaceAndWriteAmplificationAreBounded) {
  // On a machine with pages of 64 KiB, file systems may be able to free only whole pages.
  constexpr uint64_t kPage = 4096, kLargePage = 64 << 10;
  for (const auto& [size, block] :
       {std::pair<size_t, uint64_t>(3'000, kPage), {40'000, kPage}, {40'000, kLargePage}, {150'000, kLargePage}}) {
    BlockEnv env(block);
    DiskStoreOptions options;
    options.env = &env;
    options.overwrite = true;
    auto store = Open(std::move(options));
    std::vector<uint64_t> order(20'000'000 / size);
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
          store->Flush();  // Otherwise the lag of the writing thread would count.
          const SampleMapStats stats = store->Stats();
          most = std::max(most, 1.0 * store->DiskUsage().disk_bytes / stats.bytes);
        }
      }
    }
    store->Flush();
    const SampleMapStats stats = store->Stats();
    EXPECT_EQ(stats.entries, static_cast<int64_t>(order.size()));
    EXPECT_LT(most, block == kPage ? 1.8 : 2.5) << size << ", " << block;
    const double amplification =
        1.0 * (store->counts().bytes_put + store->counts().bytes_moved) / store->counts().bytes_put;
    EXPECT_LT(amplification, 2) << size << ", " << block;
    // Large records need no compaction: their space is freed one by one, unless they share blocks.
    EXPECT_EQ(store->counts().compactions > 0, size < kLargeRecord || size < block);
    for (const uint64_t index : order) {
      const Generation generation = index % 2 == 1 ? 5 : 4;
      ASSERT_EQ(Get(*store, index), Content(index, generation, size)) << index;
    }
  }
}

// Four jobs, each in its own order. Each puts the samples that the others have not put yet.
TEST_F(DiskStoreTest, SpaceAndWriteAmplificationAreBoundedForFourProcesses) {
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
  double most_ahead = 0;
  for (Generation generation = 0; generation < 6; ++generation) {
    for (Process& process : processes) {
      std::shuffle(process.order.begin(), process.order.end(), process.random);
    }
    for (size_t i = 0; i < kSamples; ++i) {
      for (Process& process : processes) {
        const uint64_t index = process.order[i];
        if (generation > 0 && index % 2 != generation % 2) continue;
        if (process.store->Contains(index, AtLeast(generation))) continue;
        Put(*process.store, index, generation, Content(index, generation, kSize));
      }
      if (generation > 0 && i % 100 == 0) {
        // The files are larger while the threads that write and compact lag behind, as on a busy machine.
        const bool flushed = i % 500 == 0;
        if (flushed) {
          for (Process& process : processes) process.store->Flush();
        }
        const SampleMapStats stats = processes[0].store->Stats();
        double& greatest = flushed ? most : most_ahead;
        greatest = std::max(greatest, 1.0 * processes[0].store->DiskUsage().disk_bytes / stats.bytes);
      }
    }
  }
  double put = 0;
  double moved = 0;
  for (Process& process : processes) {
    process.store->Flush();
    put += process.store->counts().bytes_put;
    moved += process.store->counts().bytes_moved;
  }
  RecordProperty("space", std::to_string(most));
  RecordProperty("amplification", std::to_string((put + moved) / put));
  EXPECT_LT(most, 2);
  EXPECT_LT(most_ahead, 3);
  EXPECT_LT((put + moved) / put, 2);
  const SampleMapStats stats = processes[0].store->Stats();
  EXPECT_EQ(stats.entries, kSamples);
  EXPECT_EQ(stats.bytes, kSamples * RecordSpace(32 + kSize));
  for (uint64_t index = 0; index < kSamples; ++index) {
    ASSERT_EQ(Get(*processes[index % 4].store, index), Content(index, index % 2 == 1 ? 5 : 4, kSize));
  }
}

TEST_F(DiskStoreTest, OnlyNewerGenerationsReplaceBufferedSamples) {
  auto store = Open();
  Put(*store, 1, 2, "two");
  EXPECT_EQ(Put(*store, 1, 1, "one"), PutResult::kNewerKept);
  EXPECT_EQ(Get(*store, 1), "two");
  EXPECT_EQ(Put(*store, 1, 3, "three"), PutResult::kStored);
  EXPECT_EQ(Get(*store, 1), "three");
  // A large sample is written immediately.
  const std::string large = Content(1, 4, 50'000);
  EXPECT_EQ(Put(*store, 1, 4, large), PutResult::kStored);
  EXPECT_EQ(store->StoredGeneration(1), 4);
  EXPECT_EQ(Get(*store, 1), large);
  store->Flush();
  EXPECT_EQ(Get(*store, 1), large);
  EXPECT_EQ(store->Stats().entries, 1);
  EXPECT_EQ(store->Stats().bytes, RecordSpace(32 + 50'000));
}

TEST_F(DiskStoreTest, RefusesInvalidAndOversizedSamples) {
  auto store = Open();
  EXPECT_EQ(Put(*store, 1, kNoGeneration - 1, "last"), PutResult::kStored);
  EXPECT_EQ(Put(*store, 1, kNoGeneration, "none"), PutResult::kFailed);
  EXPECT_EQ(Put(*store, Index::kMaxSamples, 0, "far"), PutResult::kFailed);
  EXPECT_EQ(Put(*store, ~uint64_t{0}, 0, "farther"), PutResult::kFailed);
  EXPECT_FALSE(store->Contains(~uint64_t{0}, kAny));
  EXPECT_FALSE(store->Remove(~uint64_t{0}, false));
  const iovec empty = {nullptr, 0};
  EXPECT_EQ(store->Put(2, 0, {&empty, 1}), PutResult::kStored);
  EXPECT_EQ(store->Put(3, 0, {}), PutResult::kStored);
  for (const bool written : {false, true}) {
    if (written) store->Flush();
    EXPECT_EQ(Get(*store, 1), "last");
    EXPECT_EQ(Get(*store, 2), "");
    EXPECT_EQ(Get(*store, 3), "");
    EXPECT_EQ(store->StoredGeneration(1), kNoGeneration - 1);
  }
  // The sample is too large, so its data is not read.
  std::vector<char> byte(1);
  const iovec huge = {byte.data(), kMaxRecord};
  EXPECT_EQ(store->Put(4, 0, {&huge, 1}), PutResult::kFailed);
  EXPECT_EQ(store->counts().failed_writes, 0);
}

class DiskStoreLimitTest : public DiskStoreTest {
 protected:
  static DiskStoreOptions Limit(int64_t bytes) { return With(&DiskStoreOptions::max_bytes, bytes); }
};

TEST_F(DiskStoreLimitTest, HoldsExactlyAsManySamplesAsFit) {
  for (const size_t size : {1'000, 20'000}) {
    std::filesystem::remove_all(directory_);
    const int64_t space = RecordSpace(sizeof(RecordHeader) + size);
    auto store = Open(Limit(10 * space + space / 2));
    EXPECT_EQ(store->max_bytes() / space, 10);
    // Replacing an older generation needs no additional room, in the write buffer or on disk.
    for (Generation generation = 0; generation < 4; ++generation) {
      for (uint64_t i = 0; i < 10; ++i) {
        EXPECT_EQ(Put(*store, i, generation, Content(i, generation, size)), PutResult::kStored);
      }
      EXPECT_EQ(Put(*store, 10, generation, Content(10, generation, size)), PutResult::kNoRoom);
      EXPECT_EQ(store->Stats().entries, 10);
      EXPECT_EQ(store->Stats().bytes, 10 * space);
      if (generation % 2 == 1) store->Flush();
    }
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Get(*store, i), Content(i, 3, size));
    // A larger record is not kept, and the older one is gone.
    EXPECT_EQ(Put(*store, 3, 4, Content(3, 4, 2 * size)), PutResult::kNoRoom);
    EXPECT_EQ(Get(*store, 3), "absent");
    EXPECT_EQ(Put(*store, 10, 4, Content(10, 4, size)), PutResult::kStored);
    EXPECT_EQ(store->Stats().bytes, 10 * space);
  }
}

// After a process died or a file was damaged, the counts may be wrong.
TEST_F(DiskStoreLimitTest, TheOnlyProcessCorrectsWrongCounts) {
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
  EXPECT_EQ(store->Stats().entries, 10);
  EXPECT_EQ(store->Stats().bytes, 10 * space);
}

}  // namespace
}  // namespace refurbish_tf
