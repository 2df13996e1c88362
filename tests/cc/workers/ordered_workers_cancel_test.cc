// Workers can be cancelled or destroyed at any moment; nothing begins or is handed out afterwards.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tests/cc/workers/ordered_workers_testing.h"

namespace refurbish_tf {
namespace {

void ExpectStaysCancelled(Workers* workers) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(workers->NextNumber(), kCancelled);
}

TEST_F(OrderedWorkersTest, CanBeCancelledAtAnyMoment) {
  for (int round = 0; round < 150; ++round) {
    const uint64_t random = Draw(19, round);
    constexpr int kCalls[] = {0, 1, 2, 3, 8};
    Options options = MakeOptions(kCalls[random % 5], random / 5 % 2 == 0, random / 10 % 2 == 0);
    options.max_pieces = 1 + random / 20 % 20;
    const int kinds = 1 + random / 400 % 4;
    Workers workers(options);
    workers.claim = [&](int number) {
      constexpr Claimed kKinds[] = {Claimed::kRun, Claimed::kFetch, Claimed::kRun, Claimed::kDone};
      return kKinds[Draw(random, number) % kinds];
    };
    workers.fetch = [&](int number) {
      Dawdle(Draw(random + 1, number));
      return Draw(random + 1, number) / 64 % 5 == 0 ? Outcome::kDropped : Outcome::kRun;
    };
    workers.run = [&](int number) {
      Dawdle(Draw(random + 2, number));
      return Draw(random + 2, number) / 64 % 5 == 0 ? Outcome::kDropped : Outcome::kDone;
    };
    // Cancels after a random number of claims, or a little later.
    const int claims = random / 1600 % 60;
    std::thread canceller([&] {
      while (workers.num_claims() < claims) std::this_thread::yield();
      Dawdle(random / 100'000);
      workers.Cancel();
    });
    int last = -1;
    int number;
    while ((number = workers.NextNumber()) >= 0) {
      if (options.in_order) {
        EXPECT_GT(number, last);
      }
      last = number;
    }
    EXPECT_EQ(number, kCancelled);
    canceller.join();
    if (round % 2 == 0) ExpectStaysCancelled(&workers);
  }
}

TEST_F(OrderedWorkersTest, CanBeCancelledBeforeAnyClaim) {
  for (const int max_calls : {0, 1, 2}) {
    Workers workers(MakeOptions(max_calls, true, true));
    workers.Cancel();
    ExpectStaysCancelled(&workers);
    EXPECT_EQ(workers.num_claims(), 0);
    EXPECT_EQ(workers.threads_started(), 0);
  }
}

TEST_F(OrderedWorkersTest, ReadyPiecesAreNotReturnedAfterCancellation) {
  for (const bool in_order : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, in_order));
    EXPECT_GE(workers.NextNumber(), 0);
    Await([&] { return workers.all_threads_asleep(); });
    EXPECT_GT(workers.alive(), 0);
    const int claims = workers.num_claims();
    workers.Cancel();
    ExpectStaysCancelled(&workers);
    workers.Stop();
    EXPECT_EQ(workers.num_claims(), claims);
  }
}

TEST_F(OrderedWorkersTest, CanBeCancelledWhileTheConsumerSleeps) {
  for (const bool in_order : {false, true}) {
    for (const bool in_fetch : {false, true}) {
      for (const int max_calls : {1, 3}) {
        Counter gate;
        Workers workers(MakeOptions(max_calls, /*helps=*/false, in_order));
        workers.claim = [&](int) { return in_fetch ? Claimed::kFetch : Claimed::kRun; };
        workers.fetch = workers.run = [&](int) {
          Await([&] { return gate > 0; });
          return in_fetch ? Outcome::kRun : Outcome::kDone;
        };
        const int calls = in_fetch ? 1 : max_calls;
        std::thread canceller([&] {
          Await([&] {
            return workers.consumer_asleep() && workers.calls() == calls &&
                   workers.threads_asleep() == workers.threads_started() - calls;
          });
          workers.Cancel();
        });
        // All calls still wait at the gate.
        EXPECT_EQ(workers.NextNumber(), kCancelled);
        canceller.join();
        ExpectStaysCancelled(&workers);
        EXPECT_EQ(workers.calls(), calls);
        const int claims = workers.num_claims();
        gate.Set(1);
        Await([&] { return workers.calls() == 0; });
        ExpectStaysCancelled(&workers);
        workers.Stop();
        EXPECT_EQ(workers.num_claims(), claims);
        EXPECT_EQ(workers.num_fetches(), in_fetch ? 1 : 0);
        EXPECT_EQ(workers.num_runs(), in_fetch ? 0 : max_calls);
      }
    }
  }
}

