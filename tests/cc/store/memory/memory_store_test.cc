#include "refurbish_tf/cc/store/memory/memory_store.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

// Like a tensor, a counted reference to data.
using Sample = std::shared_ptr<const std::string>;

Sample MakeSample(const std::string& text) { return std::make_shared<const std::string>(text); }

int64_t BytesOf(const Sample& sample) { return sample == nullptr ? 0 : sample->size(); }

void NoPrefetch(const Sample* const*, size_t) {}

TEST(MemoryStoreTest, HoldsTheSampleItself) {
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch);
  const Sample sample = MakeSample("abc");
  EXPECT_EQ(store.Put(5, 0, sample), PutResult::kStored);
  Sample found;
  Generation generation;
  ASSERT_TRUE(store.Get(5, {0, 0}, &found, &generation));
  EXPECT_EQ(found.get(), sample.get());
  EXPECT_EQ(sample.use_count(), 3);
}

TEST(MemoryStoreTest, LooksUpManySamplesAtOnceAndPrefetchesThem) {
  std::vector<Sample> brought;
  MemoryStore<Sample> store(kUnlimited, BytesOf, [&](const Sample* const* samples, size_t count) {
    for (size_t i = 0; i < count; ++i) brought.push_back(*samples[i]);
  });
  const Sample one = MakeSample("one");
  const Sample two = MakeSample("two");
  store.Put(1, 0, one);
  store.Put(5000, 7, two);
  // Includes absent samples, and more samples than are prefetched at once.
  std::vector<MemoryStore<Sample>::Lookup> lookups(100);
  for (auto& lookup : lookups) lookup.index = 4'000'000'000;
  lookups[3].index = lookups[90].index = 5000;
  lookups[3].wanted = {8, 8};
  lookups[90].last_use = true;
  lookups[9].index = 1;
  store.LookUp(lookups.data(), lookups.size());
  EXPECT_EQ(brought, std::vector<Sample>({two, one, two}));
  for (size_t i = 0; i < lookups.size(); ++i) EXPECT_EQ(lookups[i].hit, i == 9 || i == 90) << i;
  EXPECT_EQ(lookups[9].sample, one);
  EXPECT_EQ(lookups[90].sample, two);
  EXPECT_EQ(lookups[90].generation, 7u);
  EXPECT_EQ(store.Stats().hits, 2);
  EXPECT_EQ(store.Stats().misses, 98);
  EXPECT_EQ(store.Stats().entries, 1);
}

TEST(MemoryStoreTest, HitsOnlyTheWantedGeneration) {
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch);
  Sample found;
  Generation generation;
  EXPECT_FALSE(store.Get(7, {0, 0}, &found, &generation));
  store.Put(7, 3, MakeSample("three"));
  EXPECT_FALSE(store.Get(7, {2, 2}, &found, &generation));
  EXPECT_FALSE(store.Get(7, {4, 4}, &found, &generation));
  EXPECT_FALSE(store.Contains(7, {2, 2}));
  EXPECT_TRUE(store.Contains(7, {3, 3}));
  EXPECT_TRUE(store.Get(7, {3, 3}, &found, &generation));
  EXPECT_EQ(*found, "three");
  EXPECT_TRUE(store.Get(7, {}, &found, &generation));
  EXPECT_EQ(store.StoredGeneration(7), 3u);
  EXPECT_EQ(store.StoredGeneration(8), kNoGeneration);
}

TEST(MemoryStoreTest, KeepsTheNewestGeneration) {
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch);
  store.Put(1, 5, MakeSample("new"));
  EXPECT_EQ(store.Put(1, 4, MakeSample("old")), PutResult::kNewerKept);
  Sample found;
  Generation generation;
  ASSERT_TRUE(store.Get(1, {}, &found, &generation));
  EXPECT_EQ(*found, "new");
  EXPECT_EQ(store.Put(1, 6, MakeSample("newer")), PutResult::kStored);
  EXPECT_EQ(store.Stats().entries, 1);
  EXPECT_EQ(store.Stats().evictions, 1);
}

