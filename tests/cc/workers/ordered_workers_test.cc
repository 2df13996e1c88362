// All kinds of workers return each piece once and lose no wake-up.
#include "refurbish_tf/cc/workers/ordered_workers.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/workers/ordered_workers_testing.h"

namespace refurbish_tf {
namespace {

INSTANTIATE_TEST_SUITE_P(Kinds, AllWorkersTest, AllKinds(), NameOfKind);

TEST_P(AllWorkersTest, EachPieceComesOnce) {
  constexpr int kPieces = 400;
  Workers workers(options(), kPieces);
  workers.claim = [](int number) {
    constexpr Claimed kKinds[] = {Claimed::kDone, Claimed::kRun, Claimed::kFetch};
    return kKinds[Draw(1, number) % 3];
  };
  workers.fetch = [](int number) {
    Dawdle(Draw(2, number));
    return Draw(3, number) % 3 == 0 ? Outcome::kDone : Outcome::kRun;
  };
  workers.run = [](int number) {
    Dawdle(Draw(4, number));
    return Outcome::kDone;
  };
  workers.is_short = [](int number) { return Draw(41, number) % 4 != 0; };
  ExpectResults(workers.AllNumbers(), UpTo(kPieces));
}

TEST_P(AllWorkersTest, DroppedPiecesAreSkipped) {
  constexpr int kPieces = 400;
  // The last 50 pieces are dropped, and so are some long runs of pieces before them.
  const auto is_dropped = [](int number) {
    return number >= kPieces - 50 || Draw(5, number) % 3 == 0 || Draw(6, number / 40) % 4 == 0;
  };
  std::vector<int> expected;
  for (int i = 0; i < kPieces; ++i) {
    if (!is_dropped(i)) expected.push_back(i);
  }
  Workers workers(options(), kPieces);
  workers.claim = [](int number) { return Draw(7, number) % 2 == 0 ? Claimed::kRun : Claimed::kFetch; };
  workers.fetch = [&](int number) {
    Dawdle(Draw(8, number));
    if (!is_dropped(number) || Draw(9, number) % 2 == 0) return Outcome::kRun;
    return Outcome::kDropped;
  };
  workers.run = [&](int number) {
    Dawdle(Draw(10, number));
    return is_dropped(number) ? Outcome::kDropped : Outcome::kDone;
  };
  workers.is_short = [](int number) { return Draw(42, number) % 4 != 0; };
  ExpectResults(workers.AllNumbers(), expected);
}

TEST_P(AllWorkersTest, ReturnsNothingIfAllPiecesAreDropped) {
  for (const bool by_fetch : {false, true}) {
    for (const int pieces : {0, 1, 5, 100}) {
      Workers workers(options(), pieces);
      workers.claim = [&](int) { return by_fetch ? Claimed::kFetch : Claimed::kRun; };
      workers.fetch = [](int) { return Outcome::kDropped; };
      workers.run = [](int) { return Outcome::kDropped; };
      EXPECT_TRUE(workers.AllNumbers().empty());
      EXPECT_EQ(by_fetch ? workers.num_fetches() : workers.num_runs(), pieces);
    }
  }
}

// A source of unknown length is read until a fetch finds its end.
TEST_P(AllWorkersTest, EndsWhenAFetchFindsTheEnd) {
  for (const int pieces : {0, 1, 7, 200}) {
    Counter ended;
    Workers workers(options());
    workers.claim = [&](int) { return ended ? Claimed::kEnd : Claimed::kFetch; };
    workers.fetch = [&](int number) {
      Dawdle(Draw(11, number));
      if (number < pieces) return Outcome::kRun;
      ended.Set(1);
      return Outcome::kDropped;
    };
    workers.run = [&](int number) {
      EXPECT_LT(number, pieces);
      Dawdle(Draw(12, number));
      return Outcome::kDone;
    };
    ExpectResults(workers.AllNumbers(), UpTo(pieces));
  }
}

// Every tenth piece can only be claimed once all pieces before it have ended.
TEST_P(AllWorkersTest, RetriesANotNowClaimWhenAPieceEnds) {
  constexpr int kPieces = 300;
  Counter ended;
  Workers workers(options(), kPieces);
  workers.claim = [&](int number) {
    if (number % 10 == 0 && ended < number) return Claimed::kNotNow;
    if (Draw(13, number) % 4 == 0) {
      ended.Add(1);
      return Claimed::kDone;
    }
    return Draw(13, number) % 4 == 1 ? Claimed::kFetch : Claimed::kRun;
  };
  std::vector<int> expected;
  const auto is_dropped = [](int number) { return Draw(13, number) % 4 != 0 && Draw(14, number) % 5 == 0; };
  for (int i = 0; i < kPieces; ++i) {
    if (!is_dropped(i)) expected.push_back(i);
  }
  workers.run = [&](int number) {
    Dawdle(Draw(15, number));
    ended.Add(1);
    return is_dropped(number) ? Outcome::kDropped : Outcome::kDone;
  };
  workers.is_short = [](int number) { return Draw(43, number) % 4 != 0; };
  ExpectResults(workers.AllNumbers(), expected);
  // At most one retry for each piece that ended.
  EXPECT_LE(workers.num_not_now(), kPieces);
}

TEST_P(AllWorkersTest, NoThreadStartsForPiecesThatNeedNoWork) {
  constexpr int kPieces = 500;
  Workers workers(options(), kPieces);
  workers.claim = [](int) { return Claimed::kDone; };
  for (int i = 0; i < kPieces; ++i) {
    ASSERT_EQ(workers.NextNumber(), i);
    ASSERT_EQ(workers.num_claims(), i + 1);
  }
  EXPECT_EQ(workers.NextNumber(), kEnd);
  EXPECT_EQ(workers.threads_started(), 0);
}

TEST_P(AllWorkersTest, ASlowFetchDelaysOnlyFetchedPieces) {
  constexpr int kPieces = 16;
  if (options().max_calls < 2) GTEST_SKIP() << "the only call is the fetch";
  const auto is_fetched = [](int number) { return number % 3 == 0; };
  int others = 0;
  for (int i = 0; i < kPieces; ++i) others += !is_fetched(i);
  Workers workers(options(), kPieces);
  workers.claim = [&](int number) { return is_fetched(number) ? Claimed::kFetch : Claimed::kRun; };
  workers.fetch = [&](int) {
    Await([&] { return workers.num_runs() >= others; });
    return Outcome::kRun;
  };
  ExpectResults(workers.AllNumbers(), UpTo(kPieces));
}

TEST_P(AllWorkersTest, RunsTheMaximumNumberOfCallsAtOnce) {
  const int calls = std::max(1, options().max_calls);
  Counter begun;
  Workers workers(options(), 3 * calls);
  // The first calls, as many as may run at once, wait for each other.
  workers.run = [&](int number) {
    begun.Add(1);
    if (number < calls) Await([&] { return begun >= calls; });
    return Outcome::kDone;
  };
  ExpectResults(workers.AllNumbers(), UpTo(3 * calls));
  const bool helped = options().consumer_helps && options().max_calls > 1;
  EXPECT_EQ(workers.threads_started(), options().max_calls - helped);
}

TEST_F(OrderedWorkersTest, FollowsTheNumberOfCalls) {
  constexpr int kPhase = 100, kSettled = 60, kCalls[] = {1, 4, 2, 1, 3};
  for (const bool helps : {false, true}) {
    Counter allowed, running, together[std::size(kCalls)];
    allowed.Set(1);
    Options options = MakeOptions(/*max_calls=*/1, helps, /*in_order=*/true);
    options.calls_now = [&]() -> int { return allowed; };
    options.calls_read_every = std::chrono::milliseconds(0);
    Workers workers(options, 5 * kPhase);
    workers.run = [&](int number) {
      const int calls = kCalls[number / kPhase];
      if (number % kPhase == 0) allowed.Set(calls);
      const int at_once = running.Add(1);
      if (number % kPhase >= kSettled) {
        EXPECT_LE(at_once, calls) << number;
        // As many calls as may run at once wait for each other.
        Counter& begun = together[number / kPhase];
        if (begun.Add(1) <= calls) Await([&] { return begun >= calls; });
      }
      running.Add(-1);
      return Outcome::kDone;
    };
    EXPECT_EQ(workers.AllNumbers(), UpTo(5 * kPhase));
  }
}

TEST_F(OrderedWorkersTest, AThreadStartsWhenAllOthersAreBusy) {
  for (const bool helps : {false, true}) {
    for (const Claimed claimed : {Claimed::kRun, Claimed::kFetch}) {
      // Three calls wait for each other. Then calls run one at a time, although many threads would be allowed.
      Counter begun;
      Counter ended;
      Workers workers(MakeOptions(/*max_calls=*/500, helps, /*in_order=*/true), 60);
      workers.claim = [&](int number) { return number < 3 || ended == number ? claimed : Claimed::kNotNow; };
      workers.run = [&](int number) {
        begun.Add(1);
        if (number < 3) Await([&] { return begun >= 3; });
        ended.Add(1);
        return Outcome::kDone;
      };
      EXPECT_EQ(workers.AllNumbers(), UpTo(60));
      EXPECT_GE(workers.threads_started(), 2);
      EXPECT_LE(workers.threads_started(), 10);
    }
  }
}

// Little room, many threads, and a consumer that is sometimes slow, sometimes fast.
TEST_P(AllWorkersTest, NoWakeUpIsLost) {
  constexpr int kPieces = 200;
  for (const size_t max_pieces : {1, 2, 3, 5}) {
    for (const int64_t max_bytes : {1, 1000}) {
      Options options = this->options();
      options.max_pieces = max_pieces;
      options.max_bytes = max_bytes;
      const uint64_t seed = 100 * max_pieces + max_bytes;
      Counter ended;
      Workers workers(options, kPieces);
      workers.claim = [&](int number) {
        const uint64_t random = Draw(seed, number);
        if (random % 8 == 0 && ended < number) return Claimed::kNotNow;
        // Half of the pieces have the kind of their group of 30, which makes long runs of one kind.
        const uint64_t kind = random / 8 % 2 == 0 ? random : Draw(1, number / 30);
        if (kind / 16 % 3 == 0) {
          ended.Add(1);
          return Claimed::kDone;
        }
        return kind / 16 % 3 == 1 ? Claimed::kFetch : Claimed::kRun;
      };
      const auto outcome = [](uint64_t random) { return random / 64 % 6 == 0 ? Outcome::kDropped : Outcome::kDone; };
      workers.fetch = [&](int number) {
        const uint64_t random = Draw(seed + 1, number);
        Dawdle(random);
        if (random / 512 % 2 == 0) return Outcome::kRun;
        ended.Add(1);
        return outcome(random);
      };
      workers.run = [&](int number) {
        const uint64_t random = Draw(seed + 2, number);
        Dawdle(random);
        ended.Add(1);
        return outcome(random);
      };
      int results = 0;
      while (workers.NextNumber() >= 0) {
        if (++results / 100 % 2 == 0) Dawdle(Draw(seed + 3, results));
      }
      EXPECT_EQ(workers.num_claims(), kPieces);
      EXPECT_EQ(ended, kPieces);
      EXPECT_EQ(workers.alive(), 0);
    }
  }
}

// Settled pieces are done and come next, and nothing begins before `Resume`.
TEST_P(AllWorkersTest, CanSettleAtAnyMoment) {
  constexpr int kPieces = 300;
  const uint64_t seed = 7;
  Workers workers(options(), kPieces);
  workers.claim = [&](int number) { return Claimed(Draw(seed, number) % 3); };
  workers.run = [&](int number) {
    Dawdle(Draw(seed + 2, number));
    return Draw(seed + 1, number) % 5 == 0 ? Outcome::kDropped : Outcome::kDone;
  };
  std::vector<int> results;
  int number = 0;
  while (number >= 0) {
    for (int i = 0; i < 5 && (number = workers.NextNumber()) >= 0; ++i) {
      results.push_back(number);
    }
    const std::vector<int> ready = workers.Settle();
    EXPECT_EQ(workers.calls(), 0);
    const int claims = workers.num_claims();
    Dawdle(Draw(seed + 3, number));
    EXPECT_EQ(workers.num_claims(), claims);
    workers.Resume();
    // If results are not in order, pieces that are made after `Resume` may come first.
    for (const int next : options().in_order ? ready : std::vector<int>()) {
      EXPECT_EQ(number = workers.NextNumber(), next);
      results.push_back(number);
    }
  }
  // Settling gives up only pieces that were claimed but not begun.
  for (const int given_up : workers.never_fetched()) results.push_back(given_up);
  for (int i = 0; i < kPieces; ++i) {
    const bool dropped = Claimed(Draw(seed, i) % 3) != Claimed::kDone && Draw(seed + 1, i) % 5 == 0;
    if (dropped && std::count(results.begin(), results.end(), i) == 0) {
      results.push_back(i);
    }
  }
  std::sort(results.begin(), results.end());
  EXPECT_EQ(results, UpTo(kPieces));
}

}  // namespace
}  // namespace refurbish_tf
