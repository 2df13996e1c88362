// The workers work ahead as far as there is room, and no further. AllKinds() lists the kinds of workers.
#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tests/cc/workers/ordered_workers_testing.h"

namespace refurbish_tf {
namespace {

TEST_P(AllWorkersTest, NeverHoldsMorePiecesThanThereIsRoomFor) {
  for (const int max_pieces : {1, 2, 5, 16, 33}) {
    Options options = this->options();
    if (options.max_calls == 0) GTEST_SKIP() << "nothing is done in advance";
    options.max_pieces = max_pieces;
    const int room = std::max(max_pieces, options.max_calls);
    Workers workers(options);
    workers.claim = [](int number) { return Draw(16, number) % 2 == 0 ? Claimed::kRun : Claimed::kFetch; };
    int taken = 0;
    for (int round = 0; round < 10; ++round) {
      // Takes enough results to wake the threads, which must then fill exactly the free room.
      do {
        ASSERT_GE(workers.NextNumber(), 0);
        ++taken;
        ASSERT_LE(workers.num_claims() - taken, room);
      } while (round > 0 && workers.num_claims() - taken >= std::max(1, room / 2));
      Await([&] { return round == 0 || workers.num_claims() - taken >= room; });
      Await([&] { return workers.all_threads_asleep(); });
      ASSERT_LE(workers.num_claims() - taken, room);
    }
  }
}

// There is always room for the calls, however large their results are.
TEST_F(OrderedWorkersTest, PiecesOfOneSizeFillTheByteLimit) {
  constexpr int kCalls = 6;
  constexpr int kBytes = 10;
  for (const bool helps : {false, true}) {
    for (const int max_bytes : {1, 100}) {
      const int room = std::max(kCalls, max_bytes / kBytes);
      Options options = MakeOptions(kCalls, helps, /*in_order=*/true);
      options.max_pieces = 1000;
      options.max_bytes = max_bytes;
      Workers workers(options);
      workers.bytes = [](int) { return kBytes; };
      int taken = 0;
      for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(workers.NextNumber(), taken++);
        ASSERT_LE(workers.num_claims() - taken, room);
        Await([&] { return workers.all_threads_asleep(); });
        while (workers.num_claims() - taken >= room / 2) {
          ASSERT_EQ(workers.NextNumber(), taken++);
        }
        Await([&] { return workers.num_claims() - taken >= room; });
        Await([&] { return workers.all_threads_asleep(); });
        ASSERT_EQ(workers.num_claims() - taken, room);
      }
    }
  }
}

// If pieces are large, there is room for four per call, but for no more than `max_large_bytes`.
TEST_F(OrderedWorkersTest, EveryCallHasRoomForLargePieces) {
  constexpr int kCalls = 6;
  constexpr int kBytes = 90;
  for (const int max_large_bytes : {0, 1000, 100'000}) {
    const int room = max_large_bytes == 0 ? kCalls : std::min(4 * kCalls, max_large_bytes / kBytes);
    Options options = MakeOptions(kCalls, /*helps=*/false, /*in_order=*/true);
    options.max_pieces = 1000;
    options.max_bytes = 100;
    options.max_large_bytes = max_large_bytes;
    Workers workers(options);
    workers.bytes = [](int) { return kBytes; };
    ASSERT_EQ(workers.NextNumber(), 0);
    // Piece 0 may have been taken before or after the room was full, so there may be one claim more.
    Await([&] { return workers.num_claims() >= room; });
    Await([&] { return workers.all_threads_asleep(); });
    ASSERT_LE(workers.num_claims(), room + 1);
  }
}

TEST_F(OrderedWorkersTest, ThereIsMoreRoomForSmallPieces) {
  constexpr int kPieces = 8;
  constexpr int kSmallPieces = 50;
  for (const bool small : {false, true}) {
    const int room = small ? kSmallPieces : kPieces;
    Options options = MakeOptions(/*max_calls=*/3, /*helps=*/true, /*in_order=*/true);
    options.max_pieces = kPieces;
    options.max_small_pieces = kSmallPieces;
    Workers workers(options);
    workers.bytes = [small](int) { return small ? 10'000 : 150'000; };
    for (int taken = 0; taken < 200;) {
      ASSERT_EQ(workers.NextNumber(), taken++);
      ASSERT_LE(workers.num_claims() - taken, room);
      if (taken % 20 != 1) continue;
      Await([&] { return workers.num_claims() - taken >= room / 2; });
    }
  }
}

TEST_F(OrderedWorkersTest, PiecesOfAllSizesStayWithinTheByteLimit) {
  constexpr int64_t kLargest = 40;
  for (const bool in_order : {false, true}) {
    for (const int max_calls : {1, 2, 5}) {
      Options options = MakeOptions(max_calls, /*helps=*/true, in_order);
      options.max_pieces = 100;
      options.max_bytes = 200;
      Counter done;
      Workers workers(options, 1000);
      const auto size = [](int number) { return static_cast<int>(Draw(17, number) % (kLargest + 1)); };
      workers.bytes = size;
      workers.run = [&](int number) {
        done.Add(size(number));
        return Outcome::kDone;
      };
      int number;
      while ((number = workers.NextNumber()) >= 0) {
        ASSERT_LE(done.Add(-size(number)), options.max_bytes + max_calls * kLargest);
        Dawdle(Draw(18, number));
      }
      EXPECT_EQ(done, 0);
    }
  }
}

// Pieces of more than half of `max_bytes` are also made in advance.
TEST_F(OrderedWorkersTest, OneLargePieceIsMadeInAdvance) {
  Options options = MakeOptions(/*max_calls=*/1, /*helps=*/true, true);
  options.max_bytes = 10;
  Workers workers(options);
  workers.bytes = [](int) { return 6; };
  EXPECT_EQ(workers.NextNumber(), 0);
  for (int i = 1; i < 10; ++i) {
    Await([&] { return workers.num_runs() == i + 1; });
    Await([&] { return workers.all_threads_asleep(); });
    EXPECT_EQ(workers.NextNumber(), i);
  }
}

TEST_F(OrderedWorkersTest, DroppedPiecesTakeNoRoom) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, true));
  workers.run = [&](int number) {
    if (number == 1) Await([&] { return gate > 0; });
    return number > 0 && number < 16 ? Outcome::kDropped : Outcome::kDone;
  };
  EXPECT_EQ(workers.NextNumber(), 0);
  Await([&] { return workers.threads_asleep() == 1; });
  gate.Set(1);
  // Dropped pieces free their room, so the workers go on with the following pieces.
  Await([&] { return workers.num_runs() > 20; });
}