TEST(MemoryStoreTest, FreesReplacedRemovedAndClearedSamples) {
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch);
  const Sample first = MakeSample("1"), second = MakeSample("2"), third = MakeSample("3");
  store.Put(0, 0, first);
  store.Put(0, 1, second);
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_TRUE(store.Remove(0, /*evict=*/false));
  EXPECT_FALSE(store.Remove(0, /*evict=*/false));
  EXPECT_EQ(second.use_count(), 1);
  store.Put(1ULL << 60, 0, third);
  store.Clear();
  EXPECT_EQ(third.use_count(), 1);
  EXPECT_EQ(store.Stats().entries, 0);
  EXPECT_EQ(store.Stats().bytes, 0);
}

TEST(MemoryStoreTest, ReleasesASampleAtItsLastUse) {
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch);
  store.Put(4, 2, MakeSample("four"));
  MemoryStore<Sample>::Lookup early{4, {1, 1}, true}, last{4, {2, 2}, true}, late = last;
  store.LookUp(&early, 1);
  EXPECT_FALSE(early.hit);
  store.LookUp(&last, 1);
  ASSERT_TRUE(last.hit);
  EXPECT_EQ(*last.sample, "four");
  EXPECT_EQ(last.sample.use_count(), 1);
  store.LookUp(&late, 1);
  EXPECT_FALSE(late.hit);
  const SampleMapStats stats = store.Stats();
  EXPECT_EQ(stats.entries, 0);
  EXPECT_EQ(stats.bytes, 0);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.misses, 2);
  EXPECT_EQ(stats.evictions, 1);
}

// Guarantee G8 of ARCHITECTURE.md.
TEST(MemoryStoreTest, NeverHoldsMoreThanItsLimit) {
  MemoryStore<Sample> store(10, BytesOf, NoPrefetch);
  EXPECT_EQ(store.Put(0, 0, MakeSample("1234")), PutResult::kStored);
  EXPECT_EQ(store.Put(1, 0, MakeSample("123456")), PutResult::kStored);
  EXPECT_EQ(store.Put(2, 0, MakeSample("1")), PutResult::kNoRoom);
  EXPECT_EQ(store.Stats().bytes, 10);
  // A sample whose new version is too large is not kept, and its old version is not handed out either.
  EXPECT_EQ(store.Put(0, 1, MakeSample("12345")), PutResult::kNoRoom);
  EXPECT_EQ(store.StoredGeneration(0), kNoGeneration);
  EXPECT_EQ(store.Stats().bytes, 6);
  EXPECT_TRUE(store.Remove(1, /*evict=*/true));
  EXPECT_EQ(store.Put(0, 1, MakeSample("1234567890")), PutResult::kStored);
  EXPECT_EQ(store.Stats().entries, 1);
}

constexpr int64_t kGiB = int64_t{1} << 30;

// A machine of 40 GiB, which has a reserve of 4 GiB, and samples of 1 GiB.
struct Machine {
  int64_t free = 30 * kGiB;
  int readings = 0;
  std::vector<std::string> warnings;
  MemoryStore<Sample> store;

  explicit Machine(int64_t max_bytes = kUnlimited)
      : store(
            max_bytes, [](const Sample& sample) { return sample == nullptr ? 0 : kGiB; }, NoPrefetch,
            [this] { return ++readings, Memory{40 * kGiB, free}; },
            [this](const std::string& text) { warnings.push_back(text); }) {}

  PutResult Put(uint64_t index) { return store.Put(index, 0, MakeSample("")); }
  // Uses the store until the next reading of free memory.
  void Look() {
    for (const int before = readings; readings == before; store.LookAtMemory()) store.Contains(0, {});
  }
};

// Guarantee G8 of ARCHITECTURE.md.
TEST(MemoryStoreTest, DoesNotGrowWhileMemoryIsShort) {
  Machine machine;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(machine.Put(i), PutResult::kStored);
  machine.free = 4 * kGiB - 1;
  machine.Look();
  EXPECT_EQ(machine.store.Stats().entries, 10);
  EXPECT_EQ(machine.Put(10), PutResult::kMemoryShort);
  EXPECT_FALSE(machine.store.HasRoom(1));
  EXPECT_EQ(machine.store.max_bytes(), kUnlimited);
  // Removing two samples makes room for two others.
  machine.store.Remove(0, /*evict=*/false);
  machine.store.Remove(1, /*evict=*/true);
  EXPECT_TRUE(machine.store.HasRoom(kGiB));
  EXPECT_EQ(machine.Put(11), PutResult::kStored);
  EXPECT_EQ(machine.Put(12), PutResult::kStored);
  EXPECT_EQ(machine.Put(13), PutResult::kMemoryShort);
  // Puts are refused until twice the reserve is free.
  machine.free = 8 * kGiB - 1;
  machine.Look();
  EXPECT_EQ(machine.Put(13), PutResult::kMemoryShort);
  machine.free = 8 * kGiB;
  machine.Look();
  for (int i = 13; i < 20; ++i) EXPECT_EQ(machine.Put(i), PutResult::kStored);
  EXPECT_EQ(machine.store.Stats().entries, 17);
}

