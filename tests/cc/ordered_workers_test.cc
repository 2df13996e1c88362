#include "refurbish_tf/cc/workers/ordered_workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

using Claimed = OrderedWorkers::Claimed;
using Next = OrderedWorkers::Next;
using Options = OrderedWorkers::Options;
using Outcome = OrderedWorkers::Outcome;

constexpr std::chrono::seconds kLimit(60);

// What Take() returns instead of a number.
constexpr int kEnd = -1;
constexpr int kCancelled = -2;

// Relaxed, so that what is counted here orders nothing: the sanitizer would not
// see what the workers themselves leave unordered.
class Counter {
 public:
  int Add(int n) { return value_.fetch_add(n, std::memory_order_relaxed) + n; }
  void Set(int value) { value_.store(value, std::memory_order_relaxed); }
  // Whether it was `from`, which it is no longer.
  bool Change(int from, int to) {
    return value_.compare_exchange_strong(from, to, std::memory_order_relaxed);
  }
  operator int() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> value_{0};
};

// What must come is waited for without limit: the watchdog is the limit.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

uint64_t Draw(uint64_t seed, int number) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(number) + 1;
  for (int i = 0; i < 2; ++i) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
  }
  return z;
}

// Work that takes sometimes no time and sometimes a little.
void Dawdle(uint64_t random) {
  switch (random % 8) {
    case 0:
      std::this_thread::sleep_for(std::chrono::microseconds(random / 8 % 60));
      break;
    case 1:
    case 2:
      for (uint64_t i = 0; i < random / 8 % 8; ++i) std::this_thread::yield();
      break;
  }
}

// Nothing here is atomic: the sanitizer sees whether it is handed on safely.
struct NumberedPiece : OrderedWorkers::Piece {
  NumberedPiece(int number, Counter* alive, std::vector<int>* never_fetched)
      : number(number), alive(alive), never_fetched(never_fetched) {
    alive->Add(1);
  }
  ~NumberedPiece() override {
    alive->Add(-1);
    if (claimed == Claimed::kFetch && !is_fetched) {
      never_fetched->push_back(number);
    }
  }

  const int number;
  Counter* const alive;
  std::vector<int>* const never_fetched;
  Claimed claimed = Claimed::kDone;
  bool is_fetched = false;
  bool is_run = false;
  bool is_done = false;
};

// Workers whose work is what a test says. It checks what is promised at all
// times.
class Workers : public OrderedWorkers::Work {
 public:
  explicit Workers(const Options& options) : options_(options) {
    workers_ = std::make_unique<OrderedWorkers>(
        options, this,
        [this](std::function<void()> loop) { return Start(std::move(loop)); });
  }

  ~Workers() override { Stop(); }

  // For pieces that are numbered in the order of the claims. A number for which
  // kNotNow was said is asked for again.
  std::function<Claimed(int)> claim;
  std::function<Outcome(int)> fetch = [](int) { return Outcome::kRun; };
  std::function<Outcome(int)> run = [](int) { return Outcome::kDone; };
  std::function<int64_t(int)> bytes = [](int) { return 1; };

  // The number of the next result, or why there is none.
  int Take(int64_t* waited_nanos = nullptr) {
    std::unique_ptr<OrderedWorkers::Piece> piece;
    int64_t nanos = -1;
    const bool was_cancelled = is_cancelled_;
    const Next next = workers_->GetNext(&piece, &nanos);
    EXPECT_GE(nanos, 0);
    if (waited_nanos != nullptr) *waited_nanos = nanos;
    if (was_cancelled) {
      EXPECT_EQ(next, Next::kCancelled);
    }
    if (next != Next::kPiece) {
      EXPECT_EQ(piece, nullptr);
      return next == Next::kEnd ? kEnd : kCancelled;
    }
    const auto& taken = static_cast<const NumberedPiece&>(*piece);
    EXPECT_TRUE(taken.is_done) << taken.number;
    return taken.number;
  }

  // What is left. The end must stay the end.
  std::vector<int> TakeAll() {
    std::vector<int> numbers;
    int number;
    while ((number = Take()) >= 0) numbers.push_back(number);
    EXPECT_EQ(number, kEnd);
    EXPECT_EQ(Take(), kEnd);
    EXPECT_EQ(Take(), kEnd);
    return numbers;
  }

  // The numbers of what comes next; nothing when cancelled.
  std::vector<int> Settle() {
    std::vector<const OrderedWorkers::Piece*> ready;
    if (!workers_->Settle(&ready)) return {};
    std::vector<int> numbers;
    for (const OrderedWorkers::Piece* piece : ready) {
      const auto& settled = static_cast<const NumberedPiece&>(*piece);
      EXPECT_TRUE(settled.is_done) << settled.number;
      numbers.push_back(settled.number);
    }
    return numbers;
  }

  void Resume() { workers_->Resume(); }

  void Cancel() {
    workers_->Cancel();
    is_cancelled_.Set(1);
  }

  // Destroys them.
  void Stop() {
    if (workers_ == nullptr) return;
    workers_.reset();
    EXPECT_EQ(calls_, 0);
    EXPECT_EQ(threads_ended_, threads_started_) << "not joined";
    EXPECT_EQ(threads_asleep_ + consumer_asleep_, 0);
    EXPECT_EQ(alive_, 0) << "pieces that are left";
  }

