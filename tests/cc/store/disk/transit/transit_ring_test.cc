// The ring of samples in transit: other processes get exactly the bytes that one process puts, or nothing.
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
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

using State = TransitRing::Entry::State;

class TransitRingTest : public TransitTest {};

TEST_F(TransitRingTest, OneProcessGetsSamplesPutByAnother) {
  auto one = OpenRing(16, 3'000);
  auto two = OpenRing(16, 3'000);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(PutInTransit(*one, i, 1, Content(i, 1, 3'000)), PutResult::kStored);
    EXPECT_EQ(two->transit()->head(), i + 1);
  }
  one->Flush();
  const std::vector<Found> found = Walk(*two);
  ASSERT_EQ(found.size(), 10);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(found[i].position, i);
    EXPECT_EQ(found[i].index, i);
    EXPECT_EQ(found[i].tag, 1);
    EXPECT_EQ(Get(*two, i, i), Content(i, 1, 3'000));
  }
  EXPECT_EQ(two->Stats().hits, 10);
  EXPECT_EQ(two->counts().from_other_jobs, 10);
  EXPECT_EQ(one->counts().transit_bytes_put, 10 * RecordSpace(sizeof(RecordHeader) + 3'000));
  EXPECT_EQ(one->Stats().entries, 0);
}

TEST_F(TransitRingTest, ANewRecordReplacesTheOldest) {
  auto one = OpenRing(8, 3'000);
  auto two = OpenRing(8, 3'000);
  for (uint64_t i = 0; i < 20; ++i) {
    PutInTransit(i % 3 == 0 ? *two : *one, i, i, Content(i, i, 3'000));
    one->Flush();
    two->Flush();
  }
  const std::vector<Found> found = Walk(*one);
  ASSERT_EQ(found.size(), 8);
  for (uint64_t i = 12; i < 20; ++i) {
    EXPECT_EQ(found[i - 12].position, i);
    EXPECT_EQ(Get(*one, i, i), Content(i, i, 3'000));
    EXPECT_EQ(Get(*one, i, i, AtLeast(i + 1)), "absent");
    EXPECT_EQ(Get(*one, i, i + 1), "absent");
  }
  EXPECT_EQ(one->transit()->At(0).state, State::kGone);
  EXPECT_EQ(one->transit()->At(0).next, 12);
  EXPECT_EQ(Get(*one, 11, 11), "absent");
  EXPECT_EQ(Get(*one, 20, 20), "absent");
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/transit"), 8 * Space(3'000));
  EXPECT_EQ(one->ring_bytes(), one->DiskUsage().disk_bytes);
  EXPECT_EQ(one->counts().corrupt, 0);
}

TEST_F(TransitRingTest, AnEntryReplacedBeforeOrDuringAReadIsNeverWrong) {
  for (const bool written : {true, false}) {
    std::filesystem::remove_all(directory_);
    auto other = OpenRing(8, 3'000, With(&DiskStoreOptions::write_delay_ms, 1'000'000));
    std::function<void()> before_read;
    auto store = OpenRing(8, 3'000, With(&DiskStoreOptions::read_queue, std::make_unique<HookedReads>(&before_read)));
    for (uint64_t i = 0; i < 8; ++i) PutInTransit(*other, i, 1, Content(i, 1, 3'000));
    other->Flush();
    const auto put = [&](uint64_t index) {
      PutInTransit(*other, index, 1, Content(index, 1, 3'000));
      if (written) other->Flush();
    };
    // Sample 1 is also kept, but a read from the ring must not return the kept record.
    Put(*store, 1, 1, Content(1, 1, 3'000));
    before_read = [&] {
      before_read = nullptr;
      put(8);
      put(9);
    };
    // The old bytes can be read until the new record is written over them.
    EXPECT_EQ(Get(*store, 1, 1), written ? "absent" : Content(1, 1, 3'000));
    EXPECT_EQ(Get(*store, 2, 2), Content(2, 1, 3'000));
    // Sample 2 is replaced after it was read ahead, but before `Get`.
    DiskReadAhead ahead(store.get());
    ahead.Want({{0, 3, kAny, 3}, {1, 2, kAny, 2}});
    ahead.Start();
    put(10);
    RecordBuffer record;
    const bool hit = ahead.Get({1, 2, kAny, 2}, &record);
    if (hit) {
      EXPECT_EQ(std::string(record.payload(), record.payload_size()), Content(2, 1, 3'000));
    }
    EXPECT_TRUE(ahead.Get({0, 3, kAny, 3}, &record));
    EXPECT_TRUE(record.foreign);
    EXPECT_EQ(store->counts().corrupt, 0);
    EXPECT_EQ(store->Stats().misses, written + !hit);
    EXPECT_EQ(store->Stats().hits, 4 - written - !hit);
  }
}

TEST_F(TransitRingTest, SkipsRecordsBeingWritten) {
  auto one = OpenRing(8, 3'000, With(&DiskStoreOptions::write_delay_ms, 1'000'000));
  auto two = OpenRing(8, 3'000);
  PutInTransit(*one, 0, 1, Content(0, 1, 3'000));
  PutInTransit(*two, 1, 1, Content(1, 1, 3'000));
  two->Flush();
  EXPECT_EQ(two->transit()->At(0).state, State::kPending);
  EXPECT_EQ(Get(*two, 0, 0), "absent");
  ASSERT_EQ(Walk(*two).size(), 1);
  EXPECT_EQ(Walk(*two)[0].index, 1);
  one->Flush();
  EXPECT_EQ(Walk(*two).size(), 2);
  EXPECT_EQ(Get(*two, 0, 0), Content(0, 1, 3'000));
  // The rest is written when the store is closed.
  PutInTransit(*one, 2, 1, Content(2, 1, 3'000));
  one.reset();
  EXPECT_EQ(Walk(*two).size(), 3);
}

TEST_F(TransitRingTest, APositionThatWasNeverMarkedIsGone) {
  auto store = OpenRing(8, 3'000);
  for (uint64_t i = 0; i < 8; ++i) PutInTransit(*store, i, 1, Content(i, 1, 3'000));
  store->Flush();
  // Simulates a process that died after it advanced the head.
  uint64_t head = 8;
  ASSERT_TRUE(store->state().ExchangeRing(SharedState::kHead, &head, 10));
  EXPECT_EQ(store->transit()->At(8).state, State::kGone);
  EXPECT_EQ(store->transit()->At(8).next, 9);
  EXPECT_EQ(Get(*store, 8, 0), "absent");
  EXPECT_EQ(Walk(*store).size(), 6);
}

TEST_F(TransitRingTest, ADamagedWordDoesNotHideOtherRecords) {
  auto store = OpenRing(32, 3'000);
  for (uint64_t i = 0; i < 32; ++i) PutInTransit(*store, i, 1, Content(i, 1, 3'000));
  store->Flush();
  const int fd = open((directory_ + "/ring").c_str(), O_RDWR | O_CLOEXEC);
  for (const auto& [first, units] : {std::pair<uint64_t, uint64_t>(3, 5), {10, 0}, {30, 3}}) {
    uint64_t word = 0;
    ASSERT_EQ(pread(fd, &word, sizeof(word), first * sizeof(word)), sizeof(word));
    word ^= (units ^ 1) << 6;
    ASSERT_EQ(pwrite(fd, &word, sizeof(word), first * sizeof(word)), sizeof(word));
    EXPECT_EQ(store->transit()->At(first).state, State::kGone);
    EXPECT_EQ(store->transit()->At(first).next, first + 1);
  }
  close(fd);
  EXPECT_EQ(Walk(*store).size(), 29);
}

TEST_F(TransitRingTest, AnOvertakenWriterWritesNothing) {
  RingEnv env;
  DiskStoreOptions late;
  late.write_delay_ms = 1'000'000;
  late.env = &env;
  auto one = OpenRing(8, 3'000, std::move(late));
  auto two = OpenRing(8, 3'000);
  PutInTransit(*one, 100, 1, Content(100, 1, 3'000));
  for (uint64_t i = 1; i <= 8; ++i) PutInTransit(*two, i, 1, Content(i, 1, 3'000));
  two->Flush();
  one->Flush();
  EXPECT_EQ(env.writes, 0);
  EXPECT_EQ(one->counts().transit_bytes_put, 0);
  for (uint64_t i = 1; i <= 8; ++i) EXPECT_EQ(Get(*one, i, i), Content(i, 1, 3'000));
}

TEST_F(TransitRingTest, RecordsOfVaryingSizesWrapAroundTheRing) {
  auto one = Open();
  auto two = Open();
  EXPECT_TRUE(one->PlanTransit(64'000, -1).ok());
  EXPECT_TRUE(two->PlanTransit(32'000, -1).ok());
  EXPECT_EQ(one->transit()->num_units(), 64'000 / 64);
  EXPECT_TRUE(Walk(*two).empty());
  const auto size = [](uint64_t i) { return 100 + i * 37 % 6'000; };
  uint64_t wrapped = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    DiskStore& store = i % 2 == 0 ? *one : *two;
    const uint64_t head = store.transit()->head();
    ASSERT_EQ(PutInTransit(store, i, i, Content(i, i, i == 0 ? 3'000 : size(i))), PutResult::kStored) << i;
    store.Flush();
    const std::vector<Found> found = Walk(*two);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.back().index, i);
    wrapped += found.back().position != head;
    if (i % 10 != 9) continue;
    for (const Found& there : found) {
      const uint64_t index = there.index;
      EXPECT_EQ(Get(*one, there.position, index), Content(index, index, index == 0 ? 3'000 : size(index)));
    }
    EXPECT_GE(found.size(), std::min<uint64_t>(i, 8));
    // The samples found are consecutive.
    for (size_t j = 1; j < found.size(); ++j) EXPECT_EQ(found[j].index, found[j - 1].index + 1);
  }
  EXPECT_GT(wrapped, 0);
  EXPECT_EQ(one->transit()->num_units(), two->transit()->num_units());
  EXPECT_LE(std::filesystem::file_size(directory_ + "/transit"), 64'000);
  // A record may take at most an eighth of the ring.
  const uint64_t head = one->transit()->head();
  EXPECT_EQ(PutInTransit(*one, 0, 1, Content(0, 1, 9'000)), PutResult::kNoRoom);
  EXPECT_EQ(one->transit()->head(), head);
}

TEST_F(TransitRingTest, TheNumberOfRecordsHeldDoesNotDependOnTheirOrder) {
  const auto held = [this](const std::vector<size_t>& sizes) {
    std::filesystem::remove_all(directory_);
    auto store = Open();
    EXPECT_TRUE(store->PlanTransit(500'000, -1).ok());
    for (uint64_t i = 0; i < 2 * sizes.size(); ++i) {
      const size_t size = sizes[i % sizes.size()];
      EXPECT_EQ(PutInTransit(*store, i, 0, Content(i, 0, size)), PutResult::kStored);
      store->Flush();
    }
    EXPECT_LE(std::filesystem::file_size(directory_ + "/transit"), 500'000);
    return Walk(*store).size();
  };
  std::vector<size_t> sizes(100, 3'000);
  for (size_t i = 0; i < sizes.size(); i += 2) sizes[i] = 50'000;
  const size_t large_first = held(sizes);
  std::rotate(sizes.begin(), sizes.begin() + 1, sizes.end());
  EXPECT_NEAR(held(sizes), large_first, 1);
  EXPECT_GE(large_first, 500'000 / ((50'000 + 3'000) / 2) - 2);
}

TEST_F(TransitRingTest, ARingOfVaryingSizesAcceptsRecordsUpToAnEighthOfIt) {
  auto store = Open();
  EXPECT_TRUE(store->PlanTransit(8 * Space(3'000), -1).ok());
  EXPECT_EQ(PutInTransit(*store, 0, 0, Content(0, 0, 3'100)), PutResult::kNoRoom);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(PutInTransit(*store, i, 0, Content(i, 0, 3'000)), PutResult::kStored);
    store->Flush();
  }
  EXPECT_EQ(Walk(*store).size(), 8);
  EXPECT_EQ(Get(*store, Walk(*store).back().position, 19), Content(19, 0, 3'000));
}

TEST_F(TransitRingTest, ALargeRingOfVaryingSizesLimitsItsUnits) {
  auto store = Open();
  EXPECT_TRUE(store->PlanTransit(int64_t{1} << 36, -1).ok());  // No space is taken yet.
  EXPECT_LE(store->transit()->num_units(), 1 << 18);
  EXPECT_EQ(PutInTransit(*store, 1, 0, Content(1, 0, 50 << 20)), PutResult::kStored);
  store->Flush();
  EXPECT_EQ(Get(*store, 0, 1), Content(1, 0, 50 << 20));
}

TEST_F(TransitRingTest, KeptSamplesAndTheRingDoNotTakeEachOthersRoom) {
  auto store = OpenRing(10, 3'000, With(&DiskStoreOptions::max_bytes, 30 * Space(3'000)));
  for (uint64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(Put(*store, i, 0, Content(i, 0, 3'000)), i < 20 ? PutResult::kStored : PutResult::kNoRoom);
  }
  for (uint64_t i = 0; i < 100; ++i) {
    PutInTransit(*store, i, 1, Content(i, 1, 3'000));
    store->Flush();
  }
  EXPECT_EQ(store->Stats().entries, 20);
  EXPECT_EQ(store->Stats().evictions, 0);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(Get(*store, i), Content(i, 0, 3'000));
    EXPECT_EQ(Put(*store, i, 1, Content(i, 1, 3'000)), PutResult::kStored);
  }
  store->Flush();
  EXPECT_EQ(store->Stats().entries, 20);
  EXPECT_EQ(store->ring_bytes(), 10 * Space(3'000));
  // The same holds for a store opened later, even before it plans a ring.
  store.reset();
  store = Open(With(&DiskStoreOptions::max_bytes, 30 * Space(3'000)));
  EXPECT_EQ(Put(*store, 20, 0, Content(20, 0, 3'000)), PutResult::kNoRoom);
  EXPECT_EQ(store->transit(), nullptr);
  auto other = Open();
  // While other jobs use the ring, the first plan holds.
  EXPECT_TRUE(other->PlanTransit(5 * Space(3'000), Space(3'000)).ok());
  ASSERT_NE(other->transit(), nullptr);
  EXPECT_EQ(other->transit()->num_units(), 10);
  // A later run with different room gets its own ring.
  for (const int64_t records : {5, 8}) {
    other = nullptr;
    store = nullptr;
    store = OpenRing(records, 3'000);
    EXPECT_EQ(store->transit()->num_units(), records);
    EXPECT_EQ(store->ring_bytes(), 0);
    for (int64_t i = 0; i < 20; ++i) PutInTransit(*store, i, records, Content(i, records, 3'000));
    store->Flush();
    EXPECT_EQ(Walk(*store).size(), records);
    EXPECT_EQ(store->ring_bytes(), records * Space(3'000));
    EXPECT_EQ(Open()->ring_bytes(), records * Space(3'000));
  }
}

TEST_F(TransitRingTest, AJobThatWasAloneDoesNotReplaceARingInUse) {
  auto first = Open();
  auto other = OpenRing(10, 3'000);
  for (uint64_t i = 0; i < 10; ++i) PutInTransit(*other, i, 1, Content(i, 1, 3'000));
  other->Flush();
  EXPECT_TRUE(first->PlanTransit(5 * Space(3'000), Space(3'000)).ok());
  EXPECT_EQ(first->transit()->num_units(), 10);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Get(*first, i, i), Content(i, 1, 3'000));
  // A store that has checked whether it is alone must still be visible to stores that are opened later.
  other.reset();
  EXPECT_EQ(DiskStore::Open(directory_, With(&DiskStoreOptions::overwrite, true)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // When a job is alone again, a plan with different room gets its own ring.
  first.reset();
  auto later = Open();
  {
    auto gone = Open();
  }
  EXPECT_TRUE(later->PlanTransit(5 * Space(3'000), Space(3'000)).ok());
  EXPECT_EQ(later->transit()->num_units(), 5);
}

TEST_F(TransitRingTest, TheRingGetsTheRoomLeftByKeptSamples) {
  for (const int64_t left : {0, 4}) {
    std::filesystem::remove_all(directory_);
    auto store = Open(With(&DiskStoreOptions::max_bytes, 20 * Space(3'000)));
    for (int64_t i = 0; i < 20 - left; ++i) Put(*store, i, 0, Content(i, 0, 3'000));
    store->Flush();
    EXPECT_TRUE(store->PlanTransit(10 * Space(3'000), Space(3'000)).ok());
    EXPECT_EQ(store->transit() == nullptr ? 0 : store->transit()->num_units(), left);
    for (int64_t i = 0; i < 20 - left; ++i) EXPECT_EQ(Put(*store, i, 1, Content(i, 1, 3'000)), PutResult::kStored);
    EXPECT_EQ(Put(*store, 20, 1, Content(20, 1, 3'000)), PutResult::kNoRoom);
  }
}

TEST_F(TransitRingTest, APutNeverWaitsForABusyDisk) {
  for (const size_t size : {30'000, 4 << 20}) {
    std::filesystem::remove_all(directory_);
    RingEnv env;
    auto store = OpenRing(1'000, size, With(&DiskStoreOptions::env, &env));
    store->MakeRoomFor(10'000);
    auto job = *store->Join();
    auto sibling = *store->Join();
    env.Hold(true);
    const std::string content = Content(1, 1, size);
    uint64_t put = 0;
    while (put * size < 32 << 20 && job->ClaimNext(put, 1, false) == 1 &&
           PutInTransit(*store, put, 1, content) == PutResult::kStored) {
      ++put;
    }
    EXPECT_GE(put, 4);
    EXPECT_LE(put * size, std::max<size_t>(4 * size, 8 << 20));
    EXPECT_GE(put * size, size > (1 << 20) ? size : size_t{7} << 20);
    // The refused put took no position, so other jobs may prepare the sample.
    EXPECT_EQ(store->transit()->head(), put);
    EXPECT_TRUE(sibling->ClaimNext(put, 1, false).has_value());
    EXPECT_FALSE(sibling->ClaimNext(put - 1, 1, false).has_value());
    env.Hold(false);
    store->Flush();
    EXPECT_EQ(Walk(*store).size(), put);
    EXPECT_TRUE(sibling->ClaimNext(put - 1, 1, false).has_value());
    EXPECT_EQ(PutInTransit(*store, put, 1, content), PutResult::kStored);
  }
}

TEST_F(TransitRingTest, UnwritableRecordsAreDropped) {
  Quiet quiet;
  RingEnv env;
  auto store = OpenRing(16, 3'000, With(&DiskStoreOptions::env, &env));
  store->MakeRoomFor(100);
  auto job = *store->Join();
  auto sibling = *store->Join();
  for (uint64_t i = 0; i < 10; ++i) Put(*store, i, 0, Content(i, 0, 3'000));
  store->Flush();
  env.fits = 2 * Space(3'000);
  for (uint64_t i = 0; i < 5; ++i) {
    job->ClaimNext(i, 1, false);
    PutInTransit(*store, i, 1, Content(i, 1, 3'000));
  }
  store->Flush();
  EXPECT_EQ(store->counts().failed_writes, 3);
  EXPECT_EQ(store->counts().transit_bytes_put, 2 * Space(3'000));
  const std::vector<Found> found = Walk(*store);
  ASSERT_EQ(found.size(), 2);
  for (const Found& there : found) EXPECT_EQ(Get(*store, there.position, there.index), Content(there.index, 1, 3'000));
  EXPECT_EQ(store->transit()->At(4).state, State::kGone);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(sibling->ClaimNext(i, 1, false).has_value());
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Get(*store, i), Content(i, 0, 3'000));
  EXPECT_EQ(store->Stats().evictions, 0);
  env.fits = -1;
  PutInTransit(*store, 5, 1, Content(5, 1, 3'000));
  store->Flush();
  EXPECT_EQ(Get(*store, 5, 5), Content(5, 1, 3'000));
}

TEST_F(TransitRingTest, NoRingIsCreatedWithoutRoomForItsFiles) {
  RingEnv env;
  auto store = Open(With(&DiskStoreOptions::env, &env));
  EXPECT_TRUE(store->PlanTransit(0, -1).ok());
  EXPECT_EQ(store->transit(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ring"));
  env.full = true;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(store->PlanTransit(100'000, 3'072).ok());
  EXPECT_TRUE(store->PlanTransit(100'000, 3'072).ok());
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_EQ(store->transit(), nullptr);
  EXPECT_EQ(PutInTransit(*store, 1, 1, "one"), PutResult::kNoRoom);
  env.full = false;
  EXPECT_TRUE(store->PlanTransit(100'000, 3'072).ok());
  EXPECT_NE(store->transit(), nullptr);
}

}  // namespace
}  // namespace refurbish_tf