// Guarantee G8 of ARCHITECTURE.md.
TEST(MemoryStoreTest, DropsSamplesEvenlyWhileMemoryIsVeryShort) {
  Machine machine;
  for (int i = 0; i < 2000; ++i) machine.Put(i);
  machine.free = kGiB / 2;
  machine.Look();
  // A reading drops 1.5 GiB, because half of the reserve, 2 GiB, must be free.
  const int64_t left = machine.store.Stats().entries;
  EXPECT_LE(left, 1999);
  EXPECT_GE(left, 1990);
  machine.free = 3 * kGiB;
  machine.Look();
  EXPECT_EQ(machine.store.Stats().entries, left);
  EXPECT_EQ(machine.store.Stats().bytes, left * kGiB);
  EXPECT_EQ(machine.store.Stats().evictions, 2000 - left);
  EXPECT_EQ(machine.Put(3000), PutResult::kMemoryShort);
  // When half of the samples must go, each ten neighbours lose 3 to 7.
  machine.free = 2 * kGiB - left * kGiB / 2;
  machine.Look();
  for (int i = 0; i + 10 <= 2000; i += 10) {
    int kept = 0;
    for (int j = i; j < i + 10; ++j) kept += machine.store.StoredGeneration(j) != kNoGeneration;
    EXPECT_GE(kept, 3) << i;
    EXPECT_LE(kept, 7) << i;
  }
}

// Ten samples with consecutive numbers share a region.
class StoreOfRegions : public MemoryStore<Sample> {
 public:
  StoreOfRegions()
      : MemoryStore(
            kUnlimited, [](const Sample& sample) { return sample == nullptr ? 0 : kGiB / 8; }, NoPrefetch,
            [this] { return ++readings, Memory{40 * kGiB, free}; }, [](const std::string&) {}) {}

  int readings = 0;
  int64_t free = 30 * kGiB;
  // By region, the number of samples whose pages were returned.
  mutable std::map<uint64_t, int> returned;
  // Called once, while pages are returned.
  mutable std::function<void()> during;

 protected:
  uint64_t Region(const Sample& sample) const override { return std::stoi(*sample) / 10; }
  void ReturnPages(const Sample& sample) const override {
    Stats();  // Would deadlock if a lock were held.
    if (sample != nullptr) ++returned[Region(sample)];
    if (during) std::exchange(during, nullptr)();
  }
};

// Guarantee G8 of ARCHITECTURE.md: a page or slab goes back to the system only when all its samples are dropped.
TEST(MemoryStoreTest, DropsWholeRegionsEvenly) {
  StoreOfRegions store;
  for (int i = 0; i < 2000; ++i) store.Put(i * 7919 % 2000, 0, MakeSample(std::to_string(i)));
  const auto look = [&](int64_t free) {
    store.free = free;
    for (const int before = store.readings; store.readings == before; store.LookAtMemory()) store.Contains(0, {});
  };
  // 50 of 250 GiB must go, in regions of 1.25 GiB.
  look(-48 * kGiB);
  EXPECT_EQ(store.Stats().entries, 1600);
  EXPECT_EQ(store.returned.size(), 40u);
  for (const auto& [region, samples] : store.returned) EXPECT_EQ(samples, 10) << region;
  for (uint64_t i = 0; i < 200; i += 20) {
    EXPECT_EQ(std::distance(store.returned.lower_bound(i), store.returned.lower_bound(i + 20)), 4) << i;
  }
  look(2 * kGiB);
  EXPECT_EQ(store.Stats().entries, 1600);
  look(2 * kGiB - 1);
  EXPECT_EQ(store.Stats().entries, 1590);
  store.Clear();
  EXPECT_EQ(store.returned.size(), 200u);
}