TEST_F(OrderedWorkersTest, CanBeCancelledWhileSettling) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/3, /*helps=*/true, true));
  workers.run = [&](int number) {
    if (number > 0) Await([&] { return gate > 0; });
    return Outcome::kDone;
  };
  EXPECT_EQ(workers.NextNumber(), 0);
  Await([&] { return workers.calls() == 2; });
  std::thread canceller([&] {
    Await([&] { return workers.consumer_asleep(); });
    workers.Cancel();
  });
  EXPECT_EQ(workers.Settle(), std::vector<int>());
  canceller.join();
  ExpectStaysCancelled(&workers);
  gate.Set(1);
}

TEST_F(OrderedWorkersTest, CanBeCancelledWhileTheConsumerHelps) {
  for (const bool in_order : {false, true}) {
    for (const bool in_fetch : {false, true}) {
      for (const int max_calls : {0, 2, 4}) {
        Counter gate;
        Counter consumer_in;
        Workers workers(MakeOptions(max_calls, /*helps=*/true, in_order));
        workers.claim = [&](int) { return in_fetch ? Claimed::kFetch : Claimed::kRun; };
        workers.fetch = workers.run = [&](int) {
          if (workers.is_consumer()) consumer_in.Set(1);
          Await([&] { return gate > 0; });
          return in_fetch ? Outcome::kRun : Outcome::kDone;
        };
        const int calls = in_fetch ? 1 : std::max(1, max_calls);
        Counter claims;
        std::thread canceller([&] {
          Await([&] {
            return consumer_in > 0 && workers.calls() == calls && (!in_fetch || workers.all_threads_asleep());
          });
          workers.Cancel();
          claims.Set(workers.num_claims());
          gate.Set(1);
        });
        // The consumer does not return the piece that it has just run.
        EXPECT_EQ(workers.NextNumber(), kCancelled);
        canceller.join();
        ExpectStaysCancelled(&workers);
        workers.Stop();
        EXPECT_EQ(workers.num_claims(), claims);
        EXPECT_EQ(workers.num_fetches(), in_fetch ? 1 : 0);
        EXPECT_EQ(workers.num_runs(), in_fetch ? 0 : calls);
      }
    }
  }
}

TEST_F(OrderedWorkersTest, CanBeCancelledByACall) {
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/true));
    workers.run = [&](int number) {
      if (number == 30) workers.Cancel();
      return Outcome::kDone;
    };
    int number;
    while ((number = workers.NextNumber()) >= 0) EXPECT_LT(number, 30);
    EXPECT_EQ(number, kCancelled);
    ExpectStaysCancelled(&workers);
  }
}

TEST_F(OrderedWorkersTest, TheDestructorWaitsForRunningCalls) {
  for (const bool in_fetch : {false, true}) {
    Counter destroying;
    Counter ended;
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, false));
    workers.claim = [&](int number) {
      if (number == 0) return Claimed::kRun;
      return in_fetch ? Claimed::kFetch : Claimed::kRun;
    };
    const auto call = [&](int number) {
      if (number == 0) return Outcome::kDone;
      Await([&] { return destroying > 0; });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ended.Add(1);
      return Outcome::kDone;
    };
    workers.fetch = workers.run = call;
    EXPECT_EQ(workers.NextNumber(), 0);
    const int calls = in_fetch ? 1 : 2;
    Await([&] { return workers.calls() == calls; });
    destroying.Set(1);
    workers.Stop();
    EXPECT_EQ(ended, calls);
  }
}

}  // namespace
}  // namespace refurbish_tf
