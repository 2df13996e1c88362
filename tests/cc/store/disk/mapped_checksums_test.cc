// Checksums of the elements that samples were prepared from. Uncertain checksums count as unknown.
#include "refurbish_tf/cc/store/disk/mapped_checksums.h"

#include <cstdint>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kPlatform = 7;

class MappedChecksumsTest : public StoreDirectoryTest {
 protected:
  std::string File() const { return directory_ + "/sources"; }
};

TEST_F(MappedChecksumsTest, TheLastChecksumPersists) {
  {
    auto store = Open();
    SourceChecksums& sums = store->source_sums();
    EXPECT_EQ(sums.Find(3, kPlatform), 0u);
    EXPECT_FALSE(std::filesystem::exists(File()));
    EXPECT_TRUE(sums.Set(3, kPlatform, 11));
    EXPECT_TRUE(sums.Set(3, kPlatform, 10));
    // Far beyond the first part of the file.
    EXPECT_TRUE(sums.Set(200'000, kPlatform, 12));
  }
  auto store = Open();
  SourceChecksums& sums = store->source_sums();
  EXPECT_EQ(sums.Find(3, kPlatform), 10u);
  EXPECT_EQ(sums.Find(200'000, kPlatform), 12u);
  // Checksums from another platform cannot be compared.
  EXPECT_EQ(sums.Find(3, kPlatform + 1), 0u);
  EXPECT_TRUE(sums.Set(3, kPlatform + 1, 11));
  EXPECT_EQ(sums.Find(3, kPlatform + 1), 11u);
}

TEST_F(MappedChecksumsTest, AnyFlippedBitMakesAChecksumUnknown) {
  {
    auto store = Open();
    store->source_sums().Set(0, kPlatform, 0x12345678);
  }
  const std::string file = ReadFile(File());
  for (int bit = 0; bit < 64; ++bit) {
    std::string damaged = file;
    damaged[bit / 8] ^= 1 << bit % 8;
    WriteFile(File(), damaged);
    auto store = Open();
    EXPECT_EQ(store->source_sums().Find(0, kPlatform), 0u) << bit;
    EXPECT_TRUE(store->source_sums().Set(0, kPlatform, 5)) << bit;
    EXPECT_EQ(store->source_sums().Find(0, kPlatform), 5u) << bit;
  }
}

TEST_F(MappedChecksumsTest, ChecksumsOfOtherSamplesAndStoresAreUnknown) {
  {
    auto store = Open();
    store->source_sums().Set(0, kPlatform, 10);
  }
  std::string file = ReadFile(File());
  file.replace(8, 8, file.substr(0, 8));
  WriteFile(File(), file);
  EXPECT_EQ(Open()->source_sums().Find(1, kPlatform), 0u);
  Open(With(&DiskStoreOptions::overwrite, true));
  WriteFile(File(), file);
  EXPECT_EQ(Open()->source_sums().Find(0, kPlatform), 0u);
}

TEST_F(MappedChecksumsTest, RemovingASampleForgetsItsChecksumButEvictingDoesNot) {
  auto store = Open();
  SourceChecksums& sums = store->source_sums();
  for (uint64_t i = 0; i < 3; ++i) {
    Put(*store, i, 0, "sample");
    sums.Set(i, kPlatform, 10);
  }
  store->Remove(0, /*evict=*/true);
  store->Remove(1, /*evict=*/false);
  EXPECT_EQ(sums.Find(0, kPlatform), 10u);
  EXPECT_EQ(sums.Find(1, kPlatform), 0u);
  EXPECT_EQ(sums.Find(2, kPlatform), 10u);
  store->Clear();
  EXPECT_EQ(sums.Find(2, kPlatform), 0u);
}

// A disk that can be full, so that files cannot be extended.
class NoRoom : public StoreEnv {
 public:
  absl::Status Allocate(int fd, uint64_t offset, uint64_t size) override {
    return full ? absl::ResourceExhaustedError("full") : StoreEnv::Allocate(fd, offset, size);
  }
  bool full = false;
};

TEST_F(MappedChecksumsTest, ChecksumsStayInMemoryWithoutRoomOnDisk) {
  NoRoom env;
  auto store = Open(With(&DiskStoreOptions::env, &env));
  env.full = true;
  EXPECT_FALSE(store->source_sums().Set(0, kPlatform, 10));
  SourceChecks checks;
  EXPECT_TRUE(checks.Begin(SourceKind::kRepeats, &store->source_sums(), kPlatform, Shard()));
  checks.Note(0, 10, /*in_store=*/true);
  EXPECT_EQ(checks.Compare(0, 10), Compared::kSame);
  EXPECT_EQ(checks.Compare(0, 11), Compared::kOther);
}

TEST_F(MappedChecksumsTest, OnlyMismatchesWithStoredSamplesAreRefused) {
  auto store = Open();
  SourceChecks checks;
  EXPECT_FALSE(checks.checks());
  EXPECT_TRUE(checks.Begin(SourceKind::kRepeats, &store->source_sums(), kPlatform, Shard()));
  EXPECT_FALSE(checks.Begin(SourceKind::kDraws, nullptr, kPlatform, Shard()));
  EXPECT_EQ(checks.Compare(0, 10), Compared::kSame);
  checks.Note(0, 10, /*in_store=*/false);
  EXPECT_EQ(checks.Compare(0, 11), Compared::kOther);
  checks.Note(0, 11, /*in_store=*/true);
  EXPECT_EQ(checks.Compare(0, 11), Compared::kSame);
  EXPECT_EQ(checks.Compare(0, 10), Compared::kRefused);
  SourceChecks of_python;
  EXPECT_TRUE(of_python.Begin(SourceKind::kMayChange, &store->source_sums(), kPlatform, Shard()));
  EXPECT_EQ(of_python.Compare(0, 10), Compared::kOther);
}

TEST(ChecksumsInMemoryTest, HoldAChecksumAtAnyIndex) {
  ChecksumsInMemory sums;
  const uint32_t indices[] = {0, 1, 1023, 1024, 3071, 3072, 5'000'000};
  for (const uint32_t index : indices) {
    EXPECT_EQ(sums.Find(index), 0u);
    sums.Set(index, index + 1);
  }
  for (const uint32_t index : indices) EXPECT_EQ(sums.Find(index), index + 1);
}

TEST(ChecksumsInMemoryTest, ServeManyThreads) {
  constexpr uint32_t kSamples = 20'000;
  ChecksumsInMemory sums;
  Threads(4, [&sums](int) {
    for (uint32_t index = 0; index < kSamples; ++index) {
      sums.Set(index, index + 1);
      EXPECT_EQ(sums.Find(index), index + 1);
    }
  }).Join();
}

}  // namespace
}  // namespace refurbish_tf
