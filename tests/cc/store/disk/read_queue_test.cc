#include "refurbish_tf/cc/store/disk/read_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/threads.h"

// Reads of `gather_fd` are counted, and do not end until it changes.
static std::atomic<int> gather_fd{-2}, gathered{0};

extern "C" ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  if (fd == gather_fd) ++gathered;
  while (fd == gather_fd) std::this_thread::yield();
  return syscall(SYS_pread64, fd, data, size, offset);
}

namespace refurbish_tf {
namespace {

constexpr size_t kFileSize = 500'003;
constexpr int kDepth = 8;

class ReadQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    queue_ = std::make_unique<ReadQueue>(kDepth);
    std::string path = testing::TempDir() + "read_queue_test_XXXXXX";
    fd_ = mkstemp(path.data());
    ASSERT_GE(fd_, 0);
    unlink(path.c_str());
    content_.resize(kFileSize);
    std::mt19937 random(1);
    for (char& c : content_) c = static_cast<char>(random());
    ASSERT_EQ(pwrite(fd_, content_.data(), kFileSize, 0), static_cast<ssize_t>(kFileSize));
  }

  void TearDown() override {
    if (fd_ >= 0) close(fd_);
  }

  // Makes the next reads go to the disk, if the file system has one.
  void DropCache() const {
    ASSERT_EQ(fsync(fd_), 0);
    ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  std::unique_ptr<ReadQueue> queue_;
  std::string content_;
  int fd_ = -1;
};

// Reads into buffers that are a little too long, to find writes beyond the end.
class Reads {
 public:
  explicit Reads(size_t count) : reads_(count), buffers_(count) {
    for (Read& read : reads_) pointers_.push_back(&read);
  }

  size_t size() const { return reads_.size(); }

  void Set(size_t i, int fd, uint64_t offset, size_t size) {
    buffers_[i].assign(size + kMargin, kUntouched);
    reads_[i].fd = fd;
    reads_[i].offset = offset;
    reads_[i].data = buffers_[i].data();
    reads_[i].size = size;
  }

  // Sets ranges anywhere in the file, some of them across or past its end.
  void SetRandom(int fd, std::mt19937* random, size_t max_size) {
    for (size_t i = 0; i < size(); ++i) {
      const size_t size = (*random)() % max_size;
      const bool at_end = (*random)() % 8 == 0;
      Set(i, fd, at_end ? kFileSize - size / 2 + (*random)() % (size + 1) : (*random)() % kFileSize, size);
    }
  }

  void Start(ReadQueue* queue) { queue->Start(pointers_.data(), pointers_.size()); }

  void WaitAndCheck(ReadQueue* queue, size_t i, const std::string& content) {
    const Read& read = reads_[i];
    const int64_t bytes = queue->Wait(&reads_[i]);
    const size_t there = read.offset < content.size() ? content.size() - read.offset : 0;
    const size_t expected = std::min(read.size, there);
    ASSERT_EQ(bytes, static_cast<int64_t>(expected)) << read.offset;
    if (expected > 0) {
      EXPECT_EQ(std::memcmp(read.data, content.data() + read.offset, expected), 0);
    }
    EXPECT_EQ(buffers_[i].substr(expected), std::string(buffers_[i].size() - expected, kUntouched));
  }

  void WaitAndCheckAll(ReadQueue* queue, const std::string& content) {
    for (size_t i = 0; i < size(); ++i) WaitAndCheck(queue, i, content);
  }

  void ReadAndCheckAll(ReadQueue* queue, const std::string& content) {
    Start(queue);
    WaitAndCheckAll(queue, content);
  }

 private:
  static constexpr size_t kMargin = 8;
  static constexpr char kUntouched = '#';

  std::vector<Read> reads_;
  std::vector<std::string> buffers_;
  std::vector<Read*> pointers_;
};

TEST_F(ReadQueueTest, ReadsTheContentOfTheFile) {
  std::mt19937 random(2);
  for (const bool cold : {false, true}) {
    Reads reads(kDepth);
    for (int round = 0; round < 10; ++round) {
      if (cold) DropCache();
      reads.SetRandom(fd_, &random, round % 2 == 0 ? 5'000 : 300'000);
      reads.ReadAndCheckAll(queue_.get(), content_);
    }
  }
}

TEST_F(ReadQueueTest, ReadsUpToTheEndOfTheFile) {
  Reads reads(4);
  reads.Set(0, fd_, kFileSize - 100, 100);
  reads.Set(1, fd_, kFileSize - 100, 101);
  reads.Set(2, fd_, kFileSize, 10);
  reads.Set(3, fd_, kFileSize + 100'000, 10);
  reads.ReadAndCheckAll(queue_.get(), content_);
}

TEST_F(ReadQueueTest, HandlesEmptyReads) {
  Reads reads(2);
  reads.Set(0, fd_, 10, 0);
  reads.Set(1, fd_, kFileSize + 10, 0);
  reads.ReadAndCheckAll(queue_.get(), content_);
  queue_->Start(nullptr, 0);
}

TEST_F(ReadQueueTest, ReturnsErrors) {
  const int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(directory, 0);
  const int write_only = open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(write_only, 0);
  // The last descriptor opened, so its number is unused from now on.
  const int closed = dup(fd_);
  close(closed);
  char buffer[10];
  // Valid reads before, between and after the failing ones succeed.
  const int fds[] = {fd_, -1, fd_, closed, directory, write_only, fd_};
  const int64_t results[] = {10, -EBADF, 10, -EBADF, -EISDIR, -EBADF, 10};
  std::vector<Read> reads(std::size(fds));
  std::vector<Read*> pointers;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].fd = fds[i];
    reads[i].data = buffer;
    reads[i].size = sizeof(buffer);
    pointers.push_back(&reads[i]);
  }
  queue_->Start(pointers.data(), pointers.size());
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(queue_->Wait(&reads[i]), results[i]) << i;
  }
  // A read can be used again after an error.
  reads[1].fd = fd_;
  queue_->Start(&pointers[1], 1);
  EXPECT_EQ(queue_->Wait(&reads[1]), 10);
  close(directory);
  close(write_only);
}

