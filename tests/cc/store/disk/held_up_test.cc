// A process that is stopped while it holds all locks of a store blocks no other process. The test forks.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

// Takes all locks that processes hold briefly, to write settings, to join, or to extend a file.
int LockAndStop(const std::string& directory) {
  const std::vector<std::pair<std::string, off_t>> locks = {
      {"/lock", 0}, {"/index", 0}, {"/claims", 0}, {"/state", 0}, {"/state", 1 << 20}};
  for (const auto& [name, byte] : locks) {
    const int fd = open((directory + name).c_str(), O_RDWR | O_CLOEXEC);
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) return 1;
  }
  raise(SIGSTOP);
  return 2;
}

using StoppedProcessTest = StoreDirectoryTest;

TEST_F(StoppedProcessTest, DoesNotBlockOtherProcesses) {
  EXPECT_TRUE(Open()->Agree({{"r", "2"}}).ok());
  const pid_t child = Fork([this] { return LockAndStop(directory_); });
  int status;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  alarm(120);  // A call that waited for the stopped process would not end.
  {
    auto store = Open();
    const std::chrono::milliseconds no_patience(0);
    const auto agree = [&](const Settings& settings, auto patience) {
      return store->Agree(settings, /*replace=*/false, patience);
    };
    EXPECT_TRUE(agree({{"r", "2"}}, std::chrono::hours(1)).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(agree({{"r", "3"}}, std::chrono::hours(1))));
    const absl::Status held = agree({{"new", "1"}}, no_patience);
    EXPECT_TRUE(absl::IsUnavailable(held)) << held.ToString();
    EXPECT_EQ(store->settings().count("new"), 0);
    auto job = store->Join();
    EXPECT_EQ((*job)->BeginFirstEpoch(), 0);
    store->MakeRoomFor(100'000);
    EXPECT_TRUE((*job)->Claim(99'999, 0));
    EXPECT_FALSE((*store->Join())->Claim(99'999, 0));
    EXPECT_EQ(Put(*store, 1 << 20, 0, "far away"), PutResult::kStored);
    store->Flush();
    EXPECT_EQ(Get(*store, 1 << 20), "far away");
    EXPECT_EQ(store->Stats().entries, 1);
    kill(child, SIGKILL);
    EXPECT_EQ(Join(child), -SIGKILL);
    EXPECT_TRUE(store->Agree({{"new", "1"}}).ok());
  }
  EXPECT_EQ(Open()->settings().size(), 2);
  alarm(0);
}

}  // namespace
}  // namespace refurbish_tf
