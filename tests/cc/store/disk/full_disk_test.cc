// A full disk: samples that do not fit are absent, stored ones stay in use, and freed room is used again.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

namespace fs = std::filesystem;

class FullDiskTest : public StoreDirectoryTest {
 protected:
  static size_t Size(uint64_t index) { return index % 4 == 0 ? 20'000 : 3'000; }

  // Puts samples until `count` are refused or dropped. Returns the number of puts.
  static uint64_t Fill(DiskStore& store, int64_t count) {
    uint64_t index = 0;
    for (; store.counts().failed_writes < count; ++index) {
      Put(store, index, 0, Content(index, 0, Size(index)));
      store.Flush();
    }
    return index;
  }

  // Counts how many of the first `samples` samples are there. None may be wrong.
  static int64_t CountRight(DiskStore& store, uint64_t samples) {
    int64_t right = 0;
    for (uint64_t i = 0; i < samples; ++i) {
      const std::string content = Get(store, i);
      if (content == "absent") continue;
      EXPECT_EQ(content, Content(i, 0, Size(i))) << i;
      ++right;
    }
    return right;
  }
};

TEST_F(FullDiskTest, KeepsStoredSamplesWhenFilesCannotGrow) {
  auto store = Open();
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {768 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  // Captured text goes to a file, to which the limit also applies.
  testing::internal::CaptureStderr();
  constexpr int64_t kFailed = 60;
  const uint64_t tried = Fill(*store, kFailed);
  EXPECT_EQ(Put(*store, 1 << 20, 0, "far away"), PutResult::kFailed);
  setrlimit(RLIMIT_FSIZE, &before);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  const SampleMapStats stats = store->Stats();
  EXPECT_EQ(CountRight(*store, tried), stats.entries);
  EXPECT_EQ(stats.entries + kFailed, static_cast<int64_t>(tried));
  EXPECT_GT(stats.entries, 200);
  EXPECT_EQ(store->Stats().bytes, store->state().bytes());
  for (uint64_t i = 0; i < tried; ++i) {
    EXPECT_EQ(Put(*store, i, 0, Content(i, 0, Size(i))), PutResult::kStored);
  }
  EXPECT_EQ(Put(*store, 1 << 20, 0, "far away"), PutResult::kStored);
  store.reset();
  store = Open();
  EXPECT_EQ(CountRight(*store, tried), static_cast<int64_t>(tried));
  EXPECT_EQ(store->counts().corrupt, 0);
}

// Mounts a small file system, if permitted.
class SmallDiskTest : public FullDiskTest {
 protected:
  void SetUp() override {
    if (mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=3m,mode=700") != 0) {
      GTEST_SKIP() << "may not mount a file system: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(directory_.c_str(), MNT_DETACH);
  }

  // Fills the disk except for `but` bytes.
  void TakeAll(const std::string& path, size_t but) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto space = fs::space(directory_);
    ASSERT_EQ(posix_fallocate(fd, 0, space.available - but), 0);
    close(fd);
  }

  bool mounted_ = false;
};

TEST_F(SmallDiskTest, KeepsWorkingWhenFullAndStoresAgainWhenSpaceIsFreed) {
  auto store = Open();
  testing::internal::CaptureStderr();
  const uint64_t tried = Fill(*store, 20);
  // There is also no room for this sample's index word.
  EXPECT_EQ(Put(*store, 1 << 20, 0, "far away"), PutResult::kFailed);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "No space left", warnings);
  const int64_t stored = CountRight(*store, tried);
  EXPECT_EQ(stored, store->Stats().entries);
  EXPECT_GT(stored, 200);
  // Another process can use the stored samples.
  EXPECT_EQ(CountRight(*Open(), tried), stored);
  // Removing a large sample frees its space immediately.
  for (uint64_t i = 0; i < tried; i += 4) store->Remove(i, /*evict=*/true);
  for (uint64_t i = 0; i < 20; i += 4) {
    EXPECT_EQ(Put(*store, i, 1, Content(i, 1, Size(i))), PutResult::kStored);
  }
  store->Flush();
  for (uint64_t i = 0; i < 20; i += 4) {
    EXPECT_EQ(Get(*store, i), Content(i, 1, Size(i)));
  }
  store->Clear();
  for (uint64_t i = 0; i < tried / 2; ++i) {
    EXPECT_EQ(Put(*store, i, 0, Content(i, 0, Size(i))), PutResult::kStored);
  }
  store->Flush();
  EXPECT_EQ(CountRight(*store, tried), static_cast<int64_t>(tried / 2));
}