  int num_claims() const { return num_claims_; }
  int num_not_now() const { return num_not_now_; }
  int num_fetches() const { return num_fetches_; }
  int num_runs() const { return num_runs_; }
  // Of Fetch and Run.
  int calls() const { return calls_; }
  int consumer_calls() const { return consumer_calls_; }
  int alive() const { return alive_; }
  // Those that are given up.
  const std::vector<int>& never_fetched() const { return never_fetched_; }
  int threads_started() const { return threads_started_; }
  int threads_asleep() const { return threads_asleep_; }
  // How often one of them has been woken.
  int wakes() const { return wakes_; }
  bool consumer_asleep() const { return consumer_asleep_ > 0; }
  bool all_threads_asleep() const {
    return threads_asleep_ == threads_started_;
  }
  // Than the thread that asks; there must be some.
  bool all_others_asleep() const {
    return threads_asleep_ > 0 &&
           threads_asleep_ == threads_started_ - !is_consumer();
  }
  bool is_consumer() const { return std::this_thread::get_id() == consumer_; }

  Claimed Claim(std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    EXPECT_EQ(claiming_.Add(1), 1) << "two claims at once";
    EXPECT_FALSE(is_cancelled_) << "a claim after Cancel()";
    EXPECT_FALSE(claims_ended_) << "a claim after the end";
    const Claimed claimed = claim(num_claims_);
    if (claimed == Claimed::kEnd) {
      claims_ended_ = true;
    } else if (claimed == Claimed::kNotNow) {
      num_not_now_.Add(1);
    } else {
      auto numbered = std::make_unique<NumberedPiece>(num_claims_, &alive_,
                                                      &never_fetched_);
      numbered->claimed = claimed;
      numbered->is_done = claimed == Claimed::kDone;
      *piece = std::move(numbered);
      num_claims_.Add(1);
    }
    claiming_.Add(-1);
    return claimed;
  }

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& fetched = static_cast<NumberedPiece&>(*piece);
    EXPECT_EQ(fetching_.Add(1), 1) << "two fetches at once";
    EXPECT_GT(fetched.number, last_fetched_) << "not in the order of claims";
    last_fetched_ = fetched.number;
    EXPECT_EQ(fetched.claimed, Claimed::kFetch) << fetched.number;
    EXPECT_FALSE(fetched.is_fetched) << fetched.number << " comes again";
    fetched.is_fetched = true;
    BeginCall();
    num_fetches_.Add(1);
    const Outcome outcome = fetch(fetched.number);
    fetched.is_done = outcome == Outcome::kDone;
    EndCall();
    fetching_.Add(-1);
    return outcome;
  }

  Outcome Run(OrderedWorkers::Piece* piece) override {
    auto& running = static_cast<NumberedPiece&>(*piece);
    EXPECT_EQ(running.claimed,
              running.is_fetched ? Claimed::kFetch : Claimed::kRun)
        << running.number;
    EXPECT_FALSE(running.is_run || running.is_done)
        << running.number << " comes again";
    running.is_run = true;
    BeginCall();
    num_runs_.Add(1);
    const Outcome outcome = run(running.number);
    running.is_done = outcome == Outcome::kDone;
    EndCall();
    return outcome;
  }

  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    const auto& done = static_cast<const NumberedPiece&>(piece);
    EXPECT_TRUE(done.is_done) << done.number;
    return bytes(done.number);
  }

  // Is called under the lock: a thread that is counted as asleep waits, unless
  // it has just been woken.
  void Sleeps(bool begins) override {
    Counter& asleep = is_consumer() ? consumer_asleep_ : threads_asleep_;
    if (!begins && !is_consumer()) wakes_.Add(1);
    const int now = asleep.Add(begins ? 1 : -1);
    EXPECT_GE(now, 0);
    EXPECT_LE(now, is_consumer() ? 1 : static_cast<int>(threads_started_));
  }

 private:
  std::shared_ptr<void> Start(std::function<void()> loop) {
    threads_started_.Add(1);
    EXPECT_LE(threads_started_, options_.max_calls);
    return std::shared_ptr<std::thread>(
        new std::thread([this, loop = std::move(loop)] {
          loop();
          threads_ended_.Add(1);
        }),
        [](std::thread* thread) {
          thread->join();
          delete thread;
        });
  }

  void BeginCall() {
    EXPECT_LE(calls_.Add(1), std::max(1, options_.max_calls))
        << "a call too many";
    if (!is_consumer()) return;
    consumer_calls_.Add(1);
    EXPECT_TRUE(options_.consumer_helps || options_.max_calls == 0)
        << "a call in the consumer's thread";
  }

  void EndCall() { calls_.Add(-1); }

  const Options options_;
  const std::thread::id consumer_ = std::this_thread::get_id();
  Counter alive_;
  Counter num_claims_;
  Counter num_not_now_;
  Counter num_fetches_;
  Counter num_runs_;
  Counter claiming_;
  Counter fetching_;
  Counter calls_;
  Counter consumer_calls_;
  Counter is_cancelled_;
  Counter threads_started_;
  Counter threads_ended_;
  Counter threads_asleep_;
  Counter consumer_asleep_;
  Counter wakes_;
  // Not atomic, as those for which two calls at once are forbidden.
  bool claims_ended_ = false;
  int last_fetched_ = -1;
  std::vector<int> never_fetched_;
  std::unique_ptr<OrderedWorkers> workers_;
};

// Most of what can go wrong here is that all wait for ever.
class Watchdog {
 public:
  Watchdog() : thread_([this] { Watch(); }) {}

  ~Watchdog() {
    {
      std::unique_lock<std::mutex> lock(mu_);
      is_over_ = true;
    }
    over_.notify_one();
    thread_.join();
  }

 private:
  void Watch() {
    std::unique_lock<std::mutex> lock(mu_);
    // The clock of the system: older sanitizers do not know waits by another.
    const auto end = std::chrono::system_clock::now() + kLimit;
    if (over_.wait_until(lock, end, [this] { return is_over_; })) return;
    const testing::TestInfo* const test =
        testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "%s.%s hangs: a wake-up is lost\n",
                 test->test_suite_name(), test->name());
    std::abort();
  }

  std::mutex mu_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

