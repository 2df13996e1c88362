#include "refurbish_tf/cc/workers/pace.h"

#include <chrono>
#include <cstdint>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(PieceTimesTest, ShortPiecesRunTogetherForFiftyMicroseconds) {
  PieceTimes times;
  EXPECT_EQ(times.at_once(), 1u);
  for (int i = 0; i < 100; ++i) times.Ran(times.at_once(), times.at_once() * microseconds(5));
  EXPECT_NEAR(times.at_once(), 10, 1);
  for (int i = 0; i < 100; ++i) times.Ran(times.at_once(), times.at_once() * microseconds(200));
  EXPECT_EQ(times.at_once(), 1u);
  for (int i = 0; i < 200; ++i) times.Ran(1, microseconds(0));
  EXPECT_EQ(times.at_once(), PieceTimes::kMostAtOnce);
}

TEST(PieceTimesTest, TheLastFetchPredictsWhetherTheNextIsShort) {
  PieceTimes times;
  EXPECT_TRUE(times.short_fetches());
  times.Fetched(2, microseconds(10));
  EXPECT_FALSE(times.short_fetches());
  times.Fetched(3, microseconds(10));
  EXPECT_TRUE(times.short_fetches());
}

TEST(PieceTimesTest, PiecesAreLongIfFetchAndRunTakeFiveMilliseconds) {
  for (const int fetch : {0, 2, 5}) {
    PieceTimes times;
    for (int i = 0; i < 4; ++i) {
      EXPECT_FALSE(times.are_long(1));
      if (fetch > 0) times.Fetched(1, milliseconds(fetch));
      times.Ran(1, milliseconds(5 - fetch));
    }
    EXPECT_TRUE(times.are_long(1));
    times.Ran(1, milliseconds(4));
    EXPECT_FALSE(times.are_long(1));
  }
}

TEST(PieceTimesTest, ASlowFirstCallIsNotALongPiece) {
  for (const int num_threads : {1, 15}) {
    PieceTimes times;
    for (int i = 0; i < num_threads; ++i) times.Ran(1, milliseconds(15));
    for (int i = 0; i < 100; ++i) {
      times.Ran(1, milliseconds(1));
      EXPECT_FALSE(times.are_long(num_threads));
    }
  }
}

RoomAhead::Limits MakeLimits(int max_calls) {
  RoomAhead::Limits limits;
  limits.max_calls = max_calls;
  limits.max_pieces = 10;
  limits.max_bytes = 100;
  return limits;
}

// The number of pieces that there is room for, once a piece of `bytes` bytes was made and taken.
size_t RoomFor(const RoomAhead::Limits& limits, int64_t bytes, int part = 1) {
  RoomAhead room(limits);
  EXPECT_TRUE(room.Add(bytes));
  room.Remove(bytes);
  size_t pieces = 0;
  while (room.Has(pieces, 0, part)) ++pieces;
  return pieces;
}

TEST(RoomAheadTest, PiecesAndTheirBytesAreLimited) {
  EXPECT_EQ(RoomFor(MakeLimits(2), 1), 10u);
  EXPECT_EQ(RoomFor(MakeLimits(2), 1, /*part=*/2), 5u);
  EXPECT_EQ(RoomFor(MakeLimits(2), 25), 4u);
  EXPECT_EQ(RoomFor(MakeLimits(2), 25, /*part=*/2), 2u);
}

TEST(RoomAheadTest, ThereIsAlwaysRoomForTheCalls) {
  EXPECT_EQ(RoomFor(MakeLimits(12), 1), 12u);
  EXPECT_EQ(RoomFor(MakeLimits(6), 1000), 6u);
  EXPECT_EQ(RoomFor(MakeLimits(6), 1000, /*part=*/2), 3u);
  EXPECT_EQ(RoomFor(MakeLimits(0), 1000), 1u);
}

TEST(RoomAheadTest, LargePiecesHaveRoomForFourPerCall) {
  RoomAhead::Limits limits = MakeLimits(2);
  limits.max_large_bytes = 10'000;
  EXPECT_EQ(RoomFor(limits, 50), 8u);
  limits.max_large_bytes = 300;
  EXPECT_EQ(RoomFor(limits, 50), 6u);
}

TEST(RoomAheadTest, SmallPiecesHaveMoreRoom) {
  RoomAhead::Limits limits = MakeLimits(2);
  limits.max_bytes = 1 << 24;
  limits.max_small_pieces = 50;
  EXPECT_EQ(RoomFor(limits, 1000), 50u);
  EXPECT_EQ(RoomFor(limits, 200'000), 10u);
}

TEST(RoomAheadTest, WithoutAKnownSizeOnlyOnePieceACallIsFetched) {
  RoomAhead room(MakeLimits(3));
  EXPECT_TRUE(room.Has(5, /*num_to_fetch=*/1, 1));
  EXPECT_FALSE(room.Has(5, /*num_to_fetch=*/2, 1));
  EXPECT_TRUE(room.Add(1));
  EXPECT_FALSE(room.Add(1));
  EXPECT_EQ(room.num_ready(), 2u);
  EXPECT_TRUE(room.Has(5, /*num_to_fetch=*/2, 1));
}

TEST(RoomAheadTest, PiecesInProgressCountAsTheLargestSoFar) {
  RoomAhead room(MakeLimits(2));
  room.Add(60);
  room.Add(10);
  EXPECT_FALSE(room.Has(3, 0, 1));
  room.Remove(60);
  EXPECT_FALSE(room.Has(2, 0, 1));
  room.Remove(10);
  EXPECT_TRUE(room.Has(1, 0, 1));
  EXPECT_FALSE(room.Has(2, 0, 1));
}

}  // namespace
}  // namespace refurbish_tf
