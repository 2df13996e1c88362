// Neither threads nor the input are idle without need, and no thread is woken in vain.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tests/cc/workers/ordered_workers_testing.h"

namespace refurbish_tf {
namespace {

TEST_F(OrderedWorkersTest, ABlockedPieceDoesNotDelayOthers) {
  constexpr int kPieces = 500;
  for (const bool helps : {false, true}) {
    Counter gate;
    Counter blocked;  // The number of the blocked piece, plus one.
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/false), kPieces);
    workers.run = [&](int number) {
      if (workers.is_consumer()) {
        Await([&] { return blocked > 0; });
      } else if (blocked.Change(0, number + 1)) {
        Await([&] { return gate > 0; });
      }
      return Outcome::kDone;
    };
    std::vector<int> results;
    for (int i = 1; i < kPieces; ++i) results.push_back(workers.NextNumber());
    EXPECT_EQ(std::count(results.begin(), results.end(), blocked - 1), 0);
    gate.Set(1);
    EXPECT_EQ(workers.NextNumber(), blocked - 1);
    EXPECT_EQ(workers.NextNumber(), kEnd);
    results.push_back(blocked - 1);
    std::sort(results.begin(), results.end());
    EXPECT_EQ(results, UpTo(kPieces));
  }
}

// The workers claim many short pieces at once, but never a long one together with them.
TEST_F(OrderedWorkersTest, ALongPieceDoesNotDelayShortOnes) {
  constexpr int kPieces = 1200, kLong = 1000;
  for (const bool by_fetch : {false, true}) {
    Counter gate;
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, /*in_order=*/false), kPieces);
    workers.claim = [&](int number) { return by_fetch && number != kLong ? Claimed::kFetch : Claimed::kRun; };
    workers.run = [&](int number) {
      if (number == kLong) Await([&] { return gate > 0; });
      return Outcome::kDone;
    };
    workers.is_short = [](int number) { return number != kLong; };
    for (int i = 1; i < kPieces; ++i) ASSERT_NE(workers.NextNumber(), kLong);
    gate.Set(1);
    EXPECT_EQ(workers.AllNumbers(), std::vector<int>{kLong});
  }
}

// While a fetched piece runs, a sleeping thread is woken to fetch the next one.
TEST_F(OrderedWorkersTest, FetchesTheNextPieceWhileOneRuns) {
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/3, helps, /*in_order=*/true), 50);
    workers.claim = [](int) { return Claimed::kFetch; };
    workers.fetch = [&](int number) {
      if (number == 0) {
        Await([&] { return workers.all_others_asleep(); });
      }
      return Outcome::kRun;
    };
    workers.run = [&](int number) {
      if (number == 0) Await([&] { return workers.num_fetches() > 1; });
      return Outcome::kDone;
    };
    EXPECT_EQ(workers.AllNumbers(), UpTo(50));
  }
}

// While the consumer waits for a piece in order, the other pieces run.
TEST_F(OrderedWorkersTest, OtherPiecesRunWhileTheNextInOrderIsBlocked) {
  constexpr int kPieces = 16;
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/true), kPieces);
    workers.run = [&](int number) {
      if (number == 0) Await([&] { return workers.num_runs() == kPieces; });
      return Outcome::kDone;
    };
    EXPECT_EQ(workers.AllNumbers(), UpTo(kPieces));
  }
}

TEST_F(OrderedWorkersTest, TheConsumerDoesAllWorkWithoutThreads) {
  for (const bool helps : {false, true}) {
    for (const bool in_order : {false, true}) {
      std::string trace;
      Workers workers(MakeOptions(/*max_calls=*/0, helps, in_order));
      workers.claim = [&](int number) {
        EXPECT_TRUE(workers.is_consumer());
        trace += " C" + std::to_string(number);
        if (number == 5) return Claimed::kEnd;
        return number % 2 == 0 ? Claimed::kFetch : Claimed::kRun;
      };
      workers.fetch = [&](int number) {
        trace += " F" + std::to_string(number);
        return number == 2 ? Outcome::kDropped : Outcome::kRun;
      };
      workers.run = [&](int number) {
        trace += " R" + std::to_string(number);
        return Outcome::kDone;
      };
      int number;
      while ((number = workers.NextNumber()) >= 0) {
        trace += " " + std::to_string(number);
      }
      EXPECT_EQ(trace, " C0 F0 R0 0 C1 R1 1 C2 F2 C3 R3 3 C4 F4 R4 4 C5");
      EXPECT_EQ(workers.threads_started(), 0);
    }
  }
}

