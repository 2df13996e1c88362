// Puts and gets do not wait for the disk.
#include "refurbish_tf/cc/store/disk/writer.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

// A disk whose writes wait while it is closed.
class SlowEnv : public StoreEnv {
 public:
  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    {
      std::unique_lock<std::mutex> lock(mu_);
      if (closed_) {
        is_waiting_ = true;
        changed_.notify_all();
        while (closed_) changed_.wait(lock);
      }
      ++writes_;
      closed_ |= writes_ == close_after_;
    }
    return StoreEnv::Write(fd, offset, std::move(parts));
  }

  void Close(bool closed) {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = closed;
    is_waiting_ = false;
    changed_.notify_all();
  }
  // Closes the disk after one more write.
  void CloseAfterOne() {
    std::lock_guard<std::mutex> lock(mu_);
    close_after_ = writes_ + 1;
  }
  void AwaitWrite() {
    std::unique_lock<std::mutex> lock(mu_);
    while (!is_waiting_) changed_.wait(lock);
  }
  int writes() {
    std::lock_guard<std::mutex> lock(mu_);
    return writes_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool is_waiting_ = false;
  int writes_ = 0;
  int close_after_ = 0;
};

class WriterTest : public StoreDirectoryTest {
 protected:
  std::unique_ptr<DiskStore> OpenSlow(size_t write_buffer = 256 << 10, int64_t write_delay_ms = 1) {
    DiskStoreOptions options;
    options.env = &env_;
    options.write_buffer = write_buffer;
    options.write_delay_ms = write_delay_ms;
    options.small_segment = 64 << 10;
    return Open(std::move(options));
  }

  // Runs `body` in a thread. Returns whether it ends within 30 seconds.
  template <class Body>
  static bool Ends(const Body& body, std::thread* thread) {
    std::packaged_task<void()> task(body);
    std::future<void> done = task.get_future();
    *thread = std::thread(std::move(task));
    return done.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  }

  SlowEnv env_;
};