class OrderedWorkersTest : public testing::Test {
 private:
  Watchdog watchdog_;
};

Options MakeOptions(int max_calls, bool helps, bool in_order) {
  Options options;
  options.max_calls = max_calls;
  options.consumer_helps = helps;
  options.in_order = in_order;
  return options;
}

std::vector<int> UpTo(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// All kinds of workers: max_calls, whether the consumer helps, and in order.
class AllWorkersTest
    : public testing::TestWithParam<std::tuple<int, bool, bool>> {
 protected:
  Options options() const {
    return MakeOptions(std::get<0>(GetParam()), std::get<1>(GetParam()),
                       std::get<2>(GetParam()));
  }

  void ExpectResults(std::vector<int> results,
                     const std::vector<int>& expected) const {
    if (!options().in_order) std::sort(results.begin(), results.end());
    EXPECT_EQ(results, expected);
  }

 private:
  Watchdog watchdog_;
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, AllWorkersTest,
    testing::Combine(testing::Values(0, 1, 2, 4, 16), testing::Bool(),
                     testing::Bool()),
    [](const auto& info) {
      return std::to_string(std::get<0>(info.param)) + "Calls" +
             (std::get<1>(info.param) ? "Helped" : "") +
             (std::get<2>(info.param) ? "InOrder" : "AsTheyCome");
    });

TEST_P(AllWorkersTest, EachPieceComesOnce) {
  constexpr int kPieces = 1500;
  Workers workers(options());
  workers.claim = [](int number) {
    if (number == kPieces) return Claimed::kEnd;
    constexpr Claimed kKinds[] = {Claimed::kDone, Claimed::kRun,
                                  Claimed::kFetch};
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
  ExpectResults(workers.TakeAll(), UpTo(kPieces));
}

TEST_P(AllWorkersTest, WhatIsDroppedIsSkipped) {
  constexpr int kPieces = 1200;
  // The last ones are all dropped, and there are long gaps before.
  const auto is_dropped = [](int number) {
    return number >= kPieces - 50 || Draw(5, number) % 3 == 0 ||
           Draw(6, number / 40) % 4 == 0;
  };
  std::vector<int> expected;
  for (int i = 0; i < kPieces; ++i) {
    if (!is_dropped(i)) expected.push_back(i);
  }
  Workers workers(options());
  workers.claim = [](int number) {
    if (number == kPieces) return Claimed::kEnd;
    return Draw(7, number) % 2 == 0 ? Claimed::kRun : Claimed::kFetch;
  };
  workers.fetch = [&](int number) {
    Dawdle(Draw(8, number));
    if (!is_dropped(number) || Draw(9, number) % 2 == 0) return Outcome::kRun;
    return Outcome::kDropped;
  };
  workers.run = [&](int number) {
    Dawdle(Draw(10, number));
    return is_dropped(number) ? Outcome::kDropped : Outcome::kDone;
  };
  ExpectResults(workers.TakeAll(), expected);
}

TEST_P(AllWorkersTest, NothingIsLeftWhenAllIsDropped) {
  for (const bool by_fetch : {false, true}) {
    for (const int pieces : {0, 1, 5, 100}) {
      Workers workers(options());
      workers.claim = [&](int number) {
        if (number == pieces) return Claimed::kEnd;
        return by_fetch ? Claimed::kFetch : Claimed::kRun;
      };
      workers.fetch = [](int) { return Outcome::kDropped; };
      workers.run = [](int) { return Outcome::kDropped; };
      EXPECT_TRUE(workers.TakeAll().empty());
      EXPECT_EQ(by_fetch ? workers.num_fetches() : workers.num_runs(), pieces);
    }
  }
}

// As with a source whose length is not known: it is asked for more and more,
// until it has ended.
TEST_P(AllWorkersTest, AFetchFindsTheEnd) {
  for (const int pieces : {0, 1, 7, 500}) {
    Counter ended;
    Workers workers(options());
    workers.claim = [&](int) {
      return ended ? Claimed::kEnd : Claimed::kFetch;
    };
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
    ExpectResults(workers.TakeAll(), UpTo(pieces));
  }
}

// At every tenth all before must have ended.
TEST_P(AllWorkersTest, NotNowIsAskedAgainWhenAPieceEnds) {
  constexpr int kPieces = 1000;
  Counter ended;
  Workers workers(options());
  workers.claim = [&](int number) {
    if (number == kPieces) return Claimed::kEnd;
    if (number % 10 == 0 && ended < number) return Claimed::kNotNow;
    if (Draw(13, number) % 4 == 0) {
      ended.Add(1);
      return Claimed::kDone;
    }
    return Draw(13, number) % 4 == 1 ? Claimed::kFetch : Claimed::kRun;
  };
  std::vector<int> expected;
  const auto is_dropped = [](int number) {
    return Draw(13, number) % 4 != 0 && Draw(14, number) % 5 == 0;
  };
  for (int i = 0; i < kPieces; ++i) {
    if (!is_dropped(i)) expected.push_back(i);
  }
  workers.run = [&](int number) {
    Dawdle(Draw(15, number));
    ended.Add(1);
    return is_dropped(number) ? Outcome::kDropped : Outcome::kDone;
  };
  ExpectResults(workers.TakeAll(), expected);
  // Not again and again: once for each that ended.
  EXPECT_LE(workers.num_not_now(), kPieces);
}

// Nothing to do in advance, and no thread to do it.
TEST_P(AllWorkersTest, NoThreadStartsForPiecesThatNeedNoWork) {
  constexpr int kPieces = 3000;
  Workers workers(options());
  workers.claim = [](int number) {
    return number == kPieces ? Claimed::kEnd : Claimed::kDone;
  };
  for (int i = 0; i < kPieces; ++i) {
    ASSERT_EQ(workers.Take(), i);
    ASSERT_EQ(workers.num_claims(), i + 1);
  }
  EXPECT_EQ(workers.Take(), kEnd);
  EXPECT_EQ(workers.threads_started(), 0);
}

TEST_P(AllWorkersTest, ASlowFetchHoldsUpOnlyWhatIsFetched) {
  constexpr int kPieces = 16;
  if (options().max_calls < 2) GTEST_SKIP() << "the only call is the fetch";
  const auto is_fetched = [](int number) { return number % 3 == 0; };
  int others = 0;
  for (int i = 0; i < kPieces; ++i) others += !is_fetched(i);
  Workers workers(options());
  workers.claim = [&](int number) {
    if (number == kPieces) return Claimed::kEnd;
    return is_fetched(number) ? Claimed::kFetch : Claimed::kRun;
  };
  workers.fetch = [&](int) {
    Await([&] { return workers.num_runs() >= others; });
    return Outcome::kRun;
  };
  ExpectResults(workers.TakeAll(), UpTo(kPieces));
}

TEST_P(AllWorkersTest, AsManyCallsRunAtOnceAsMay) {
  const int calls = std::max(1, options().max_calls);
  Counter begun;
  Workers workers(options());
  workers.claim = [&](int number) {
    return number == 3 * calls ? Claimed::kEnd : Claimed::kRun;
  };
  // As many as may run at once wait for each other.
  workers.run = [&](int number) {
    begun.Add(1);
    if (number < calls) Await([&] { return begun >= calls; });
    return Outcome::kDone;
  };
  ExpectResults(workers.TakeAll(), UpTo(3 * calls));
  const bool helped = options().consumer_helps && options().max_calls > 1;
  EXPECT_EQ(workers.threads_started(), options().max_calls - helped);
}

TEST_F(OrderedWorkersTest, AThreadStartsWhenAllOthersAreAtWork) {
  for (const bool helps : {false, true}) {
    for (const Claimed claimed : {Claimed::kRun, Claimed::kFetch}) {
      // Three that wait for each other; then one after the other, of which many
      // threads could be had.
      Counter begun;
      Counter ended;
      Workers workers(MakeOptions(/*max_calls=*/500, helps, /*in_order=*/true));
      workers.claim = [&](int number) {
        if (number == 60) return Claimed::kEnd;
        return number < 3 || ended == number ? claimed : Claimed::kNotNow;
      };
      workers.run = [&](int number) {
        begun.Add(1);
        if (number < 3) Await([&] { return begun >= 3; });
        ended.Add(1);
        return Outcome::kDone;
      };
      EXPECT_EQ(workers.TakeAll(), UpTo(60));
      EXPECT_GE(workers.threads_started(), 2);
      EXPECT_LE(workers.threads_started(), 10);
    }
  }
}

// A little room, many threads, and a consumer that is now slow, now fast.
TEST_P(AllWorkersTest, NoWakeUpIsLost) {
  constexpr int kPieces = 800;
  for (const size_t max_pieces : {1, 2, 3, 5}) {
    for (const int64_t max_bytes : {1, 1000}) {
      Options options = this->options();
      options.max_pieces = max_pieces;
      options.max_bytes = max_bytes;
      const uint64_t seed = 100 * max_pieces + max_bytes;
      Counter ended;
      Workers workers(options);
      workers.claim = [&](int number) {
        if (number == kPieces) return Claimed::kEnd;
        const uint64_t random = Draw(seed, number);
        if (random % 8 == 0 && ended < number) return Claimed::kNotNow;
        // Sometimes one kind for long.
        const uint64_t kind =
            random / 8 % 2 == 0 ? random : Draw(1, number / 30);
        if (kind / 16 % 3 == 0) {
          ended.Add(1);
          return Claimed::kDone;
        }
        return kind / 16 % 3 == 1 ? Claimed::kFetch : Claimed::kRun;
      };
      const auto outcome = [](uint64_t random) {
        return random / 64 % 6 == 0 ? Outcome::kDropped : Outcome::kDone;
      };
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
      while (workers.Take() >= 0) {
        if (++results / 100 % 2 == 0) Dawdle(Draw(seed + 3, results));
      }
      EXPECT_EQ(workers.num_claims(), kPieces);
      EXPECT_EQ(ended, kPieces);
      EXPECT_EQ(workers.alive(), 0);
    }
  }
}

TEST_P(AllWorkersTest, NoMorePiecesThanThereIsRoomFor) {
  for (const int max_pieces : {1, 2, 5, 16, 33}) {
    Options options = this->options();
    if (options.max_calls == 0) GTEST_SKIP() << "nothing is done in advance";
    options.max_pieces = max_pieces;
    const int room = std::max(max_pieces, options.max_calls);
    Workers workers(options);
    workers.claim = [](int number) {
      return Draw(16, number) % 2 == 0 ? Claimed::kRun : Claimed::kFetch;
    };
    int taken = 0;
    for (int round = 0; round < 10; ++round) {
      // Enough to wake the threads, which then must use the room, and no more.
      do {
        ASSERT_GE(workers.Take(), 0);
        ++taken;
        ASSERT_LE(workers.num_claims() - taken, room);
      } while (round > 0 &&
               workers.num_claims() - taken >= std::max(1, room / 2));
      Await([&] {
        return round == 0 || workers.num_claims() - taken >= room;
      });
      Await([&] { return workers.all_threads_asleep(); });
      ASSERT_LE(workers.num_claims() - taken, room);
    }
  }
}

// But there is always room for the calls, however large what they bring.
TEST_F(OrderedWorkersTest, PiecesOfOneSizeFillTheBytes) {
  constexpr int kCalls = 6;
  constexpr int kBytes = 10;
  for (const bool helps : {false, true}) {
    for (const int max_bytes : {1, 100}) {
      const int room = std::max(kCalls, max_bytes / kBytes);
      Options options = MakeOptions(kCalls, helps, /*in_order=*/true);
      options.max_pieces = 1000;
      options.max_bytes = max_bytes;
      Workers workers(options);
      workers.claim = [](int) { return Claimed::kRun; };
      workers.bytes = [](int) { return kBytes; };
      int taken = 0;
      for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(workers.Take(), taken++);
        ASSERT_LE(workers.num_claims() - taken, room);
        Await([&] { return workers.all_threads_asleep(); });
        while (workers.num_claims() - taken >= room / 2) {
          ASSERT_EQ(workers.Take(), taken++);
        }
        Await([&] { return workers.num_claims() - taken >= room; });
        Await([&] { return workers.all_threads_asleep(); });
        ASSERT_EQ(workers.num_claims() - taken, room);
      }
    }
  }
}

TEST_F(OrderedWorkersTest, PiecesOfAllSizesStayWithinTheBytes) {
  constexpr int64_t kLargest = 40;
  for (const bool in_order : {false, true}) {
    for (const int max_calls : {1, 2, 5}) {
      Options options = MakeOptions(max_calls, /*helps=*/true, in_order);
      options.max_pieces = 100;
      options.max_bytes = 200;
      Counter done;
      Workers workers(options);
      const auto size = [](int number) {
        return static_cast<int>(Draw(17, number) % (kLargest + 1));
      };
      workers.bytes = size;
      workers.claim = [](int number) {
        return number == 1000 ? Claimed::kEnd : Claimed::kRun;
      };
      workers.run = [&](int number) {
        done.Add(size(number));
        return Outcome::kDone;
      };
      int number;
      while ((number = workers.Take()) >= 0) {
        ASSERT_LE(done.Add(-size(number)),
                  options.max_bytes + max_calls * kLargest);
        Dawdle(Draw(18, number));
      }
      EXPECT_EQ(done, 0);
    }
  }
}

TEST_F(OrderedWorkersTest, ABlockedPieceHoldsUpNoOther) {
  constexpr int kPieces = 500;
  for (const bool helps : {false, true}) {
    Counter gate;
    Counter blocked;  // Its number and one.
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/false));
    workers.claim = [](int number) {
      return number == kPieces ? Claimed::kEnd : Claimed::kRun;
    };
    workers.run = [&](int number) {
      if (workers.is_consumer()) {
        Await([&] { return blocked > 0; });
      } else if (blocked.Change(0, number + 1)) {
        Await([&] { return gate > 0; });
      }
      return Outcome::kDone;
    };
    std::vector<int> results;
    for (int i = 1; i < kPieces; ++i) results.push_back(workers.Take());
    EXPECT_EQ(std::count(results.begin(), results.end(), blocked - 1), 0);
    gate.Set(1);
    EXPECT_EQ(workers.Take(), blocked - 1);
    EXPECT_EQ(workers.Take(), kEnd);
    results.push_back(blocked - 1);
    std::sort(results.begin(), results.end());
    EXPECT_EQ(results, UpTo(kPieces));
  }
}