TEST_F(OrderedWorkersTest, TheConsumerHelpsWhileItWaits) {
  for (const bool in_order : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/true, in_order), 8);
    // The thread's first piece lasts until the consumer has run three.
    workers.run = [&](int) {
      if (workers.is_consumer()) {
        Await([&] { return workers.num_runs() > workers.consumer_calls(); });
      } else {
        Await([&] { return workers.consumer_calls() >= 3; });
      }
      return Outcome::kDone;
    };
    std::vector<int> results = workers.AllNumbers();
    std::sort(results.begin(), results.end());
    EXPECT_EQ(results, UpTo(8));
  }
}

TEST_F(OrderedWorkersTest, ThreadsStayAsleepWhileNoPieceNeedsWork) {
  constexpr int kPieces = 1000;
  for (const bool helps : {false, true}) {
    const Options options = MakeOptions(/*max_calls=*/3, helps, true);
    Workers workers(options, kPieces + 100);
    const auto needs_work = [](int number) { return number < 10 || number >= kPieces; };
    workers.claim = [&](int number) { return needs_work(number) ? Claimed::kRun : Claimed::kDone; };
    Counter begun;
    workers.run = [&](int number) {
      // These pieces wait for each other, so all threads must be woken again.
      if (number >= kPieces && number < kPieces + options.max_calls) {
        begun.Add(1);
        Await([&] { return begun == options.max_calls; });
      }
      return Outcome::kDone;
    };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(workers.NextNumber(), i);
    Await([&] { return workers.all_threads_asleep(); });
    const int wakes = workers.wakes();
    for (int i = 100; i < kPieces; ++i) {
      ASSERT_EQ(workers.NextNumber(), i);
      ASSERT_EQ(workers.num_claims(), i + 1);
    }
    // A thread that was woken earlier may be counted only now.
    EXPECT_LE(workers.wakes(), wakes + workers.threads_started());
    for (int i = kPieces; i < kPieces + 100; ++i) ASSERT_EQ(workers.NextNumber(), i);
    EXPECT_EQ(workers.NextNumber(), kEnd);
  }
}

TEST_F(OrderedWorkersTest, ThreadsAreWokenWhenHalfOfTheRoomIsFree) {
  constexpr int kRoom = 16;
  for (const bool helps : {false, true}) {
    for (const bool in_order : {false, true}) {
      Options options = MakeOptions(/*max_calls=*/3, helps, in_order);
      options.max_pieces = kRoom;
      Counter begun;
      Workers workers(options);
      workers.run = [&](int number) {
        // The first pieces wait for each other, so all threads start.
        begun.Add(1);
        if (number < options.max_calls) {
          Await([&] { return begun >= options.max_calls; });
        }
        return Outcome::kDone;
      };
      int taken = 0;
      const auto take = [&] {
        ASSERT_GE(workers.NextNumber(), 0);
        ++taken;
        // A woken thread needs time to be counted.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      // No thread is woken before it first sleeps. After that, each round wakes all threads once.
      take();
      for (int round = 0; round < 5; ++round) {
        const int threads = workers.threads_started();
        Await([&] { return workers.wakes() >= round * threads; });
        Await([&] { return workers.all_threads_asleep(); });
        ASSERT_EQ(workers.wakes(), round * threads);
        const int claims = workers.num_claims();
        while (claims - taken > kRoom / 2 + 1) {
          take();
          ASSERT_EQ(workers.wakes(), round * threads) << claims - taken;
          ASSERT_EQ(workers.num_claims(), claims);
        }
        take();
        take();
        Await([&] { return workers.num_claims() - taken == kRoom; });
      }
    }
  }
}

// If the consumer ran a long piece, it could not return results that are ready before it ends.
TEST_F(OrderedWorkersTest, TheConsumerLeavesLongPiecesToTheThreads) {
  constexpr int kCalls = 3;
  for (const bool is_long : {false, true}) {
    Workers workers(MakeOptions(kCalls, /*helps=*/true, /*in_order=*/true));
    workers.run = [&](int number) {
      // The first call of a function is often slow, which does not make its pieces long.
      const bool sleeps = is_long || number == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(sleeps ? 10 : 0));
      return Outcome::kDone;
    };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(workers.NextNumber(), i);
    EXPECT_EQ(workers.threads_started(), is_long ? kCalls : kCalls - 1);
    if (is_long) {
      // PieceTimes decides after four runs for each call, including the consumer's runs.
      EXPECT_LE(workers.consumer_calls(), 4 * kCalls);
    }
  }
}

