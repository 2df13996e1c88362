// Attacks on the ring of samples in transit: processes that are killed or stopped between any two writes to shared
// memory, and files that are damaged or cut at random.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "tests/cc/store/disk/transit/transit_testing.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kSlots = 8;
constexpr size_t kSize = 1'000;

// Sends its own process a signal before the n-th write to shared memory.
class SignalledEnv : public StoreEnv {
 public:
  SignalledEnv(int signal, int before) : signal_(signal), before_(before) {}
  void BeforeSharedWrite() override {
    if (++writes_ == before_) kill(getpid(), signal_);
  }

 private:
  const int signal_;
  const int before_;
  std::atomic<int> writes_{0};
};

class TransitAttackTest : public TransitTest {
 protected:
  // Starts a process that prepares samples from 100 on, and gets a signal before its `before`-th write to shared
  // memory. It begins when a byte is written to `go`.
  pid_t Sibling(int signal, int before, int* go) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    const pid_t child = Fork([&] {
      char byte;
      if (read(fds[0], &byte, 1) != 1) return 2;
      SignalledEnv env(signal, before);
      DiskStoreOptions options;
      options.env = &env;
      options.write_delay_ms = 0;
      auto store = OpenRing(kSlots, kSize, std::move(options));
      auto job = *store->Join();
      job->BeginFirstEpoch();
      for (uint64_t i = 100; i < 103; ++i) {
        const std::optional<Generation> next = job->ClaimNext(i, 1, false);
        if (next.has_value()) PutInTransit(*store, i, *next, Content(i, *next, kSize));
        store->Flush();
      }
      job->NoteBegun(103, 1);
      return 0;
    });
    close(fds[0]);
    *go = fds[1];
    return child;
  }

  // Puts a sample of this process, and gets it back.
  void PutAndGet(DiskStore& store, SharedState::Job& job, uint64_t index) {
    const std::optional<Generation> next = job.ClaimNext(index, 1, false);
    ASSERT_TRUE(next.has_value());
    ASSERT_EQ(PutInTransit(store, index, *next, Content(index, *next, kSize)), PutResult::kStored);
    store.Flush();
    const std::vector<Found> found = Walk(store);
    const auto own = std::find_if(found.begin(), found.end(), [&](const Found& there) { return there.index == index; });
    ASSERT_NE(own, found.end());
    EXPECT_EQ(Get(store, own->position, index), Content(index, *next, kSize));
  }

  // Checks that all samples found are right. Returns their number.
  static size_t CountRight(DiskStore& store) {
    size_t count = 0;
    for (const Found& there : Walk(store)) {
      const std::string content = Get(store, there.position, there.index);
      if (content == "absent") continue;
      EXPECT_EQ(content, Content(there.index, there.tag, kSize));
      ++count;
    }
    return count;
  }
};

TEST_F(TransitAttackTest, SurvivesAProcessKilledBetweenAnyTwoSteps) {
  for (int before = 1;; ++before) {
    SCOPED_TRACE(before);
    ASSERT_LT(before, 100);
    std::filesystem::remove_all(directory_);
    int go;
    const pid_t child = Sibling(SIGKILL, before, &go);
    auto store = OpenRing(kSlots, kSize);
    store->MakeRoomFor(200);
    auto job = *store->Join();
    job->BeginFirstEpoch();
    PutAndGet(*store, *job, 1);
    ASSERT_EQ(write(go, "x", 1), 1);
    close(go);
    const int status = Join(child);
    // At most the last sample of the killed process is missing.
    size_t puts = 1;
    for (uint64_t i = 100; i < 103; ++i) {
      // The claims of the killed process no longer count.
      const std::optional<Generation> next = job->ClaimNext(i, 1, false);
      ASSERT_TRUE(next.has_value());
      puts += *next > 1;
    }
    EXPECT_GE(CountRight(*store) + 1, puts);
    if (status == 0) {
      EXPECT_EQ(CountRight(*store), 4);
    }
    for (uint64_t i = 2; i < 2 + 2 * kSlots; ++i) PutAndGet(*store, *job, i);
    EXPECT_EQ(CountRight(*store), kSlots);
    EXPECT_EQ(store->counts().corrupt, 0);
    if (status == 0) {
      EXPECT_GT(before, 3 * 5);
      break;
    }
    ASSERT_EQ(status, -SIGKILL);
  }
}