// What was fetched is run while the next is fetched, though all others sleep.
TEST_F(OrderedWorkersTest, TheInputDoesNotLieIdleWhileAPieceIsRun) {
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/3, helps, /*in_order=*/true));
    workers.claim = [](int number) {
      return number == 50 ? Claimed::kEnd : Claimed::kFetch;
    };
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
    EXPECT_EQ(workers.TakeAll(), UpTo(50));
  }
}

// One that waits in order lets the others be done meanwhile.
TEST_F(OrderedWorkersTest, ABlockedPieceIsWaitedForInOrder) {
  constexpr int kPieces = 16;
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/true));
    workers.claim = [](int number) {
      return number == kPieces ? Claimed::kEnd : Claimed::kRun;
    };
    workers.run = [&](int number) {
      if (number == 0) Await([&] { return workers.num_runs() == kPieces; });
      return Outcome::kDone;
    };
    EXPECT_EQ(workers.TakeAll(), UpTo(kPieces));
  }
}

TEST_F(OrderedWorkersTest, WithoutCallsTheConsumerDoesEverything) {
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
      while ((number = workers.Take()) >= 0) {
        trace += " " + std::to_string(number);
      }
      EXPECT_EQ(trace, " C0 F0 R0 0 C1 R1 1 C2 F2 C3 R3 3 C4 F4 R4 4 C5");
      EXPECT_EQ(workers.threads_started(), 0);
    }
  }
}

