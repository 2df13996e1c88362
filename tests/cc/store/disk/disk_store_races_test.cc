// Races and failures of the cache store on disk: changes by other processes between two steps, failing system calls,
// and everything at once. Uses std::thread.
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using DiskStoreTest = StoreDirectoryTest;

// Reads that fail on demand.
class FaultyReadQueue : public ReadQueue {
 public:
  explicit FaultyReadQueue(const std::atomic<bool>* failing) : ReadQueue(8), failing_(failing) {}
  int64_t Wait(Read* read) override {
    const int64_t bytes = ReadQueue::Wait(read);
    return *failing_ ? -EIO : bytes;
  }

 private:
  const std::atomic<bool>* const failing_;
};

// Runs a function once before a write, a lock or an open, as if another process acted at that moment.
class HookedEnv : public StoreEnv {
 public:
  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    DoOnce(&before_write);
    return StoreEnv::Write(fd, offset, std::move(parts));
  }
  absl::StatusOr<int> Open(int directory, const std::string& name, int flags) override {
    DoOnce(&before_open);
    return StoreEnv::Open(directory, name, flags);
  }
  bool TryLock(int fd, uint64_t byte) override {
    DoOnce(&before_lock);
    return StoreEnv::TryLock(fd, byte);
  }

  // Set these only while the writer is idle.
  std::function<void()> before_write;
  std::function<void()> before_lock;
  std::function<void()> before_open;

 private:
  static void DoOnce(std::function<void()>* hook) {
    std::function<void()> once;
    once.swap(*hook);
    if (once != nullptr) once();
  }
};

