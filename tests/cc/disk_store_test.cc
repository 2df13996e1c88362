#include "refurbish_tf/cc/store/disk/disk_store.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/crc32c.h"

namespace refurbish_tf {
namespace {

constexpr GenerationRange kAny;

GenerationRange AtLeast(Generation generation) { return {generation}; }

// The payload of a sample: another one for each index, generation and size.
std::string Content(uint64_t index, Generation generation, size_t size) {
  std::string content(size, '\0');
  uint64_t state = index * 0x9e3779b97f4a7c15 + generation * 31 + size + 1;
  for (char& byte : content) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(state >> 56);
  }
  return content;
}

class DiskStoreTest : public testing::Test {
 protected:
  DiskStoreTest() {
    std::signal(SIGXFSZ, SIG_IGN);  // As in Python.
    std::string name = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~DiskStoreTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<DiskStore> Open(DiskStoreOptions options = {}) {
    auto store = DiskStore::Open(directory_, std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static PutResult Put(DiskStore& store, uint64_t index, Generation generation,
                       const std::string& content) {
    const size_t half = content.size() / 2;
    char* data = const_cast<char*>(content.data());
    const iovec parts[] = {{data, half}, {data + half, content.size() - half}};
    return store.Put(index, generation, parts, 2);
  }

  static std::string Get(DiskStore& store, uint64_t index,
                         GenerationRange wanted = kAny) {
    RecordBuffer record;
    if (!store.Get(index, wanted, &record)) return "absent";
    return {record.payload(), record.payload_size()};
  }

  std::string directory_;
};

TEST_F(DiskStoreTest, GetsWhatWasPutBeforeAndAfterItIsWrittenAndInTheNextRun) {
  const size_t sizes[] = {0, 1, 3000, 16 << 10, 150'000, 3'000'000};
  {
    auto store = Open();
    for (uint64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(Put(*store, i, i, Content(i, i, sizes[i])), PutResult::kStored);
      EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    }
    store->Flush();
    for (uint64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    }
  }
  auto store = Open();
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(Get(*store, i), Content(i, i, sizes[i]));
    EXPECT_EQ(store->StoredGeneration(i), i);
  }
  EXPECT_EQ(Get(*store, 6), "absent");
  const DiskStore::Counts counts = store->Stats();
  EXPECT_EQ(counts.store.entries, 6);
  EXPECT_EQ(counts.store.hits, 6);
  EXPECT_EQ(counts.store.misses, 1);
  EXPECT_EQ(counts.corrupt, 0);
  EXPECT_EQ(counts.foreign_hits, 6);
}

TEST_F(DiskStoreTest, WhatIsWantedIsARangeOfGenerations) {
  auto store = Open();
  Put(*store, 7, 3, "three");
  for (const bool written : {false, true}) {
    EXPECT_EQ(Get(*store, 7, AtLeast(2)), "three");
    EXPECT_EQ(Get(*store, 7, {3, 3}), "three");
    EXPECT_EQ(Get(*store, 7, AtLeast(4)), "absent");
    EXPECT_EQ(Get(*store, 7, {2, 2}), "absent");
    EXPECT_TRUE(store->Contains(7, {3, 3}));
    EXPECT_FALSE(store->Contains(7, AtLeast(4)));
    EXPECT_EQ(Put(*store, 7, 2, "two"), PutResult::kNewerKept);
    if (!written) store->Flush();
  }
  EXPECT_EQ(Put(*store, 7, 4, "four"), PutResult::kStored);
  EXPECT_EQ(Get(*store, 7, AtLeast(4)), "four");
  store->Flush();
  EXPECT_EQ(Get(*store, 7, {3, 3}), "absent");
  EXPECT_EQ(store->Stats().store.evictions, 1);
}

TEST_F(DiskStoreTest, RemoveAndClear) {
  auto store = Open();
  for (const bool written : {false, true}) {
    Put(*store, 1, 0, "one");
    Put(*store, 2, 0, "two");
    if (written) store->Flush();
    EXPECT_TRUE(store->Remove(1, false));
    EXPECT_FALSE(store->Remove(1, false));
    EXPECT_EQ(Get(*store, 1), "absent");
    EXPECT_EQ(Get(*store, 2), "two");
    store->Flush();
    EXPECT_EQ(Get(*store, 1), "absent");
    EXPECT_EQ(store->Stats().store.entries, 1);
    store->Clear();
    EXPECT_EQ(Get(*store, 2), "absent");
    EXPECT_EQ(store->Stats().store.entries, 0);
    EXPECT_EQ(store->Stats().store.bytes, 0);
    EXPECT_EQ(store->Stats().disk_bytes, 0);
  }
  EXPECT_EQ(store->Stats().store.evictions, 0);
}

TEST_F(DiskStoreTest, ReadAheadGetsWhatGetGets) {
  auto store = Open();
  for (uint64_t i = 0; i < 500; ++i) Put(*store, i, 1, Content(i, 1, 100 * i));
  store->Flush();
  Put(*store, 3, 2, "newer, in memory");
  store->Remove(5, false);
  DiskStore::ReadAhead ahead(store.get());
  uint64_t started = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    std::vector<DiskStore::ReadAhead::Wanted> wanted;
    // Every third one is not started.
    for (size_t room = ahead.Room(); room > 0 && started < 500; --room) {
      if (started % 3 != 0) wanted.push_back({started, started, AtLeast(1)});
      ++started;
    }
    ahead.Start(wanted);
    if (i == 100) store->Remove(101, false);
    if (i == 200) Put(*store, 201, 5, "newest");
    RecordBuffer record;
    const bool hit = ahead.Get({i, i, AtLeast(1)}, &record);
    const std::string content = hit ? std::string(record.payload(), record.payload_size()) : "absent";
    EXPECT_EQ(content, i == 3                ? "newer, in memory"
                       : i == 5 || i == 101  ? "absent"
                       : i == 201            ? content
                                             : Content(i, 1, 100 * i));
  }
  EXPECT_EQ(store->Stats().store.hits, 498);
}

TEST_F(DiskStoreTest, TwoProcessesSeeEachOther) {
  auto one = Open();
  auto two = Open();
  Put(*one, 1, 0, "of one");
  Put(*two, 2, 0, "of two");
  one->Flush();
  two->Flush();
  EXPECT_EQ(Get(*one, 2), "of two");
  EXPECT_EQ(Get(*two, 1), "of one");
  EXPECT_EQ(two->Stats().store.entries, 2);
  EXPECT_EQ(two->Stats().foreign_hits, 1);
  Put(*two, 1, 1, "of two, newer");
  two->Flush();
  EXPECT_EQ(Get(*one, 1, AtLeast(1)), "of two, newer");
  EXPECT_TRUE(one->Remove(1, false));
  EXPECT_EQ(Get(*two, 1), "absent");
  auto overwriting = DiskStore::Open(directory_, [] {
    DiskStoreOptions options;
    options.overwrite = true;
    return options;
  }());
  EXPECT_TRUE(absl::IsFailedPrecondition(overwriting.status()));
  EXPECT_EQ(Get(*two, 2), "of two");
}

// Balanced eviction of r = 2: each epoch puts newer ones for every other sample,
// in a random order. The first epoch's segments hold both kinds.
TEST_F(DiskStoreTest, SpaceAndWriteAmplificationAreBounded) {
  for (const size_t size : {3'000, 40'000}) {
    DiskStoreOptions options;
    options.overwrite = true;
    auto store = Open(std::move(options));
    std::vector<uint64_t> order(60'000'000 / size);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    double most = 0;
    for (Generation generation = 0; generation < 6; ++generation) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i = 0; i < order.size(); ++i) {
        const uint64_t index = order[i];
        if (generation > 0 && index % 2 != generation % 2) continue;
        Put(*store, index, generation, Content(index, generation, size));
        if (generation > 0 && i % 100 == 0) {
          const DiskStore::Counts counts = store->Stats();
          most = std::max(most, 1.0 * counts.disk_bytes / counts.store.bytes);
        }
      }
    }
    store->Flush();
    const DiskStore::Counts counts = store->Stats();
    EXPECT_EQ(counts.store.entries, static_cast<int64_t>(order.size()));
    EXPECT_LT(most, 2);
    const double amplification =
        1.0 * (counts.bytes_put + counts.bytes_moved) / counts.bytes_put;
    EXPECT_LT(amplification, 2);
    std::cout << size << " bytes: space " << most << " times what is live, "
              << "write amplification " << amplification << std::endl;
    // The space of large records is given back one by one.
    EXPECT_EQ(counts.compactions > 0, size < kLargeRecord);
    for (const uint64_t index : order) {
      const Generation generation = index % 2 == 1 ? 5 : 4;
      ASSERT_EQ(Get(*store, index), Content(index, generation, size)) << index;
    }
  }
}

}  // namespace
}  // namespace refurbish_tf