TEST_F(OrderedWorkersTest, TheConsumerHelpsWhileItWaits) {
  for (const bool in_order : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/true, in_order));
    workers.claim = [](int number) {
      return number == 8 ? Claimed::kEnd : Claimed::kRun;
    };
    // The first piece of the thread lasts until the consumer has done three.
    workers.run = [&](int) {
      if (workers.is_consumer()) {
        Await([&] { return workers.num_runs() > workers.consumer_calls(); });
      } else {
        Await([&] { return workers.consumer_calls() >= 3; });
      }
      return Outcome::kDone;
    };
    std::vector<int> results = workers.TakeAll();
    std::sort(results.begin(), results.end());
    EXPECT_EQ(results, UpTo(8));
  }
}

TEST_F(OrderedWorkersTest, ThreadsSleepOnWhileNothingNeedsWork) {
  constexpr int kPieces = 3000;
  for (const bool helps : {false, true}) {
    const Options options = MakeOptions(/*max_calls=*/3, helps, true);
    Workers workers(options);
    const auto needs_work = [](int number) {
      return number < 10 || number >= kPieces;
    };
    workers.claim = [&](int number) {
      if (number == kPieces + 100) return Claimed::kEnd;
      return needs_work(number) ? Claimed::kRun : Claimed::kDone;
    };
    Counter begun;
    workers.run = [&](int number) {
      // They must be woken again, all of them.
      if (number >= kPieces && number < kPieces + options.max_calls) {
        begun.Add(1);
        Await([&] { return begun == options.max_calls; });
      }
      return Outcome::kDone;
    };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(workers.Take(), i);
    Await([&] { return workers.all_threads_asleep(); });
    const int wakes = workers.wakes();
    for (int i = 100; i < kPieces; ++i) {
      ASSERT_EQ(workers.Take(), i);
      ASSERT_EQ(workers.num_claims(), i + 1);
    }
    // Each may have been woken before and not have got to it.
    EXPECT_LE(workers.wakes(), wakes + workers.threads_started());
    for (int i = kPieces; i < kPieces + 100; ++i) ASSERT_EQ(workers.Take(), i);
    EXPECT_EQ(workers.Take(), kEnd);
  }
}

