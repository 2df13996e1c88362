// Shared by the tests of the ordered workers.
#pragma once

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
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

using Claimed = OrderedWorkers::Claimed;
using Next = OrderedWorkers::Next;
using Options = OrderedWorkers::Options;
using Outcome = OrderedWorkers::Outcome;

inline constexpr std::chrono::seconds kLimit(60);

// Returned by NextNumber() if the next result is not a piece.
inline constexpr int kEnd = -1;
inline constexpr int kCancelled = -2;
inline constexpr int kStuck = -3;

// Relaxed, because operations that order threads would hide the workers' races from the sanitizer.
class Counter {
 public:
  int Add(int n) { return value_.fetch_add(n, std::memory_order_relaxed) + n; }
  void Set(int value) { value_.store(value, std::memory_order_relaxed); }
  // Changes `from` to `to`. Returns whether the value was `from`.
  bool Change(int from, int to) { return value_.compare_exchange_strong(from, to, std::memory_order_relaxed); }
  operator int() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> value_{0};
};

// Waits without a limit of its own; `Watchdog` limits each test.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

inline uint64_t Draw(uint64_t seed, int number) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(number) + 1;
  for (int i = 0; i < 2; ++i) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
  }
  return z;
}

// Work that sometimes takes no time and sometimes a little.
inline void Dawdle(uint64_t random) {
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

// No field is atomic, so the sanitizer checks that the workers pass pieces between threads safely.
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

// Workers whose work a test defines. Checks what must hold in every test.
class Workers : public OrderedWorkers::Work {
 public:
  // `num_pieces`: how many pieces there are before the end; -1 if `claim` says when it comes.
  explicit Workers(const Options& options, int num_pieces = -1) : options_(options), num_pieces_(num_pieces) {
    workers_ = std::make_unique<OrderedWorkers>(options, this,
                                                [this](std::function<void()> loop) { return Start(std::move(loop)); });
  }

  ~Workers() override { Stop(); }

  // Pieces are numbered in the order of the claims. After kNotNow the same number is claimed again.
  std::function<Claimed(int)> claim = [](int) { return Claimed::kRun; };
  std::function<Outcome(int)> fetch = [](int) { return Outcome::kRun; };
  std::function<Outcome(int)> run = [](int) { return Outcome::kDone; };
  std::function<int64_t(int)> bytes = [](int) { return 1; };
  std::function<bool(int)> is_short = [](int) { return false; };

  // The number of the next result, or the reason why there is none.
  int NextNumber(int64_t* waited_nanos = nullptr) {
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
      if (next == Next::kEnd) return kEnd;
      EXPECT_EQ(absl::IsInternal(OrderedWorkers::ErrorOf(next)), next == Next::kStuck);
      return next == Next::kStuck ? kStuck : kCancelled;
    }
    const auto& taken = static_cast<const NumberedPiece&>(*piece);
    EXPECT_TRUE(taken.is_done) << taken.number;
    return taken.number;
  }

  // The remaining results. Once the end is reached, each further call must also return it.
  std::vector<int> AllNumbers() {
    std::vector<int> numbers;
    int number;
    while ((number = NextNumber()) >= 0) numbers.push_back(number);
    EXPECT_EQ(number, kEnd);
    EXPECT_EQ(NextNumber(), kEnd);
    EXPECT_EQ(NextNumber(), kEnd);
    return numbers;
  }

  // Settles. Returns the numbers of the results that come next, or nothing if the workers were cancelled.
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

  void Stop() {
    if (workers_ == nullptr) return;
    workers_.reset();
    EXPECT_EQ(calls_, 0);
    EXPECT_EQ(threads_ended_, threads_started_) << "not joined";
    EXPECT_EQ(threads_asleep_ + consumer_asleep_, 0);
    EXPECT_EQ(alive_, 0) << "pieces that are left";
  }

  // A test in which the number changes checks it itself.
  int most_calls() const { return options_.calls_now ? 100 : options_.max_calls; }
  int num_claims() const { return num_claims_; }
  int num_not_now() const { return num_not_now_; }
  int num_fetches() const { return num_fetches_; }
  int num_runs() const { return num_runs_; }
  // How many calls of Fetch and Run are in progress.
  int calls() const { return calls_; }
  int consumer_calls() const { return consumer_calls_; }
  int alive() const { return alive_; }
  // Pieces that were claimed for a fetch, but given up before it.
  const std::vector<int>& never_fetched() const { return never_fetched_; }
  int threads_started() const { return threads_started_; }
  int threads_asleep() const { return threads_asleep_; }
  int wakes() const { return wakes_; }
  bool consumer_asleep() const { return consumer_asleep_ > 0; }
  bool all_threads_asleep() const { return threads_asleep_ == threads_started_; }
  // Whether there are threads besides the calling one, and all of them are asleep.
  bool all_others_asleep() const { return threads_asleep_ > 0 && threads_asleep_ == threads_started_ - !is_consumer(); }
  bool is_consumer() const { return std::this_thread::get_id() == consumer_; }

  Claimed Claim(std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    EXPECT_EQ(claiming_.Add(1), 1) << "two claims at once";
    EXPECT_FALSE(is_cancelled_) << "a claim after Cancel()";
    EXPECT_FALSE(claims_ended_) << "a claim after the end";
    const Claimed claimed = num_claims_ == num_pieces_ ? Claimed::kEnd : claim(num_claims_);
    if (claimed == Claimed::kEnd) {
      claims_ended_ = true;
    } else if (claimed == Claimed::kNotNow) {
      num_not_now_.Add(1);
    } else {
      auto numbered = std::make_unique<NumberedPiece>(num_claims_, &alive_, &never_fetched_);
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
    EXPECT_EQ(running.claimed, running.is_fetched ? Claimed::kFetch : Claimed::kRun) << running.number;
    EXPECT_FALSE(running.is_run || running.is_done) << running.number << " comes again";
    running.is_run = true;
    BeginCall();
    num_runs_.Add(1);
    const Outcome outcome = run(running.number);
    running.is_done = outcome == Outcome::kDone;
    EndCall();
    return outcome;
  }

  bool IsShort(const OrderedWorkers::Piece& piece) const override {
    return is_short(static_cast<const NumberedPiece&>(piece).number);
  }
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    const auto& done = static_cast<const NumberedPiece&>(piece);
    EXPECT_TRUE(done.is_done) << done.number;
    return bytes(done.number);
  }

  // Called under the workers' lock. A thread that is counted as asleep is waiting, unless it has just been woken.
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
    EXPECT_LE(threads_started_, most_calls());
    return std::shared_ptr<std::thread>(new std::thread([this, loop = std::move(loop)] {
                                          loop();
                                          threads_ended_.Add(1);
                                        }),
                                        [](std::thread* thread) {
                                          thread->join();
                                          delete thread;
                                        });
  }

  void BeginCall() {
    EXPECT_LE(calls_.Add(1), std::max(1, most_calls())) << "a call too many";
    if (!is_consumer()) return;
    consumer_calls_.Add(1);
    EXPECT_TRUE(options_.consumer_helps || options_.max_calls == 0) << "a call in the consumer's thread";
  }

  void EndCall() { calls_.Add(-1); }

  const Options options_;
  const int num_pieces_;
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
  // Not atomic, because only calls that must not overlap use them.
  bool claims_ended_ = false;
  int last_fetched_ = -1;
  std::vector<int> never_fetched_;
  std::unique_ptr<OrderedWorkers> workers_;
};

