// Directories that are not a cache store are refused and left unchanged. Processes that are killed leave no damage in
// a store.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

namespace fs = std::filesystem;

using DiskDirectoryTest = StoreDirectoryTest;

TEST_F(DiskDirectoryTest, IsRefusedIfTheStoreContainsAForeignFile) {
  {
    auto store = Open();
    Put(*store, 1, 0, "one");
  }
  WriteFile(directory_ + "/small-0001", "a digit short");
  const auto before = ReadFiles(directory_);
  EXPECT_FALSE(DiskStore::Open(directory_, With(&DiskStoreOptions::overwrite, true)).ok());
  EXPECT_EQ(ReadFiles(directory_), before);
  fs::remove(directory_ + "/small-0001");
  EXPECT_EQ(Get(*Open(), 1), "one");
}

TEST_F(DiskDirectoryTest, IsRefusedUnchangedIfItHasAnotherFormat) {
  {
    auto store = Open();
    Put(*store, 1, 0, "one");
  }
  std::string text = "refurbish_tf cache store\nformat 2\nr 3\n";
  char checksum[9];
  std::snprintf(checksum, sizeof(checksum), "%08x", Crc32c(text.data(), text.size()));
  WriteFile(directory_ + "/store", text + "crc32c " + checksum + "\n");
  for (const bool with_new_file : {false, true}) {
    if (with_new_file) WriteFile(directory_ + "/medium-00001", "?");
    const auto before = ReadFiles(directory_);
    const absl::Status status = DiskStore::Open(directory_, {}).status();
    EXPECT_TRUE(absl::IsUnimplemented(status));
    for (const char* part : {"format 2", "reads format 1", "overwrite=True"}) {
      EXPECT_PRED_FORMAT2(testing::IsSubstring, part, std::string(status.message()));
    }
    EXPECT_EQ(ReadFiles(directory_), before);
  }
}

TEST_F(DiskDirectoryTest, IsRefusedIfItIsAFile) {
  WriteFile(directory_ + "/file", "a file");
  for (const char* path : {"/file", "/file/below"}) {
    const absl::Status status = DiskStore::Open(directory_ + path, {}).status();
    EXPECT_FALSE(status.ok());
    EXPECT_PRED_FORMAT2(testing::IsSubstring, "/file", std::string(status.message()));
  }
  EXPECT_EQ(ReadFile(directory_ + "/file"), "a file");
}

TEST_F(DiskDirectoryTest, IsRefusedIfItIsNotWritable) {
  fs::permissions(directory_, fs::perms(0555));
  for (const char* path : {"", "/below"}) {
    const pid_t child = Fork([&] {
      if (getuid() == 0 && setuid(65534) != 0) return 2;
      const absl::Status status = DiskStore::Open(directory_ + path, {}).status();
      return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) ? 0 : 1;
    });
    EXPECT_EQ(Join(child), 0);
  }
  EXPECT_TRUE(ReadFiles(directory_).empty());
}