TEST_F(OrderedWorkersTest, ThreadsAreWokenWhenHalfIsGone) {
  constexpr int kRoom = 16;
  for (const bool helps : {false, true}) {
    for (const bool in_order : {false, true}) {
      Options options = MakeOptions(/*max_calls=*/3, helps, in_order);
      options.max_pieces = kRoom;
      Counter begun;
      Workers workers(options);
      workers.claim = [](int) { return Claimed::kRun; };
      workers.run = [&](int number) {
        // For all threads to have started.
        begun.Add(1);
        if (number < options.max_calls) {
          Await([&] { return begun >= options.max_calls; });
        }
        return Outcome::kDone;
      };
      int taken = 0;
      const auto take = [&] {
        ASSERT_GE(workers.Take(), 0);
        ++taken;
        // One that is woken needs time to show itself.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      // Those who have not slept yet cannot have been woken. From then on all
      // are woken together, once in a round.
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

TEST_F(OrderedWorkersTest, NotNowIsAskedAgainWhileTheConsumerSleeps) {
  for (const bool in_order : {false, true}) {
    for (const Outcome outcome : {Outcome::kDone, Outcome::kDropped}) {
      Counter gate;
      Workers workers(MakeOptions(/*max_calls=*/3, /*helps=*/false, in_order));
      workers.claim = [&](int number) {
        if (number == 3) return Claimed::kEnd;
        return number == 1 && !gate ? Claimed::kNotNow : Claimed::kRun;
      };
      workers.run = [&](int number) {
        if (number == 1) {
          // So another one must have been woken, too.
          Await([&] { return workers.num_runs() == 3; });
        }
        if (number > 0) return Outcome::kDone;
        Await([&] {
          return workers.consumer_asleep() && workers.all_others_asleep();
        });
        EXPECT_EQ(workers.num_not_now(), 1);
        gate.Set(1);
        return outcome;
      };
      std::vector<int> results = workers.TakeAll();
      std::sort(results.begin(), results.end());
      EXPECT_EQ(results, outcome == Outcome::kDone
                             ? std::vector<int>({0, 1, 2})
                             : std::vector<int>({1, 2}));
    }
  }
}

// The end may come to light while the consumer sleeps, by what is dropped.
TEST_F(OrderedWorkersTest, TheEndWakesTheConsumer) {
  for (const bool in_order : {false, true}) {
    Counter ended;
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, in_order));
    workers.claim = [&](int number) {
      ended.Set(number == 2);
      return ended ? Claimed::kEnd : Claimed::kRun;
    };
    // The one at its place is dropped when there is nothing else any more.
    workers.run = [&](int number) {
      Await([&] {
        return workers.consumer_asleep() && (number == 1 || ended);
      });
      return Outcome::kDropped;
    };
    EXPECT_TRUE(workers.TakeAll().empty());
  }
}

// At any moment: what is settled is done and comes next, and nothing is begun.
TEST_P(AllWorkersTest, SettledAtAnyMoment) {
  constexpr int kPieces = 300;
  const uint64_t seed = 7;
  Workers workers(options());
  workers.claim = [&](int number) {
    if (number == kPieces) return Claimed::kEnd;
    return Claimed(Draw(seed, number) % 3);
  };
  workers.run = [&](int number) {
    Dawdle(Draw(seed + 2, number));
    return Draw(seed + 1, number) % 5 == 0 ? Outcome::kDropped
                                           : Outcome::kDone;
  };
  std::vector<int> results;
  int number = 0;
  while (number >= 0) {
    for (int i = 0; i < 5 && (number = workers.Take()) >= 0; ++i) {
      results.push_back(number);
    }
    const std::vector<int> ready = workers.Settle();
    EXPECT_EQ(workers.calls(), 0);
    const int claims = workers.num_claims();
    Dawdle(Draw(seed + 3, number));
    EXPECT_EQ(workers.num_claims(), claims);
    workers.Resume();
    // As they come, those that are made from now on may come first.
    for (const int next : options().in_order ? ready : std::vector<int>()) {
      EXPECT_EQ(number = workers.Take(), next);
      results.push_back(number);
    }
  }
  // What was claimed and not begun is given up, and nothing else.
  for (const int given_up : workers.never_fetched()) results.push_back(given_up);
  for (int i = 0; i < kPieces; ++i) {
    const bool dropped = Claimed(Draw(seed, i) % 3) != Claimed::kDone &&
                         Draw(seed + 1, i) % 5 == 0;
    if (dropped && std::count(results.begin(), results.end(), i) == 0) {
      results.push_back(i);
    }
  }
  std::sort(results.begin(), results.end());
  EXPECT_EQ(results, UpTo(kPieces));
}

TEST_F(OrderedWorkersTest, MeasuresHowLongAResultWasNotReady) {
  int64_t nanos = 0;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, true));
  workers.claim = [](int) { return Claimed::kRun; };
  workers.run = [&](int number) {
    if (number > 0) return Outcome::kDone;
    Await([&] { return workers.consumer_asleep(); });
    const auto begin = std::chrono::steady_clock::now();
    Await([&] {
      nanos = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin)
                  .count();
      return nanos > 1'000'000;
    });
    return Outcome::kDone;
  };
  int64_t waited;
  EXPECT_EQ(workers.Take(&waited), 0);
  EXPECT_GE(waited, nanos);
  Await([&] { return workers.all_threads_asleep(); });
  EXPECT_EQ(workers.Take(&waited), 1);
  EXPECT_EQ(waited, 0);
}