// Until the size of a piece is known, the workers claim no more pieces than may run at once.
TEST_F(OrderedWorkersTest, TheByteLimitAppliesToFetchedPieces) {
  Options options = MakeOptions(/*max_calls=*/2, /*helps=*/false, true);
  options.max_bytes = 100;
  Workers workers(options);
  workers.claim = [](int) { return Claimed::kFetch; };
  workers.bytes = [](int) { return 100; };
  workers.fetch = [&](int number) {
    if (number == 0) Await([&] { return workers.threads_asleep() == 1; });
    return Outcome::kRun;
  };
  EXPECT_EQ(workers.NextNumber(), 0);
  Await([&] { return workers.all_threads_asleep(); });
  EXPECT_LE(workers.num_runs() - 1, 3) << "of 100 bytes each";
}

// Spare room is shared by all workers of a process, and returned at the end.
TEST_F(OrderedWorkersTest, WhileTheConsumerWaitsForASlowPieceOthersTakeSpareRoom) {
  constexpr int kPieces = 8, kSpare = 100, kBytes = 10, kRoom = kPieces + kSpare;
  SpareRoom spare(kSpare * kBytes);
  for (const int max_calls : {2, 7}) {
    Options options = MakeOptions(max_calls, /*helps=*/false, /*in_order=*/true);
    options.max_pieces = kPieces;
    options.spare = &spare;
    options.bytes_beside = 0;
    Counter gate;
    Workers workers(options);
    workers.bytes = [](int) { return kBytes; };
    workers.run = [&](int number) {
      if (number == 1) Await([&] { return gate > 0; });
      return Outcome::kDone;
    };
    // Without spare room there is no more room than usual.
    ASSERT_TRUE(spare.Take(kSpare * kBytes));
    EXPECT_EQ(workers.NextNumber(), 0);
    // Piece 0 may have been taken before or after the room was full, so there may be one claim more.
    Await([&] { return workers.num_claims() >= kPieces; });
    Await([&] { return workers.threads_asleep() == workers.threads_started() - 1; });
    EXPECT_LE(workers.num_claims(), 1 + kPieces);
    spare.Return(kSpare * kBytes);
    std::thread opener([&] {
      Await([&] { return workers.num_claims() == 1 + kRoom; });
      Await([&] { return workers.threads_asleep() == workers.threads_started() - 1; });
      EXPECT_EQ(workers.num_claims(), 1 + kRoom);
      gate.Set(1);
    });
    EXPECT_EQ(workers.NextNumber(), 1);
    opener.join();
    int taken = 2;
    while (workers.num_claims() - taken >= kRoom / 2) ASSERT_EQ(workers.NextNumber(), taken++);
    // The room stays, because there may be more slow pieces.
    Await([&] { return workers.num_claims() == taken + kRoom; });
  }
  EXPECT_TRUE(spare.Take(kSpare * kBytes));
  EXPECT_FALSE(spare.Take(1));
}

// While nothing is ready, all calls run, even if there is no room for their results.
TEST_F(OrderedWorkersTest, AllCallsRunWhileNothingIsReady) {
  constexpr int kCalls = 6;
  Options options = MakeOptions(kCalls, /*helps=*/false, true);
  options.max_pieces = kCalls;
  Counter begun;
  Workers workers(options);
  workers.run = [&](int number) {
    begun.Add(1);
    if (number < 20 * kCalls) {
      Await([&] { return begun >= kCalls * (number / kCalls + 1); });
    }
    return Outcome::kDone;
  };
  for (int i = 0; i < 20 * kCalls; ++i) ASSERT_EQ(workers.NextNumber(), i);
}

}  // namespace
}  // namespace refurbish_tf
