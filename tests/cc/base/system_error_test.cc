// A race that the thread sanitizer must not report: see thread_sanitizer.supp.
#include <atomic>
#include <cerrno>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/cc/threads.h"

namespace {

TEST(SystemErrorTest, ThreadsCanGetTheFirstMessageConcurrently) {
  constexpr int kThreads = 4;
  std::atomic<int> started{0};
  refurbish_tf::Threads(kThreads, [&started](int) {
    // Relaxed, so that nothing but Abseil's own guard orders the threads.
    started.fetch_add(1, std::memory_order_relaxed);
    while (started.load(std::memory_order_relaxed) < kThreads) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(absl::IsNotFound(absl::ErrnoToStatus(ENOENT, "a file")));
  }).Join();
}

}  // namespace