TEST_F(TransitAttackTest, SurvivesAProcessStoppedBetweenAnyTwoSteps) {
  for (int before = 1;; ++before) {
    SCOPED_TRACE(before);
    ASSERT_LT(before, 100);
    std::filesystem::remove_all(directory_);
    int go;
    const pid_t child = Sibling(SIGSTOP, before, &go);
    auto store = OpenRing(kSlots, kSize);
    store->MakeRoomFor(200);
    auto job = *store->Join();
    job->BeginFirstEpoch();
    ASSERT_EQ(write(go, "x", 1), 1);
    close(go);
    int status;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    if (WIFEXITED(status)) {
      EXPECT_GT(before, 3 * 5);
      break;
    }
    ASSERT_TRUE(WIFSTOPPED(status));
    // No other process waits for the stopped one.
    for (uint64_t i = 2; i < 2 + 2 * kSlots; ++i) PutAndGet(*store, *job, i);
    EXPECT_EQ(CountRight(*store), kSlots);
    ASSERT_EQ(kill(child, SIGCONT), 0);
    EXPECT_EQ(Join(child), 0);
    // The continued process was too late for the sample that it had begun, but has put the others.
    EXPECT_EQ(CountRight(*store), kSlots);
    EXPECT_EQ(store->counts().corrupt, 0);
  }
}

// Whatever is done to the files, all samples found are right. Afterwards the ring works again.
TEST_F(TransitAttackTest, SurvivesDamagedAndTruncatedFiles) {
  for (int round = 0; round < Rounds(8); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    const bool vary = round % 2 == 1;
    const auto below = [&](uint32_t n) { return random() % n; };
    const auto size = [&] { return vary ? 50 + below(2'000) : kSize; };
    std::filesystem::remove_all(directory_);
    Quiet quiet;
    std::vector<std::unique_ptr<DiskStore>> stores;
    const auto open = [&] {
      auto store = Open(With(&DiskStoreOptions::write_delay_ms, below(2)));
      EXPECT_TRUE(store->PlanTransit(24 * Space(kSize), vary ? -1 : Space(kSize)).ok());
      return store;
    };
    for (int i = 0; i < 2; ++i) stores.push_back(open());
    int64_t got = 0;
    const auto read = [&](DiskStore& store) {
      for (const Found& there : Walk(store)) {
        DiskReadAhead ahead(&store);
        RecordBuffer record;
        if (below(2) == 0) ahead.Want({{0, there.index, kAny, there.position}});
        ahead.Start();
        if (!ahead.Get({0, there.index, kAny, there.position}, &record)) continue;
        ++got;
        ASSERT_EQ(std::string(record.payload(), record.payload_size()),
                  Content(there.index, record.header().generation, record.payload_size()));
      }
    };
    const auto injure = [&] {
      const std::string path = directory_ + "/" + std::vector<std::string>{"ring", "transit", "state"}[below(3)];
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      // The number of bytes at the start of the file that have data.
      const uint64_t bytes = path.back() == 'g' ? 8 * 32 : std::filesystem::file_size(path);
      if (below(4) == 0) {
        EXPECT_EQ(ftruncate(fd, below(3) == 0 ? 0 : below(bytes + 1)), 0);
      } else if (bytes > 0) {
        for (int i = 0; i < 4; ++i) {
          const char byte = random();
          // The last words of the state belong to the ring.
          const uint64_t at = path.back() == 'e' ? bytes - 1 - below(16) : below(bytes);
          EXPECT_EQ(pwrite(fd, &byte, 1, at), 1);
        }
      }
      close(fd);
    };
    for (int step = 0; step < 400; ++step) {
      DiskStore& store = *stores[below(2)];
      const uint32_t what = below(40);
      if (what == 0) {
        injure();
      } else if (what == 1) {
        std::unique_ptr<DiskStore>& again = stores[below(2)];
        again.reset();
        again = open();
      } else if (what < 8) {
        store.Flush();
      } else if (what < 12) {
        read(store);
      } else {
        const uint64_t index = below(50);
        PutInTransit(store, index, step, Content(index, step, size()));
      }
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(got, 0);
    // Overwrites the whole ring.
    for (uint64_t i = 0; i < 100; ++i) {
      PutInTransit(*stores[0], i, 1'000, Content(i, 1'000, vary ? 500 : kSize));
      stores[0]->Flush();
    }
    const std::vector<Found> found = Walk(*stores[0]);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.back().index, 99);
    EXPECT_LE(std::filesystem::file_size(directory_ + "/transit"), static_cast<uint64_t>(24 * Space(kSize)));
  }
}

}  // namespace
}  // namespace refurbish_tf