TEST_F(WriterTest, PutsAndGetsDoNotWaitForABusyDisk) {
  auto store = OpenSlow();
  Put(*store, 0, 0, Content(0, 0, 100));
  store->Flush();
  env_.Close(true);
  Put(*store, 1, 0, Content(1, 0, 100));
  env_.AwaitWrite();
  std::thread thread;
  EXPECT_TRUE(Ends(
      [&] {
        EXPECT_EQ(Put(*store, 2, 0, Content(2, 0, 100)), PutResult::kStored);
        EXPECT_EQ(Put(*store, 3, 0, Content(3, 0, 30'000)), PutResult::kStored);
        // Replaces a sample that is being written, and removes another one.
        EXPECT_EQ(Put(*store, 1, 1, Content(1, 1, 100)), PutResult::kStored);
        EXPECT_TRUE(store->Remove(2, /*evict=*/false));
        EXPECT_EQ(Get(*store, 0), Content(0, 0, 100));
        EXPECT_EQ(Get(*store, 1), Content(1, 1, 100));
        EXPECT_EQ(Get(*store, 2), "absent");
        EXPECT_EQ(Get(*store, 3), Content(3, 0, 30'000));
        EXPECT_TRUE(store->Contains(3, kAny));
        EXPECT_EQ(store->Stats().entries, 3);
      },
      &thread));
  env_.Close(false);
  thread.join();
  store->Flush();
  EXPECT_EQ(Get(*store, 1), Content(1, 1, 100));
  EXPECT_EQ(Get(*store, 2), "absent");
  EXPECT_EQ(Get(*store, 3), Content(3, 0, 30'000));
  EXPECT_EQ(store->Stats().entries, 3);
  EXPECT_EQ(store->Verify(), std::make_pair(int64_t{3}, int64_t{0}));
}

TEST_F(WriterTest, ASampleRemovedWhileItIsWrittenStaysAbsent) {
  auto store = OpenSlow();
  for (const size_t size : {100, 30'000}) {
    env_.Close(true);
    Put(*store, 1, 0, Content(1, 0, size));
    env_.AwaitWrite();
    EXPECT_TRUE(store->Remove(1, /*evict=*/false));
    env_.Close(false);
    store->Flush();
    EXPECT_EQ(Get(*store, 1), "absent");
    EXPECT_EQ(store->Stats().entries, 0);
    EXPECT_EQ(store->Stats().bytes, 0);
  }
}

TEST_F(WriterTest, LimitsBufferedBytes) {
  constexpr size_t kBuffer = 16 << 10;
  constexpr int kPuts = 2'000;
  auto store = OpenSlow(kBuffer);
  env_.Close(true);
  std::atomic<int> put{0};
  std::thread thread([&] {
    for (int i = 0; i < kPuts; ++i) {
      Put(*store, i, 0, Content(i, 0, 1'000));
      ++put;
    }
  });
  env_.AwaitWrite();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(put * 1'000, static_cast<int>(17 * kBuffer));
  env_.Close(false);
  thread.join();
  store->Flush();
  for (int i = 0; i < kPuts; ++i) ASSERT_EQ(Get(*store, i), Content(i, 0, 1'000));
}

TEST_F(WriterTest, ClosingDoesNotWaitForCompaction) {
  constexpr uint64_t kSamples = 230;
  {
    auto store = OpenSlow(/*write_buffer=*/1 << 20, /*write_delay_ms=*/1'000'000);
    for (uint64_t i = 0; i < kSamples; ++i) {
      Put(*store, i, 0, Content(i, 0, 2'000));
      if (i % 30 == 29) store->Flush();
    }
    for (uint64_t i = 0; i < kSamples; ++i) {
      if (i % 4 != 0) store->Remove(i, /*evict=*/false);
    }
    // After these puts a compaction is due.
    env_.CloseAfterOne();
    for (uint64_t i = 0; i < 150; ++i) {
      Put(*store, kSamples + i, 0, Content(i, 0, 2'000));
    }
    store->Flush();
    env_.AwaitWrite();
    const int before = env_.writes();
    std::thread ending([&] { store.reset(); });
    // Gives the closing thread time to stop the compaction. A few more moved records do not matter.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    env_.Close(false);
    ending.join();
    EXPECT_LE(env_.writes() - before, 20);
  }
  auto store = Open();
  for (uint64_t i = 0; i < kSamples; ++i) {
    ASSERT_EQ(Get(*store, i), i % 4 == 0 ? Content(i, 0, 2'000) : "absent");
  }
}

using OtherProcessesTest = StoreDirectoryTest;

// A very large record takes more space than it has bytes, so the next one does not begin where the file ends.
TEST_F(OtherProcessesTest, RecordsAreAppendedAfterTheLastRecordOfAnAdoptedSegment) {
  constexpr size_t kSize = (5 << 20) + 100;
  Put(*Open(), 1, 0, std::string(kSize, '1'));
  auto store = Open();
  Put(*store, 2, 0, std::string(kSize, '2'));
  store->Flush();
  store->Remove(1, /*evict=*/true);
  EXPECT_EQ(Get(*store, 2), std::string(kSize, '2'));
  EXPECT_EQ(store->counts().corrupt, 0);
}

TEST_F(OtherProcessesTest, CompactionContinuesAfterTheStateIsTruncated) {
  constexpr uint64_t kSamples = 200;
  auto store = Open();
  for (Generation generation = 0; generation < 20; ++generation) {
    for (uint64_t i = 0; i < kSamples; ++i) {
      Put(*store, i, generation, Content(i, generation, 5'000));
    }
    store->Flush();
    if (generation == 6) std::filesystem::resize_file(directory_ + "/state", 0);
  }
  store->Compact();
  const SampleMapStats stats = store->Stats();
  EXPECT_EQ(stats.entries, kSamples);
  EXPECT_LT(store->DiskUsage().disk_bytes, 4 * stats.bytes);
}

// A forked child has no writer, and does not wait for one.
TEST_F(OtherProcessesTest, AForkedChildCanReadAndExit) {
  auto store = Open();
  Put(*store, 1, 0, "one");
  store->Flush();
  const pid_t child = Fork([&] {
    alarm(30);
    if (Get(*store, 1) != "one") return 1;
    if (Put(*store, 2, 0, "two") != PutResult::kFailed) return 2;
    store->Clear();
    store->Flush();
    store.reset();
    return 0;
  });
  EXPECT_EQ(Join(child), 0);
  EXPECT_EQ(Put(*store, 2, 0, "two"), PutResult::kStored);
  EXPECT_EQ(Get(*store, 2), "two");
}

}  // namespace
}  // namespace refurbish_tf