// A small sample's space is freed with its segment, a large one's immediately.
TEST_F(SmallDiskTest, PuttingNewerGenerationsFreesTheSpaceOfOlderOnes) {
  for (const size_t size : {size_t{3'000}, size_t{20'000}}) {
    DiskStoreOptions options;
    options.small_segment = 256 << 10;
    options.overwrite = true;
    auto store = Open(std::move(options));
    testing::internal::CaptureStderr();
    const uint64_t samples = (4 << 20) / size;
    int64_t most = 0;
    for (Generation generation = 0; generation < 6; ++generation) {
      for (uint64_t i = 0; i < samples; ++i) Put(*store, i, generation, Content(i, generation, size));
      store->Flush();
      store->Compact();
      int64_t stored = 0;
      for (uint64_t i = 0; i < samples; ++i) {
        const std::string content = Get(*store, i, {generation, generation});
        if (content == "absent") continue;
        EXPECT_EQ(content, Content(i, generation, size));
        ++stored;
      }
      EXPECT_EQ(store->Stats().entries, stored);
      if (generation > 0) most = std::max(most, stored);
    }
    EXPECT_GT(most * size, 1 << 20) << size;
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  }
}

// The written part of a record that did not fit takes no space.
TEST_F(SmallDiskTest, FreesTheSpaceOfARecordThatDidNotFit) {
  auto store = Open();
  Put(*store, 0, 0, Content(0, 0, 20'000));
  store->Flush();
  const auto before = fs::space(directory_).available;
  testing::internal::CaptureStderr();
  Put(*store, 1, 0, std::string(3 << 20, 'x'));
  store->Flush();
  EXPECT_EQ(Get(*store, 1), "absent");
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(fs::space(directory_).available, before);
  EXPECT_EQ(Get(*store, 0), Content(0, 0, 20'000));
}

// On a full disk, touching a hole of a mapped file kills the process.
TEST_F(SmallDiskTest, HolesInTheIndexAreFilledOrRefused) {
  {
    auto store = Open();
    Put(*store, 1, 0, "one");
  }
  const std::string index = directory_ + "/index";
  const auto size = fs::file_size(index);
  const std::string contents = ReadFile(index).substr(0, 4096);
  fs::remove(index);
  WriteFile(index, contents);
  fs::resize_file(index, size);
  const std::string filler = directory_ + "/store.new";  // A name that the store accepts.
  TakeAll(filler, 100 << 10);
  EXPECT_TRUE(absl::IsResourceExhausted(DiskStore::Open(directory_, {}).status()));
  fs::remove(filler);
  auto store = Open();
  EXPECT_EQ(Get(*store, 1), "one");
  TakeAll(filler, 0);
  EXPECT_EQ(Put(*store, 60'000, 0, "in the last page"), PutResult::kStored);
}

TEST_F(SmallDiskTest, OpeningFailsWithoutFreeSpace) {
  TakeAll(directory_ + "/filler", 64 << 10);
  const std::string path = directory_ + "/below";
  EXPECT_TRUE(absl::IsResourceExhausted(DiskStore::Open(path, {}).status()));
  fs::remove(directory_ + "/filler");
  EXPECT_TRUE(DiskStore::Open(path, {}).ok());
}

// A disk on which no file can be written beyond a limit.
class LimitedEnv : public StoreEnv {
 public:
  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    uint64_t end = offset;
    for (const iovec& part : parts) end += part.iov_len;
    if (end > limit_) return absl::ResourceExhaustedError("no space");
    return StoreEnv::Write(fd, offset, std::move(parts));
  }
  void set_limit(uint64_t limit) { limit_ = limit; }

 private:
  std::atomic<uint64_t> limit_{~uint64_t{0}};
};

class FullStoreTest : public StoreDirectoryTest {
 protected:
  static constexpr uint64_t kSamples = 40;
  static constexpr uint64_t kFit = 20;
  static constexpr size_t kSize = 1'000;
  static constexpr uint64_t kSpace = 1'088;  // The space of a record of `kSize` bytes.

  FullStoreTest() {
    EXPECT_EQ(RecordSpace(sizeof(RecordHeader) + kSize), kSpace);
    env_.set_limit(kFit * kSpace);
    store_ = Open(With(&DiskStoreOptions::env, &env_));
    testing::internal::CaptureStderr();
  }
  ~FullStoreTest() override {
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }

  void PutAll(Generation generation) {
    for (uint64_t i = 0; i < kSamples; ++i) {
      Put(*store_, i, generation, Content(i, generation, kSize));
    }
    store_->Flush();
  }

  // The samples that are stored in this generation.
  std::set<uint64_t> Stored(Generation generation) {
    std::set<uint64_t> stored;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const std::string content = Get(*store_, i, {generation, generation});
      if (content == "absent") continue;
      EXPECT_EQ(content, Content(i, generation, kSize));
      stored.insert(i);
    }
    return stored;
  }

  LimitedEnv env_;
  std::unique_ptr<DiskStore> store_;
};

TEST_F(FullStoreTest, DropsAnOlderGenerationEvenIfTheNewerOneDoesNotFit) {
  PutAll(0);
  for (uint64_t i = 0; i < kFit; i += 2) Put(*store_, i, 1, Content(i, 1, kSize));
  store_->Flush();
  EXPECT_EQ(Stored(1).size(), 0u);
  EXPECT_EQ(Stored(0).size(), kFit / 2);
  EXPECT_EQ(store_->Stats().entries, static_cast<int64_t>(kFit / 2));
}

}  // namespace
}  // namespace refurbish_tf