TEST(MemoryStoreTest, PendingFreesDoNotCauseFurtherDrops) {
  StoreOfRegions store;
  for (int i = 0; i < 2000; ++i) store.Put(i, 0, MakeSample(std::to_string(i)));
  store.free = -48 * kGiB;
  store.during = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    std::thread([&] {
      for (int i = 0; i < 100; ++i, store.LookAtMemory()) store.Contains(0, {});
    }).join();
    EXPECT_EQ(store.Stats().entries, 1600);
    store.free = 2 * kGiB;
  };
  while (store.Stats().entries == 2000) {
    store.Contains(0, {});
    store.LookAtMemory();
  }
  EXPECT_EQ(store.Stats().entries, 1600);
}

TEST(MemoryStoreTest, IsNotShortOfMemoryIfFreeMemoryIsUnknown) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  MemoryStore<Sample> store(kUnlimited, BytesOf, NoPrefetch, [] { return Memory{kUnknown, kUnknown}; });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store.Put(i, 0, MakeSample("a")), PutResult::kStored);
}

// However fast puts are, they make a reading due whenever they have used a part of the free memory.
TEST(MemoryStoreTest, ChecksMemoryAgainBeforeMuchOfItIsUsed) {
  Machine machine;
  for (int i = 0; i < 1000; ++i) machine.Put(i);
  EXPECT_GE(machine.readings, 1000 / 3);
}

TEST(MemoryStoreTest, HitsAloneDetectASevereMemoryShortage) {
  Machine machine;
  for (int i = 0; i < 10; ++i) machine.Put(i);
  machine.free = 0;
  Sample found;
  Generation generation;
  for (const int before = machine.readings; machine.readings == before; machine.store.LookAtMemory()) {
    machine.store.Get(9, {}, &found, &generation);
  }
  EXPECT_LT(machine.store.Stats().entries, 10);
}

// If a store is full, its limit in bytes decides which samples a stage keeps, even while memory is short.
TEST(MemoryStoreTest, AFullStoreIsNotShortOfMemory) {
  Machine machine(5 * kGiB);
  for (int i = 0; i < 5; ++i) machine.Put(i);
  machine.free = 3 * kGiB;
  machine.Look();
  EXPECT_EQ(machine.Put(5), PutResult::kNoRoom);
  EXPECT_TRUE(machine.warnings.empty());
}

TEST(MemoryStoreTest, WarnsOnceThatMemoryIsShortAndOnlyIfASampleIsLost) {
  Machine machine;
  for (int i = 0; i < 10; ++i) machine.Put(i);
  machine.free = 3 * kGiB;
  machine.Look();
  EXPECT_TRUE(machine.warnings.empty());
  machine.Put(10);
  machine.free = 8 * kGiB;
  machine.Look();
  machine.free = 3 * kGiB;
  machine.Look();
  // Sample 10 was lost in the earlier shortage, not in this one.
  EXPECT_TRUE(machine.warnings.empty());
  for (int round = 0; round < 3; ++round) {
    machine.Put(10);
    machine.Look();
  }
  ASSERT_EQ(machine.warnings.size(), 1u);
  EXPECT_NE(machine.warnings[0].find("the 10 samples (10240 MiB)"), std::string::npos) << machine.warnings[0];
}

TEST(MemoryStoreTest, ServesManyThreads) {
  constexpr uint64_t kIndices = 3000;
  MemoryStore<Sample> store(kIndices * 8, BytesOf, NoPrefetch);
  std::atomic<int> wrong{0};
  Threads(4, [&store, &wrong](int t) {
    for (uint64_t k = 0; k < 4 * kIndices; ++k) {
      const uint64_t index = (k * 7919 + t) % kIndices;
      const Generation generation = k % 3;
      Sample found;
      Generation got;
      if (store.Get(index, {generation, generation}, &found, &got)) {
        wrong += *found != std::to_string(index * 10 + generation);
      } else {
        store.Put(index, generation, MakeSample(std::to_string(index * 10 + generation)));
      }
      if (k % 17 == 0) store.Remove(index, /*evict=*/false);
      if (k % 5000 == 0) store.Clear();
    }
  }).Join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(store.Stats().bytes, static_cast<int64_t>(kIndices * 8));
}

}  // namespace
}  // namespace refurbish_tf