TEST_F(DiskDirectoryTest, IsAccessibleOnlyToItsOwner) {
  const mode_t mask = umask(0);
  directory_ += "/a/b";
  {
    auto store = Open();
    Put(*store, 1, 0, "one");
    Put(*store, 2, 0, Content(2, 0, 50'000));
    EXPECT_TRUE(store->Agree({{"r", "2"}}).ok());
  }
  umask(mask);
  const auto mode = [](const fs::path& path) { return static_cast<int>(fs::status(path).permissions()); };
  EXPECT_EQ(mode(directory_), 0700);
  EXPECT_EQ(mode(fs::path(directory_).parent_path()), 0700);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    EXPECT_EQ(mode(entry.path()), 0600) << entry.path();
    names.insert(entry.path().filename().string().substr(0, 5));
  }
  EXPECT_EQ(names, std::set<std::string>({"claim", "index", "large", "lock", "small", "state", "store"}));
  directory_ = fs::path(directory_).parent_path().parent_path();
}

// Two processes at a time put, get and compact, until they are killed. Samples that they have flushed, which they
// report through a pipe, must be there.
TEST_F(DiskDirectoryTest, KilledProcessesLeaveNoDamageAndNoGarbage) {
  constexpr uint64_t kSamples = 64;
  const int rounds = Rounds(6);
  const auto size = [](uint64_t index) -> size_t { return index % 8 == 0 ? 17'000 + index : 50 * index; };
  const auto options = [] {
    DiskStoreOptions options;
    options.small_segment = 64 << 10;
    options.large_segment = 256 << 10;
    options.write_buffer = 4 << 10;
    options.write_delay_ms = 1;
    options.read_queue = std::make_unique<ReadQueue>(2);
    return options;
  };
  // Returns whether all samples in the store are right, and in `found` their generations.
  const auto examine = [&](DiskStore& store, std::map<uint64_t, Generation>* found) {
    for (uint64_t i = 0; i < kSamples; ++i) {
      RecordBuffer record;
      if (!store.Get(i, kAny, &record)) continue;
      const Generation generation = record.header().generation;
      if (std::string(record.payload(), record.payload_size()) != Content(i, generation, size(i))) {
        return false;
      }
      (*found)[i] = generation;
    }
    return true;
  };
  struct Flushed {
    uint32_t wrong;
    uint32_t index;
    Generation generation;
  };
  const auto work = [&](int seed, int pipe_fd) {
    auto store = DiskStore::Open(directory_, options());
    if (!store.ok()) return 1;
    std::mt19937 random(seed);
    while (true) {
      Flushed flushed = {};
      for (int i = 0; i < 8; ++i) {
        const uint64_t index = random() % kSamples;
        // A sample that is not stored has kNoGeneration, and kNoGeneration + 1 is 0.
        const Generation generation = (*store)->StoredGeneration(index) + 1;
        Put(**store, index, generation, Content(index, generation, size(index)));
        flushed = {0, static_cast<uint32_t>(index), generation};
      }
      (*store)->Flush();
      if (random() % 8 == 0) {
        std::map<uint64_t, Generation> found;
        flushed.wrong = !examine(**store, &found);
      }
      if (random() % 16 == 0) (*store)->Compact();
      if (write(pipe_fd, &flushed, sizeof(flushed)) != sizeof(flushed)) return 2;
    }
  };
  std::mt19937 random(1);
  std::map<uint64_t, Generation> least;
  int64_t most_segments = 0;
  for (int round = 0; round < rounds; ++round) {
    pid_t children[2];
    int fds[2][2];
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(pipe2(fds[i], O_CLOEXEC), 0);
      children[i] = Fork([&] { return work(2 * round + i, fds[i][1]); });
      close(fds[i][1]);
    }
    for (int i = 0; i < 2; ++i) {
      // Kills the process during some operation, after a random number of flushes.
      for (int k = random() % 12; k >= 0; --k) {
        Flushed flushed;
        ASSERT_EQ(read(fds[i][0], &flushed, sizeof(flushed)), static_cast<ssize_t>(sizeof(flushed)));
        ASSERT_EQ(flushed.wrong, 0);
        Generation& generation = least[flushed.index];
        generation = std::max(generation, flushed.generation);
      }
      kill(children[i], SIGKILL);
      ASSERT_EQ(Join(children[i]), -SIGKILL);
      close(fds[i][0]);
    }
    auto store = Open(options());
    std::map<uint64_t, Generation> found;
    ASSERT_TRUE(examine(*store, &found)) << round;
    for (const auto& [index, generation] : least) {
      ASSERT_EQ(found.count(index), 1) << round;
      ASSERT_GE(found[index], generation) << round;
    }
    const SampleMapStats stats = store->Stats();
    ASSERT_EQ(store->counts().corrupt, 0) << round;
    ASSERT_EQ(stats.entries, static_cast<int64_t>(found.size())) << round;
    store->Compact();
    most_segments = std::max(most_segments, store->DiskUsage().segments);
    least = found;
  }
  EXPECT_LE(most_segments, 16);
}

// A process that dies while it creates the store leaves nothing that disturbs other processes.
TEST_F(DiskDirectoryTest, CanBeOpenedConcurrentlyWhileAProcessIsKilled) {
  for (int round = 0; round < Rounds(6); ++round) {
    fs::remove_all(directory_);
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
      children.push_back(Fork([&] {
        auto store = DiskStore::Open(directory_, {});
        if (!store.ok()) {
          std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
          return 1;
        }
        Put(**store, i, 0, Content(i, 0, 100));
        return Get(**store, i) == Content(i, 0, 100) ? 0 : 2;
      }));
    }
    kill(children[round % 4], SIGKILL);
    for (int i = 0; i < 4; ++i) {
      const int status = Join(children[i]);
      ASSERT_TRUE(status == 0 || (status == -SIGKILL && i == round % 4)) << status;
    }
    auto store = Open();
    ASSERT_NE(store, nullptr);
    for (int i = 0; i < 4; ++i) {
      const std::string content = Get(*store, i);
      if (i == round % 4 && content == "absent") continue;
      ASSERT_EQ(content, Content(i, 0, 100)) << round;
    }
    ASSERT_EQ(store->counts().corrupt, 0) << round;
  }
}

}  // namespace
}  // namespace refurbish_tf