TEST_F(OrderedWorkersTest, RetriesANotNowClaimWhileTheConsumerSleeps) {
  for (const bool in_order : {false, true}) {
    for (const Outcome outcome : {Outcome::kDone, Outcome::kDropped}) {
      Counter gate;
      Workers workers(MakeOptions(/*max_calls=*/3, /*helps=*/false, in_order), 3);
      workers.claim = [&](int number) { return number == 1 && !gate ? Claimed::kNotNow : Claimed::kRun; };
      workers.run = [&](int number) {
        if (number == 1) {
          // Lasts until another thread has run piece 2, so that thread must also have been woken.
          Await([&] { return workers.num_runs() == 3; });
        }
        if (number > 0) return Outcome::kDone;
        Await([&] { return workers.consumer_asleep() && workers.all_others_asleep(); });
        EXPECT_EQ(workers.num_not_now(), 1);
        gate.Set(1);
        return outcome;
      };
      std::vector<int> results = workers.AllNumbers();
      std::sort(results.begin(), results.end());
      EXPECT_EQ(results, outcome == Outcome::kDone ? std::vector<int>({0, 1, 2}) : std::vector<int>({1, 2}));
    }
  }
}

// If the work breaks its contract, the consumer gets the earlier results and then an error, instead of polling forever.
TEST_F(OrderedWorkersTest, NotNowWithNothingInProgressIsAnError) {
  for (const int max_calls : {0, 1, 3}) {
    for (const Claimed claimed : {Claimed::kDone, Claimed::kRun}) {
      for (const int before : {0, 1, 2}) {
        Workers workers(MakeOptions(max_calls, /*helps=*/false, /*in_order=*/true));
        workers.claim = [&](int number) { return number < before ? claimed : Claimed::kNotNow; };
        for (int i = 0; i < before; ++i) EXPECT_EQ(workers.NextNumber(), i);
        EXPECT_EQ(workers.NextNumber(), kStuck);
        EXPECT_EQ(workers.NextNumber(), kStuck);
      }
    }
  }
}

// The workers may reach the end by dropping pieces while the consumer sleeps.
TEST_F(OrderedWorkersTest, TheEndWakesTheConsumer) {
  for (const bool in_order : {false, true}) {
    Counter ended;
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, in_order));
    workers.claim = [&](int number) {
      ended.Set(number == 2);
      return ended ? Claimed::kEnd : Claimed::kRun;
    };
    // The piece that the consumer waits for in order is dropped last, when no other piece is left.
    workers.run = [&](int number) {
      Await([&] { return workers.consumer_asleep() && (number == 1 || ended); });
      return Outcome::kDropped;
    };
    EXPECT_TRUE(workers.AllNumbers().empty());
  }
}

TEST_F(OrderedWorkersTest, MeasuresHowLongTheConsumerWaited) {
  int64_t nanos = 0;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, true));
  workers.run = [&](int number) {
    if (number > 0) return Outcome::kDone;
    Await([&] { return workers.consumer_asleep(); });
    const auto begin = std::chrono::steady_clock::now();
    Await([&] {
      nanos = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
      return nanos > 1'000'000;
    });
    return Outcome::kDone;
  };
  int64_t waited;
  EXPECT_EQ(workers.NextNumber(&waited), 0);
  EXPECT_GE(waited, nanos);
  Await([&] { return workers.all_threads_asleep(); });
  EXPECT_EQ(workers.NextNumber(&waited), 1);
  EXPECT_EQ(waited, 0);
}

// While the only thread runs a piece, the sleeping consumer must be woken to fetch. Otherwise the input would be idle.
TEST_F(OrderedWorkersTest, TheConsumerIsWokenToFetch) {
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/true, true));
  workers.claim = [](int) { return Claimed::kFetch; };
  workers.fetch = [&](int number) {
    if (number == 0) {  // The consumer fetches this piece. The thread must fetch the next one.
      return Outcome::kRun;
    }
    if (!workers.is_consumer() && number < 5) {
      Await([&] { return workers.consumer_asleep(); });
    }
    return Outcome::kRun;
  };
  Counter thread_runs;
  workers.run = [&](int number) {
    if (workers.is_consumer()) {
      // Waits until the thread has begun to fetch.
      if (workers.num_fetches() == 1) Await([&] { return workers.num_fetches() > 1; });
      return Outcome::kDone;
    }
    if (thread_runs.Add(1) == 1) {
      Await([&] { return workers.num_fetches() > number + 1; });
    }
    return Outcome::kDone;
  };
  for (int i = 0; i < 20; ++i) ASSERT_EQ(workers.NextNumber(), i);
}

TEST_F(OrderedWorkersTest, ABlockedPieceDoesNotDelayPiecesThatNeedNoWork) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, false), 500);
  workers.claim = [](int number) { return number == 0 ? Claimed::kRun : Claimed::kDone; };
  workers.run = [&](int) {
    Await([&] { return gate > 0; });
    return Outcome::kDone;
  };
  for (int i = 1; i < 500; ++i) ASSERT_EQ(workers.NextNumber(), i);
  gate.Set(1);
  EXPECT_EQ(workers.NextNumber(), 0);
}

}  // namespace
}  // namespace refurbish_tf