// Aborts a test that hangs, because most bugs in the workers are deadlocks.
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
    // The system clock, because older sanitizers do not support waits with other clocks.
    const auto end = std::chrono::system_clock::now() + kLimit;
    if (over_.wait_until(lock, end, [this] { return is_over_; })) return;
    const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "%s.%s hangs: a wake-up is lost\n", test->test_suite_name(), test->name());
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

inline Options MakeOptions(int max_calls, bool helps, bool in_order) {
  Options options;
  options.max_calls = max_calls;
  options.consumer_helps = helps;
  options.in_order = in_order;
  return options;
}

inline std::vector<int> UpTo(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// All kinds of workers, by max_calls, whether the consumer helps, and whether results are in order.
class AllWorkersTest : public testing::TestWithParam<std::tuple<int, bool, bool>> {
 protected:
  Options options() const {
    return MakeOptions(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()));
  }

  void ExpectResults(std::vector<int> results, const std::vector<int>& expected) const {
    if (!options().in_order) std::sort(results.begin(), results.end());
    EXPECT_EQ(results, expected);
  }

 private:
  Watchdog watchdog_;
};

inline auto AllKinds() { return testing::Combine(testing::Values(0, 1, 2, 4, 16), testing::Bool(), testing::Bool()); }

inline std::string NameOfKind(const testing::TestParamInfo<AllWorkersTest::ParamType>& info) {
  return std::to_string(std::get<0>(info.param)) + "Calls" + (std::get<1>(info.param) ? "Helped" : "") +
         (std::get<2>(info.param) ? "InOrder" : "AsTheyCome");
}

}  // namespace refurbish_tf