TEST_F(DiskStoreTest, ASampleReplacedWhileItIsReadIsReadAgain) {
  for (const size_t size : {300, 30'000}) {
    std::filesystem::remove_all(directory_);
    auto other = Open();
    std::function<void()> before_read;
    auto store = Open(With(&DiskStoreOptions::read_queue, std::make_unique<HookedReads>(&before_read)));
    Put(*other, 1, 1, Content(1, 1, size));
    other->Flush();
    before_read = [&] {
      before_read = nullptr;
      Put(*other, 1, 2, Content(1, 2, size));
      other->Flush();
      // Deletes the segment of the old record.
      other->Put(2, 0, {});
      other->Flush();
      other->Compact();
    };
    const std::string content = Get(*store, 1);
    EXPECT_TRUE(content == Content(1, 1, size) || content == Content(1, 2, size));
    EXPECT_EQ(Get(*store, 1), Content(1, 2, size));
    EXPECT_EQ(store->counts().corrupt, 0);
    EXPECT_EQ(store->Stats().misses, 0);
  }
}

// Claims call `Want` while they hold locks that all threads need, so `Want` must not touch the disk.
TEST_F(DiskStoreTest, WantDoesNotTouchTheDiskBeforeStart) {
  {
    auto other = Open();
    for (uint64_t i = 0; i < 20; ++i) Put(*other, i, 1, Content(i, 1, 3'000));
  }
  HookedEnv env;
  int reads = 0;
  std::function<void()> before_read = [&] { ++reads; };
  DiskStoreOptions options;
  options.env = &env;
  options.read_queue = std::make_unique<HookedReads>(&before_read);
  auto store = Open(std::move(options));
  DiskReadAhead ahead(store.get());
  const size_t room = ahead.Room();
  const auto want = [&](uint64_t ticket) { ahead.Want({{ticket, ticket, AtLeast(1)}}); };
  std::promise<void> opening, go_on;
  env.before_open = [&] {
    opening.set_value();
    go_on.get_future().wait();
  };
  for (uint64_t i = 0; i < 10; ++i) want(i);
  EXPECT_NE(env.before_open, nullptr);
  EXPECT_EQ(ahead.Room(), room - 10);
  std::thread starting([&] { ahead.Start(); });
  opening.get_future().wait();
  // Nothing else waits while a file is being opened.
  for (uint64_t i = 10; i < 20; ++i) {
    EXPECT_TRUE(store->Contains(i, AtLeast(1)));
    want(i);
  }
  EXPECT_EQ(ahead.Room(), room - 20);
  EXPECT_EQ(store->Stats().entries, 20);
  ahead.Start();
  EXPECT_EQ(reads, 0);
  go_on.set_value();
  starting.join();
  EXPECT_GT(reads, 0);
  // One of the two calls of `Start` has started the reads that were wanted between them.
  before_read = nullptr;
  for (uint64_t i = 0; i < 20; ++i) {
    RecordBuffer record;
    ASSERT_TRUE(ahead.Get({i, i, AtLeast(1)}, &record));
    EXPECT_EQ(std::string(record.payload(), record.payload_size()), Content(i, 1, 3'000));
  }
  EXPECT_EQ(ahead.Room(), room);
}

// Another process writes or removes the sample between compaction's look-up and its write.
TEST_F(DiskStoreTest, CompactionDoesNotOverwriteConcurrentChanges) {
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
    // Too few segments for the background thread to compact. Everything but one sample of the first segment is dead.
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
    EXPECT_EQ(store->Stats().entries, removed ? 0 : 1);
  }
}

// Another process may adopt a segment that has been created but not yet locked.
TEST_F(DiskStoreTest, ANewSegmentDoesNotOverwriteRecordsOfAnotherProcess) {
  HookedEnv env;
  auto store = Open(With(&DiskStoreOptions::env, &env));
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

TEST_F(DiskStoreTest, ClosingTheStoreWritesBufferedSamples) {
  {
    Put(*Open(With(&DiskStoreOptions::write_delay_ms, 1'000'000)), 1, 0, "one");
  }
  EXPECT_EQ(Get(*Open(), 1), "one");
}

TEST_F(DiskStoreTest, UnreadableSamplesAreAbsentAndCanBePutAgain) {
  std::atomic<bool> failing{false};
  auto store = Open(With(&DiskStoreOptions::read_queue, std::make_unique<FaultyReadQueue>(&failing)));
  const auto size = [](uint64_t i) { return i % 2 == 0 ? 3'000 : 30'000; };
  for (uint64_t i = 0; i < 20; ++i) {
    Put(*store, i, 1, Content(i, 1, size(i)));
  }
  store->Flush();
  DiskReadAhead ahead(store.get());
  ahead.Want({{0, 0, AtLeast(1)}, {1, 1, AtLeast(1)}});
  ahead.Start();
  failing = true;
  testing::internal::CaptureStderr();
  RecordBuffer record;
  EXPECT_FALSE(ahead.Get({0, 0, AtLeast(1)}, &record));
  EXPECT_FALSE(ahead.Get({1, 1, AtLeast(1)}, &record));
  for (uint64_t i = 2; i < 10; ++i) EXPECT_EQ(Get(*store, i), "absent");
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_EQ(store->counts().corrupt, 10);
  EXPECT_EQ(store->Stats().misses, 10);
  EXPECT_EQ(store->Stats().entries, 10);
  failing = false;
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(store->Contains(i, AtLeast(1)), i >= 10);
    EXPECT_EQ(Put(*store, i, 1, Content(i, 1, size(i))), PutResult::kStored);
    EXPECT_EQ(Get(*store, i), Content(i, 1, size(i)));
  }
  EXPECT_EQ(store->counts().corrupt, 10);
  EXPECT_EQ(store->Stats().entries, 20);
}

TEST_F(DiskStoreTest, NoStoredSampleIsLostWithoutFreeFileDescriptors) {
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
  EXPECT_NE(testing::internal::GetCapturedStderr().find("open files"), std::string::npos);
  EXPECT_EQ(contents, std::vector<std::string>(4, "absent"));
  EXPECT_EQ(two->counts().corrupt, 0);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Get(*two, i), Content(i, 0, 9'000 * i));
  }
  EXPECT_EQ(Put(*two, 7, 0, Content(7, 0, 50'000)), PutResult::kStored);
}

// The space of a deleted file is only freed when its last descriptor is closed.
TEST_F(DiskStoreTest, DeletedSegmentsAreNotHeldOpen) {
  const auto deleted_but_open = [this] {
    int count = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string name = std::filesystem::read_symlink(fd, error).string();
      count += name.find(directory_) == 0 && name.find("(deleted)") != std::string::npos;
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
  // `two` reads the segment, then adopts it.
  Put(*one, 2, 0, Content(2, 0, 20'000));
  one->Flush();
  EXPECT_EQ(Get(*two, 2), Content(2, 0, 20'000));
  one.reset();
  two->Compact();
  two->Clear();
  EXPECT_EQ(deleted_but_open(), 0);
}

TEST_F(DiskStoreTest, ReadersWritersAndCompactionRunConcurrently) {
  constexpr uint64_t kSamples = 300;
  static const Generation kGenerations = Rounds(5);
  const auto size = [](uint64_t index) -> size_t { return index % 10 == 0 ? 20'000 + index : 100 + 9 * index; };
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
    const std::string expected = Content(index, record.header().generation, size(index));
    const bool same =
        record.header().index == index && std::string(record.payload(), record.payload_size()) == expected;
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
        ahead.Want(wanted);
        ahead.Start();
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
        if (index % 64 == 1) store.Verify();
        if (index == 2) store.Clear();
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
    EXPECT_EQ(store->counts().corrupt, 0);
    EXPECT_EQ(store->counts().failed_writes, 0);
  }
  for (uint64_t i = 0; i < kSamples; ++i) entries += Get(*stores[0], i) != "absent";
  EXPECT_EQ(stores[1]->Stats().entries, entries);
  EXPECT_EQ(stores[0]->Verify(), std::make_pair(entries, int64_t{0}));
}

TEST_F(DiskStoreTest, ConcurrentThreadsAndProcessesStayWithinTheLimit) {
  static constexpr uint64_t kSamples = 200;
  static constexpr size_t kSizes[] = {500, 3'000, 18'000};
  constexpr int64_t kLimit = 400'000;
  std::vector<std::unique_ptr<DiskStore>> stores;
  for (int i = 0; i < 2; ++i) {
    stores.push_back(Open(With(&DiskStoreOptions::max_bytes, kLimit)));
  }
  std::atomic<int64_t> most{0};
  Threads(4, [&stores, &most](int i) {
    DiskStore& store = *stores[i % 2];
    std::mt19937 random(i);
    for (int k = 0; k < 800; ++k) {
      const uint64_t index = random() % kSamples;
      const Generation generation = k / 100;
      const size_t size = kSizes[random() % 3];
      Put(store, index, generation, Content(index, generation, size));
      if (random() % 10 == 0) store.Remove(random() % kSamples, true);
      // The store counts at least the live bytes, so this also limits them.
      most = std::max<int64_t>(most, store.state().bytes());
    }
  }).Join();
  for (auto& store : stores) store->Flush();
  EXPECT_LE(most, kLimit);
  int64_t live = 0;  // Counted from the samples that `Get` finds.
  for (uint64_t i = 0; i < kSamples; ++i) {
    RecordBuffer record;
    if (stores[0]->Get(i, kAny, &record)) live += RecordSpace(sizeof(RecordHeader) + record.payload_size());
  }
  EXPECT_LE(live, kLimit);
  EXPECT_GT(live, kLimit / 2);
  EXPECT_EQ(stores[0]->Stats().bytes, live);
}

}  // namespace
}  // namespace refurbish_tf