// procfs does not support reads that never wait, and does not fill a buffer in one read.
TEST_F(ReadQueueTest, ReadsFromAnyFileSystem) {
  std::string content;
  const int fd = open("/proc/filesystems", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (char c; pread(fd, &c, 1, content.size()) == 1;) content.push_back(c);
  Reads reads(3);
  // The second round starts the `Read` objects of the first one again.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < reads.size(); ++i) reads.Set(i, fd, i, 100'000);
    reads.ReadAndCheckAll(queue_.get(), content);
  }
  reads.Set(0, fd_, 7, 1000);
  reads.Set(1, fd, 7, 20);
  reads.Set(2, fd_, 9, 1000);
  reads.Start(queue_.get());
  reads.WaitAndCheck(queue_.get(), 0, content_);
  reads.WaitAndCheck(queue_.get(), 1, content);
  reads.WaitAndCheck(queue_.get(), 2, content_);
  close(fd);
}

// Like procfs, most network file systems cannot tell whether data is cached. Many of their slow reads must run at once.
TEST_F(ReadQueueTest, RunsDepthReadsAtOnceIfCachedDataCannotBeDetected) {
  auto queue = std::make_unique<ReadQueue>(2 * kDepth);
  const int fd = open("/proc/filesystems", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  gather_fd = fd;
  gathered = 0;
  Reads reads(2 * kDepth);
  for (size_t i = 0; i < reads.size(); ++i) reads.Set(i, fd, 1'000'000, 1);
  reads.Start(queue.get());
  for (int ms = 0; gathered < 2 * kDepth && ms < 20'000; ++ms) usleep(1000);
  gather_fd = -2;
  EXPECT_EQ(gathered, 2 * kDepth);
  reads.WaitAndCheckAll(queue.get(), "");
  close(fd);
}

TEST_F(ReadQueueTest, AcceptsMoreReadsThanItsDepth) {
  std::mt19937 random(3);
  for (const bool cold : {false, true}) {
    if (cold) DropCache();
    Reads first(10 * kDepth + 3), second(3 * kDepth);
    first.SetRandom(fd_, &random, 20'000);
    second.SetRandom(fd_, &random, 20'000);
    first.Start(queue_.get());
    second.Start(queue_.get());
    first.WaitAndCheckAll(queue_.get(), content_);
    second.WaitAndCheckAll(queue_.get(), content_);
  }
}

TEST_F(ReadQueueTest, WaitsInAnyOrder) {
  std::mt19937 random(4);
  for (int round = 0; round < 8; ++round) {
    DropCache();
    Reads reads(3 * kDepth);
    reads.SetRandom(fd_, &random, 20'000);
    reads.Start(queue_.get());
    std::vector<size_t> order(reads.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    if (round % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) reads.WaitAndCheck(queue_.get(), i, content_);
  }
}

TEST_F(ReadQueueTest, ServesSeveralThreads) {
  Threads(4, [this](int thread) {
    std::mt19937 random(10 + thread);
    for (int round = 0; round < 20; ++round) {
      if (round % 4 == thread) DropCache();
      Reads reads(1 + random() % (2 * kDepth));
      reads.SetRandom(fd_, &random, 40'000);
      reads.ReadAndCheckAll(queue_.get(), content_);
    }
  }).Join();
}

TEST_F(ReadQueueTest, ThreadsCanWaitForReadsThatAnotherThreadStarted) {
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    DropCache();
    Reads reads(4 * kDepth);
    reads.SetRandom(fd_, &random, 40'000);
    reads.Start(queue_.get());
    Threads(4, [&](int thread) {
      for (size_t i = thread; i < reads.size(); i += 4) {
        reads.WaitAndCheck(queue_.get(), i, content_);
      }
    }).Join();
  }
}

TEST_F(ReadQueueTest, ReadsOutliveTheThreadThatStartedThem) {
  std::mt19937 random(6);
  for (int round = 0; round < 8; ++round) {
    DropCache();
    Reads reads(2 * kDepth);
    reads.SetRandom(fd_, &random, 300'000);
    std::thread([&] { reads.Start(queue_.get()); }).join();
    reads.WaitAndCheckAll(queue_.get(), content_);
  }
}

TEST_F(ReadQueueTest, CanBeDestroyedOnceAllReadsHaveEnded) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    auto queue = std::make_unique<ReadQueue>(1 + round);
    DropCache();
    Reads reads(round);
    reads.SetRandom(fd_, &random, 20'000);
    reads.ReadAndCheckAll(queue.get(), content_);
    queue.reset();
    for (size_t i = 0; i < reads.size(); ++i) reads.Set(i, -1, 0, 0);
  }
}

TEST_F(ReadQueueTest, AcceptsAnyDepth) {
  for (const int depth : {-1, 0, 1, 3, 1'000'000}) {
    auto queue = std::make_unique<ReadQueue>(depth);
    ASSERT_NE(queue, nullptr) << depth;
    Reads reads(20);
    for (size_t i = 0; i < reads.size(); ++i) reads.Set(i, fd_, i, 1000);
    reads.ReadAndCheckAll(queue.get(), content_);
  }
}

}  // namespace
}  // namespace refurbish_tf
