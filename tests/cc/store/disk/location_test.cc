#include "refurbish_tf/cc/store/disk/location.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

TEST(RecordTest, AWordEncodesEveryLocation) {
  for (const uint64_t size :
       {uint64_t{32}, uint64_t{33}, uint64_t{5'000}, kLargeRecord - 1, kLargeRecord, kLargeRecord + 1,
        uint64_t{1023} << 10, (uint64_t{1023} << 10) + 1, uint64_t{77'777'777}, kMaxRecord}) {
    const uint64_t space = RecordSpace(size);
    const bool large = size >= kLargeRecord;
    EXPECT_GE(space, size);
    EXPECT_LE(space, size + size / 511 + (large ? kLargeUnit : kSmallUnit));
    const uint64_t unit = large ? kLargeUnit : kSmallUnit;
    for (const uint32_t tag : {uint32_t{0}, kNumTags - 1}) {
      for (const uint32_t segment : {uint32_t{0}, kNumSegments - 1}) {
        for (const uint64_t offset : {uint64_t{0}, unit * ((1 << 20) - 1)}) {
          const uint64_t word = EncodeLocation({large, segment, offset, space, tag});
          EXPECT_NE(word, 0);
          const Location location = DecodeLocation(word);
          EXPECT_EQ(location.large, large);
          EXPECT_EQ(location.segment, segment);
          EXPECT_EQ(location.offset, offset);
          EXPECT_EQ(location.size, space);
          EXPECT_EQ(location.tag, tag);
          EXPECT_EQ(TagOfWord(word), tag);
        }
      }
    }
  }
}

TEST(RecordTest, ATagDenotesTheNearestGeneration) {
  for (const Generation to : {Generation{0}, Generation{1}, Generation{20'000}, Generation{kNumTags},
                              Generation{1'000'000}, kNoGeneration - 1}) {
    for (int64_t from = -int64_t{kNumTags} / 2 + 1; from < kNumTags / 2; ++from) {
      const int64_t generation = int64_t{to} + from;
      if (generation < 0 || generation >= int64_t{kNoGeneration}) continue;
      ASSERT_EQ(NearestGeneration(TagOf(generation), to), generation) << to;
    }
  }
  // There are no generations below 0 or above the last.
  EXPECT_EQ(NearestGeneration(kNumTags - 1, 0), kNumTags - 1);
  EXPECT_EQ(NearestGeneration(TagOf(kNoGeneration), kNoGeneration - 1), kNoGeneration - kNumTags);
}

TEST(RecordTest, AnUnlimitedRangeMatchesEveryTag) {
  for (uint32_t tag = 0; tag < kNumTags; ++tag) {
    ASSERT_TRUE(MayBeWanted(tag, {}));
    ASSERT_EQ(MayBeWanted(tag, {7, 7}), tag == 7);
  }
}

using GenerationsTest = StoreDirectoryTest;

TEST_F(GenerationsTest, CanExceedTheNumberOfTags) {
  auto store = Open();
  Generation before = 0;
  for (const Generation generation : {Generation{kNumTags - 1}, Generation{kNumTags}, Generation{kNumTags + 1},
                                      Generation{40'000}, Generation{50'000}}) {
    EXPECT_EQ(Put(*store, 1, generation, Content(1, generation, 100)), PutResult::kStored);
    for (const bool written : {false, true}) {
      if (written) store->Flush();
      EXPECT_EQ(Get(*store, 1, {generation, generation}), Content(1, generation, 100));
      EXPECT_EQ(Get(*store, 1, AtLeast(generation + 1)), "absent");
      // Until the new generation is written, the store also has the previous one.
      if (written) {
        EXPECT_EQ(Get(*store, 1, {before, before}), "absent");
      }
      EXPECT_EQ(Put(*store, 1, generation - 5, "old"), PutResult::kNewerKept);
      EXPECT_EQ(store->StoredGeneration(1), generation);
    }
    before = generation;
  }
  EXPECT_EQ(store->counts().corrupt, 0);
}

// By its tag, the sample looks newer than it is. Its record has the true generation.
TEST_F(GenerationsTest, AVeryOldGenerationIsNotMistakenForANewerOne) {
  auto store = Open();
  for (const size_t size : {100, 20'000}) {
    Put(*store, 1, 5, Content(1, 5, size));
    store->Flush();
    const Generation generation = 5 + kNumTags / 2 + 100;
    EXPECT_EQ(Get(*store, 1, AtLeast(generation)), "absent");
    EXPECT_EQ(Put(*store, 1, generation, Content(1, generation, size)), PutResult::kStored);
    EXPECT_EQ(Get(*store, 1, AtLeast(generation)), Content(1, generation, size));
    store->Remove(1, /*evict=*/false);
  }
  EXPECT_EQ(store->counts().corrupt, 0);
}

TEST(Crc32cTest, MatchesTheCastagnoliPolynomial) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283);
  EXPECT_EQ(Crc32c(nullptr, 0), 0);
}

TEST(Crc32cTest, AllImplementationsMatchTheTables) {
  const std::vector<Crc32cWay> ways = Crc32cWays();
  const std::string data = Content(1, 2, 5'003);
  for (size_t size = 0; size <= 5'000; ++size) {
    // At different alignments.
    const auto* const begin = reinterpret_cast<const uint8_t*>(data.data()) + size % 3;
    const uint32_t expected = ways.back()(~0u, begin, size);
    for (const Crc32cWay way : ways) {
      ASSERT_EQ(way(~0u, begin, size), expected) << size;
    }
  }
  // The last way uses tables, which follow the definition.
  EXPECT_EQ(~ways.back()(~0u, reinterpret_cast<const uint8_t*>("123456789"), 9), 0xe3069283);
}

TEST(Crc32cTest, ConsecutivePartsYieldTheChecksumOfTheWhole) {
  const std::string data = Content(1, 2, 5'000);
  const uint32_t whole = Crc32c(data.data(), data.size());
  for (size_t split = 0; split <= data.size(); ++split) {
    const uint32_t first = Crc32c(data.data(), split);
    ASSERT_EQ(Crc32c(data.data() + split, data.size() - split, first), whole) << split;
  }
}

}  // namespace
}  // namespace refurbish_tf