TEST_F(OrderedWorkersTest, WhatTheConsumerDoesItselfWasNotReady) {
  for (const int max_calls : {0, 2}) {
    int64_t nanos = 0;
    Workers workers(MakeOptions(max_calls, /*helps=*/true, /*in_order=*/true));
    workers.claim = [](int) { return Claimed::kRun; };
    workers.run = [&](int number) {
      if (number > 0) return Outcome::kDone;
      const auto begin = std::chrono::steady_clock::now();
      Await([&] {
        nanos =
            std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin)
                .count();
        return nanos > 1'000'000;
      });
      return Outcome::kDone;
    };
    int64_t waited;
    EXPECT_EQ(workers.Take(&waited), 0);
    EXPECT_GE(waited, nanos);
  }
}

// -----------------------------------------------------------------------------
// Cancel().

void ExpectStaysCancelled(Workers* workers) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(workers->Take(), kCancelled);
}

TEST_F(OrderedWorkersTest, CancelledAtAnyMoment) {
  for (int round = 0; round < 600; ++round) {
    const uint64_t random = Draw(19, round);
    constexpr int kCalls[] = {0, 1, 2, 3, 8};
    Options options = MakeOptions(kCalls[random % 5], random / 5 % 2 == 0,
                                  random / 10 % 2 == 0);
    options.max_pieces = 1 + random / 20 % 20;
    const int kinds = 1 + random / 400 % 4;
    Workers workers(options);
    workers.claim = [&](int number) {
      constexpr Claimed kKinds[] = {Claimed::kRun, Claimed::kFetch,
                                    Claimed::kRun, Claimed::kDone};
      return kKinds[Draw(random, number) % kinds];
    };
    workers.fetch = [&](int number) {
      Dawdle(Draw(random + 1, number));
      return Draw(random + 1, number) / 64 % 5 == 0 ? Outcome::kDropped
                                                    : Outcome::kRun;
    };
    workers.run = [&](int number) {
      Dawdle(Draw(random + 2, number));
      return Draw(random + 2, number) / 64 % 5 == 0 ? Outcome::kDropped
                                                    : Outcome::kDone;
    };
    // At a random number of claims and somewhat later.
    const int claims = random / 1600 % 60;
    std::thread canceller([&] {
      while (workers.num_claims() < claims) std::this_thread::yield();
      Dawdle(random / 100'000);
      workers.Cancel();
    });
    int last = -1;
    int number;
    while ((number = workers.Take()) >= 0) {
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

TEST_F(OrderedWorkersTest, CancelledBeforeAnything) {
  for (const int max_calls : {0, 1, 2}) {
    Workers workers(MakeOptions(max_calls, true, true));
    workers.claim = [](int) { return Claimed::kRun; };
    workers.Cancel();
    ExpectStaysCancelled(&workers);
    EXPECT_EQ(workers.num_claims(), 0);
    EXPECT_EQ(workers.threads_started(), 0);
  }
}

TEST_F(OrderedWorkersTest, WhatIsReadyIsNotHandedOutOnceCancelled) {
  for (const bool in_order : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, in_order));
    workers.claim = [](int) { return Claimed::kRun; };
    EXPECT_GE(workers.Take(), 0);
    Await([&] { return workers.all_threads_asleep(); });
    EXPECT_GT(workers.alive(), 0);
    const int claims = workers.num_claims();
    workers.Cancel();
    ExpectStaysCancelled(&workers);
    workers.Stop();
    EXPECT_EQ(workers.num_claims(), claims);
  }
}

TEST_F(OrderedWorkersTest, CancelledWhileTheConsumerSleeps) {
  for (const bool in_order : {false, true}) {
    for (const bool in_fetch : {false, true}) {
      for (const int max_calls : {1, 3}) {
        Counter gate;
        Workers workers(MakeOptions(max_calls, /*helps=*/false, in_order));
        workers.claim = [&](int) {
          return in_fetch ? Claimed::kFetch : Claimed::kRun;
        };
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
        // While all calls still wait at the gate.
        EXPECT_EQ(workers.Take(), kCancelled);
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

TEST_F(OrderedWorkersTest, CancelledWhileSettling) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/3, /*helps=*/true, true));
  workers.claim = [](int) { return Claimed::kRun; };
  workers.run = [&](int number) {
    if (number > 0) Await([&] { return gate > 0; });
    return Outcome::kDone;
  };
  EXPECT_EQ(workers.Take(), 0);
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

TEST_F(OrderedWorkersTest, CancelledWhileTheConsumerHelps) {
  for (const bool in_order : {false, true}) {
    for (const bool in_fetch : {false, true}) {
      for (const int max_calls : {0, 2, 4}) {
        Counter gate;
        Counter consumer_in;
        Workers workers(MakeOptions(max_calls, /*helps=*/true, in_order));
        workers.claim = [&](int) {
          return in_fetch ? Claimed::kFetch : Claimed::kRun;
        };
        workers.fetch = workers.run = [&](int) {
          if (workers.is_consumer()) consumer_in.Set(1);
          Await([&] { return gate > 0; });
          return in_fetch ? Outcome::kRun : Outcome::kDone;
        };
        const int calls = in_fetch ? 1 : std::max(1, max_calls);
        Counter claims;
        std::thread canceller([&] {
          Await([&] {
            return consumer_in > 0 && workers.calls() == calls &&
                   (!in_fetch || workers.all_threads_asleep());
          });
          workers.Cancel();
          claims.Set(workers.num_claims());
          gate.Set(1);
        });
        // Not the piece that it has just done.
        EXPECT_EQ(workers.Take(), kCancelled);
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

// It comes from within a call of its own, too.
TEST_F(OrderedWorkersTest, CancelledByACall) {
  for (const bool helps : {false, true}) {
    Workers workers(MakeOptions(/*max_calls=*/2, helps, /*in_order=*/true));
    workers.claim = [](int) { return Claimed::kRun; };
    workers.run = [&](int number) {
      if (number == 30) workers.Cancel();
      return Outcome::kDone;
    };
    int number;
    while ((number = workers.Take()) >= 0) EXPECT_LT(number, 30);
    EXPECT_EQ(number, kCancelled);
    ExpectStaysCancelled(&workers);
  }
}

TEST_F(OrderedWorkersTest, TheDestructorWaitsForTheCalls) {
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
    EXPECT_EQ(workers.Take(), 0);
    const int calls = in_fetch ? 1 : 2;
    Await([&] { return workers.calls() == calls; });
    destroying.Set(1);
    workers.Stop();
    EXPECT_EQ(ended, calls);
  }
}

// The input does not lie idle while the only thread runs and the consumer sleeps.
TEST_F(OrderedWorkersTest, TheConsumerIsWokenToFetch) {
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/true, true));
  workers.claim = [](int) { return Claimed::kFetch; };
  workers.fetch = [&](int number) {
    if (number == 0) {  // The consumer's: the thread must be the next one.
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
      // Until the thread has fetched or is at it.
      if (workers.num_fetches() == 1) Await([&] { return workers.num_fetches() > 1; });
      return Outcome::kDone;
    }
    if (thread_runs.Add(1) == 1) {
      Await([&] { return workers.num_fetches() > number + 1; });
    }
    return Outcome::kDone;
  };
  for (int i = 0; i < 20; ++i) ASSERT_EQ(workers.Take(), i);
}

// Pieces of more than half of the bytes are made in advance, too.
TEST_F(OrderedWorkersTest, OneLargePieceIsMadeInAdvance) {
  Options options = MakeOptions(/*max_calls=*/1, /*helps=*/true, true);
  options.max_bytes = 10;
  Workers workers(options);
  workers.claim = [](int) { return Claimed::kRun; };
  workers.bytes = [](int) { return 6; };
  EXPECT_EQ(workers.Take(), 0);
  for (int i = 1; i < 10; ++i) {
    Await([&] { return workers.num_runs() == i + 1; });
    Await([&] { return workers.all_threads_asleep(); });
    EXPECT_EQ(workers.Take(), i);
  }
}

TEST_F(OrderedWorkersTest, WhatIsDroppedTakesNoRoom) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, true));
  workers.claim = [](int) { return Claimed::kRun; };
  workers.run = [&](int number) {
    if (number == 1) Await([&] { return gate > 0; });
    return number > 0 && number < 16 ? Outcome::kDropped : Outcome::kDone;
  };
  EXPECT_EQ(workers.Take(), 0);
  Await([&] { return workers.threads_asleep() == 1; });
  gate.Set(1);
  // Nothing lies ready now, but for those that come after.
  Await([&] { return workers.num_runs() > 20; });
}

// Before any size is known no more is claimed than there may be calls.
TEST_F(OrderedWorkersTest, BytesBoundWhatIsFetched) {
  Options options = MakeOptions(/*max_calls=*/2, /*helps=*/false, true);
  options.max_bytes = 100;
  Workers workers(options);
  workers.claim = [](int) { return Claimed::kFetch; };
  workers.bytes = [](int) { return 100; };
  workers.fetch = [&](int number) {
    if (number == 0) Await([&] { return workers.threads_asleep() == 1; });
    return Outcome::kRun;
  };
  EXPECT_EQ(workers.Take(), 0);
  Await([&] { return workers.all_threads_asleep(); });
  EXPECT_LE(workers.num_runs() - 1, 3) << "of 100 bytes each";
}

TEST_F(OrderedWorkersTest, ABlockedPieceHoldsUpNothingThatNeedsNoWork) {
  Counter gate;
  Workers workers(MakeOptions(/*max_calls=*/2, /*helps=*/false, false));
  workers.claim = [](int number) {
    if (number == 500) return Claimed::kEnd;
    return number == 0 ? Claimed::kRun : Claimed::kDone;
  };
  workers.run = [&](int) {
    Await([&] { return gate > 0; });
    return Outcome::kDone;
  };
  for (int i = 1; i < 500; ++i) ASSERT_EQ(workers.Take(), i);
  gate.Set(1);
  EXPECT_EQ(workers.Take(), 0);
}

// While nothing lies ready all calls are under way, whatever room there is.
TEST_F(OrderedWorkersTest, AllCallsAreUnderWayWhileNothingIsReady) {
  constexpr int kCalls = 6;
  Options options = MakeOptions(kCalls, /*helps=*/false, true);
  options.max_pieces = kCalls;
  Counter begun;
  Workers workers(options);
  workers.claim = [](int) { return Claimed::kRun; };
  workers.run = [&](int number) {
    begun.Add(1);
    if (number < 20 * kCalls) {
      Await([&] { return begun >= kCalls * (number / kCalls + 1); });
    }
    return Outcome::kDone;
  };
  for (int i = 0; i < 20 * kCalls; ++i) ASSERT_EQ(workers.Take(), i);
}

}  // namespace
}  // namespace refurbish_tf
