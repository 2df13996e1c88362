// How the room of a store is divided between kept samples and samples in transit.
#include "refurbish_tf/cc/cooperation/store_room.h"

#include <optional>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {
namespace {

using Kept = std::optional<uint32_t>;

// Options for 10,000 samples of 100 bytes, with room for `samples` of them.
RoomOptions RoomFor(int64_t samples, double reuse_factor = 3) {
  RoomOptions options{};
  options.schedule.reuse_factor = reuse_factor;
  options.num_samples = 10'000;
  options.sample_bytes = 100;
  options.max_bytes = samples * 100;
  options.random_access = true;
  options.shared = true;
  return options;
}

int64_t TransitBeside(const RoomOptions& options, uint32_t num_kept) {
  const Schedule schedule(options.schedule, 10'000, num_kept);
  return TransitBytes(options, &schedule);
}

int64_t Transit(const RoomOptions& options) {
  const Kept kept = NumKept(options);
  return kept.has_value() ? TransitBeside(options, *kept) : TransitBytes(options, nullptr);
}

TEST(StoreRoomTest, AllSamplesAreKeptIfTheyFit) {
  RoomOptions options = RoomFor(10'000);
  EXPECT_EQ(NumKept(options), Kept(10'000));
  EXPECT_EQ(Transit(options), 0);
  options.max_bytes = kUnlimited;
  EXPECT_EQ(NumKept(options), Kept(10'000));
  EXPECT_EQ(Transit(options), 0);
  options.sample_bytes = -1;
  EXPECT_EQ(NumKept(options), Kept(10'000));
  EXPECT_EQ(Transit(options), 0);
}

TEST(StoreRoomTest, TheRingHoldsAFiftiethOfTheSamplesAndAtLeastThoseInFlight) {
  EXPECT_EQ(NumKept(RoomFor(5'000)), Kept(5'000 - 1'024));
  EXPECT_EQ(Transit(RoomFor(5'000)), 102'400);
  EXPECT_EQ(NumKept(RoomFor(400)), Kept(200));  // The ring has room for a fiftieth of all samples.
  EXPECT_EQ(NumKept(RoomFor(200)), Kept(0));    // The ring takes all the room.
  EXPECT_EQ(Transit(RoomFor(200)), 20'000);
  RoomOptions many = RoomFor(500'000);
  many.num_samples = 1'000'000;
  EXPECT_EQ(NumKept(many), Kept(480'000));
  RoomOptions few = RoomFor(100);
  few.num_samples = 200;
  EXPECT_EQ(NumKept(few), Kept(75));  // The ring takes a quarter of the room.
  few.max_bytes = 2'000;
  EXPECT_EQ(NumKept(few), Kept(20));  // A ring this small would be useless, so there is none.
  EXPECT_EQ(Transit(few), 0);
}

TEST(StoreRoomTest, WithoutReuseTheRingUsesAllRoom) {
  EXPECT_EQ(NumKept(RoomFor(5'000, 1)), Kept(0));
  EXPECT_EQ(Transit(RoomFor(5'000, 1)), 500'000);
  RoomOptions unlimited = RoomFor(20'000, 1);
  EXPECT_EQ(NumKept(unlimited), Kept(0));
  EXPECT_EQ(Transit(unlimited), 1'000'000);  // The space of all 10,000 samples.
  unlimited.max_bytes = kUnlimited;
  EXPECT_EQ(NumKept(unlimited), Kept(0));
  EXPECT_EQ(Transit(unlimited), 1'000'000);
  unlimited.sample_bytes = -1;  // The size of a ring would be unknown, so all samples are kept.
  EXPECT_EQ(NumKept(unlimited), Kept(10'000));
  EXPECT_EQ(Transit(unlimited), 0);
  RoomOptions stream = RoomFor(5'000, 1);
  stream.random_access = false;
  EXPECT_EQ(NumKept(stream), Kept(5'000 - 1'024));
  stream.num_samples = -1;
  EXPECT_EQ(NumKept(stream), std::nullopt);
  EXPECT_EQ(Transit(stream), 0);
}

TEST(StoreRoomTest, TheRingGetsAFractionOfTheBytesIfSampleSizesVary) {
  RoomOptions options = RoomFor(5'000);
  options.sample_bytes = -1;
  EXPECT_EQ(NumKept(options), std::nullopt);
  EXPECT_EQ(Transit(options), 500'000 / 16);
  options.schedule.reuse_factor = 1;
  EXPECT_EQ(NumKept(options), Kept(0));
  EXPECT_EQ(Transit(options), 500'000);
}

TEST(StoreRoomTest, TheRingUsesTheRoomLeftByTheAgreedKeptSamples) {
  EXPECT_EQ(TransitBeside(RoomFor(5'000), 4'990), 1'000);
  EXPECT_EQ(TransitBeside(RoomFor(5'000), 4'996), 0);  // A ring this small would be useless.
  EXPECT_EQ(TransitBeside(RoomFor(5'000), 5'000), 0);
  EXPECT_EQ(TransitBeside(RoomFor(5'000, 1), 4'000), 100'000);
  RoomOptions unlimited = RoomFor(5'000);
  unlimited.max_bytes = kUnlimited;
  EXPECT_EQ(TransitBeside(unlimited, 4'000), 600'000);
}

TEST(StoreRoomTest, KeptSamplesUseAllRoomInMemoryAndForTheBaseline) {
  RoomOptions memory = RoomFor(5'000);
  memory.shared = false;
  EXPECT_EQ(NumKept(memory), Kept(5'000));
  EXPECT_EQ(Transit(memory), 0);
  RoomOptions naive = RoomFor(5'000);
  naive.schedule.eviction = Eviction::kReferenceCount;
  EXPECT_EQ(NumKept(naive), Kept(5'000));
  EXPECT_EQ(Transit(naive), 0);
  RoomOptions uniform = RoomFor(5'000, 1);
  uniform.schedule.shuffle = Shuffle::kUniform;
  EXPECT_EQ(NumKept(uniform), Kept(5'000));
  EXPECT_EQ(Transit(uniform), 0);
}

}  // namespace
}  // namespace refurbish_tf
