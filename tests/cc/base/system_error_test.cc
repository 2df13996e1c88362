// A race that the thread sanitizer must not report: see thread_sanitizer.supp.
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace {

TEST(SystemErrorTest, ThreadsCanGetTheFirstMessageConcurrently) {
  constexpr int kThreads = 4;
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&started] {
      // Relaxed, so that nothing but Abseil's own guard orders the threads.
      started.fetch_add(1, std::memory_order_relaxed);
      while (started.load(std::memory_order_relaxed) < kThreads) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(absl::IsNotFound(absl::ErrnoToStatus(ENOENT, "a file")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
