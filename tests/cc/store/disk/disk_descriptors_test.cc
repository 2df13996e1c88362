// The number of open files is bounded, however many segments there are. Lowers the limit of the process.
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <iterator>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

using DiskDescriptorsTest = StoreDirectoryTest;

int64_t CountOpen() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

TEST_F(DiskDescriptorsTest, AreBoundedForAnyNumberOfSegments) {
  constexpr uint64_t kSamples = 600;
  constexpr size_t kSize = 4'000;
  const int64_t before = CountOpen();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit lower = {400, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  // The first store writes the segments; the second one adopts them.
  for (const Generation generation : {0, 1}) {
    DiskStoreOptions options;
    options.small_segment = 4 << 10;  // One for each sample.
    options.write_buffer = 4 << 10;
    auto store = Open(std::move(options));
    for (uint64_t i = 0; i < kSamples; ++i) {
      if (generation > 0) {
        EXPECT_EQ(Get(*store, i), Content(i, 0, kSize));
      }
      EXPECT_EQ(Put(*store, i, generation, Content(i, generation, kSize)), PutResult::kStored);
    }
    store->Flush();
    EXPECT_GE(store->DiskUsage().segments, int64_t{kSamples});
    EXPECT_LE(CountOpen() - before, static_cast<int64_t>(Segments::kMostOpen) + 20);
    for (uint64_t i = 0; i < kSamples; ++i) {
      EXPECT_EQ(Get(*store, i), Content(i, generation, kSize)) << i;
    }
    // All segments belong to this store, so no dead segment stays.
    store->Compact();
    EXPECT_LT(store->DiskUsage().segments, int64_t{2 * kSamples});
    EXPECT_EQ(store->counts().failed_writes, 0);
    EXPECT_EQ(store->counts().corrupt, 0);
  }
  EXPECT_EQ(CountOpen(), before);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace refurbish_tf
