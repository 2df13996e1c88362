// Threads that each claim a piece of work and do it, whatever the work is. The
// consumer gets the results in order, or as they become ready.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/workers/pace.h"

namespace refurbish_tf {

// A piece of work is claimed, which decides its position among the results.
// Then it is fetched, if it needs the input. Finally, it is run. Only one
// thread at a time claims, and only one fetches, in the order of the claims;
// many run. So a slow source does not hold up pieces that need no input.
//
// Waking a thread for each sample took half of the CPU time for 32x32 images,
// so threads seldom sleep or wake. A thread sleeps only when enough results are
// ready or nothing can be claimed, and wakes when half of the results are gone.
// A thread is started only when all others are busy. A thread takes the lock
// once to claim several short pieces, and runs them together. The consumer
// sleeps only when its next result is not ready. While pieces take less than a
// few milliseconds, the consumer does pieces itself before it sleeps, and
// replaces one thread. While claims find nothing to run, threads sleep and the
// consumer claims. If the lock or the input is busy for a short time, a thread
// spins for some microseconds.
//
// There is room for some results ahead of the consumer. While it waits for a
// slow piece, threads take spare room to go on with those after it, and keep
// it: there may be more slow pieces.
class OrderedWorkers {
 public:
  struct Piece {
    virtual ~Piece() = default;
  };

  enum class Claimed {
    kDone,    // A piece that needs no work.
    kRun,     // A piece to be run.
    kFetch,   // A piece to be fetched.
    kNotNow,  // Nothing can be claimed until a piece under way is done.
    kEnd,     // No more pieces.
  };
  enum class Outcome {
    kRun,      // After a fetch: to be run.
    kDone,     // Ready for the consumer.
    kDropped,  // It has no result.
  };

  class Work {
   public:
    using Claimed = OrderedWorkers::Claimed;
    using Outcome = OrderedWorkers::Outcome;

    virtual ~Work() = default;
    // Claims the next piece, without waiting. `*piece` may hold an earlier
    // piece for reuse. Never called by two threads at once.
    virtual Claimed Claim(std::unique_ptr<Piece>* piece) = 0;
    // May wait. Never called by two threads at once.
    virtual Outcome Fetch(Piece* piece) = 0;
    virtual Outcome Run(Piece* piece) = 0;
    // The bytes that a piece holds once it is done.
    virtual int64_t Bytes(const Piece& piece) const = 0;
    // Whether a claimed piece certainly takes only microseconds: it waits for
    // nothing and calls no user code. A thread may do several in a row.
    virtual bool IsShort(const Piece&) const { return false; }
    // Called when a thread, or the consumer, is about to sleep (`begins`), and
    // again when it has woken.
    virtual void Sleeps(bool /*begins*/) {}
  };

  struct Options : RoomAhead::Limits {
    // Whether results come in the order of the claims.
    bool in_order = true;
    // If given, `max_calls` is only the first number of calls. Called this
    // often, without the lock.
    std::function<int()> calls_now;
    std::chrono::milliseconds calls_read_every{1000};
    // Whether the consumer may do pieces itself before it sleeps.
    bool consumer_helps = true;
    // Sleeping threads are woken when less than 1 / `wake_part` of each limit
    // is in use.
    int wake_part = 2;
  };

  // Starts a thread. The destructor of the returned object joins it.
  using StartThread =
      std::function<std::shared_ptr<void>(std::function<void()>)>;

  // `work` must outlive this object.
  OrderedWorkers(const Options& options, Work* work, StartThread start_thread);
  // Cancels, and waits for the calls under way.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // kStuck: nothing can be claimed, and nothing is under way to change that.
  enum class Next { kPiece, kEnd, kCancelled, kStuck };
  // The error for kCancelled and kStuck.
  static absl::Status ErrorOf(Next next);
  // Gets the next result. For one thread at a time. `*piece` may hold an
  // earlier piece for reuse. `*waited_nanos`: how long the call waited until
  // the result was ready; 0 if it did not wait.
  Next GetNext(std::unique_ptr<Piece>* piece, int64_t* waited_nanos)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes further results that are ready now, and returns how many. Locks once,
  // not once per result as `GetNext` does.
  size_t TakeReady(absl::Span<std::unique_ptr<Piece>> pieces)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `GetNext` would return at once. If nothing is under way, claims a
  // piece for a thread to begin. Only for the thread that calls `GetNext`, if
  // the consumer does not help.
  bool IsNextReady() ABSL_LOCKS_EXCLUDED(mu_) {
    Lock lock(mu_);
    if (ring_.empty() && MayClaim()) ClaimNext(lock, /*may_run=*/false);
    return cancelled_ || IsReady() || (ring_.empty() && claims_ended_);
  }

  // For a checkpoint: waits until all fetches and runs under way are done, and
  // claims nothing until `Resume`. Drops pieces that are claimed but not
  // fetched yet, so it must be possible to claim them again. `*ready` gets the
  // next results, in order; this object still owns them. False if cancelled.
  // For the thread that calls `GetNext`.
  bool Settle(std::vector<const Piece*>* ready) ABSL_LOCKS_EXCLUDED(mu_);
  void Resume() ABSL_LOCKS_EXCLUDED(mu_) {
    Lock lock(mu_);
    settling_ = false;
    wake_threads_.notify_all();
  }

  // From now on no call of `Work` begins, and no result is returned.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kToFetch, kToRun, kUnderWay, kDone, kDropped };
  // While the piece is under way, only the thread that works on it uses the
  // fields other than `state`.
  struct Entry {
    std::unique_ptr<Piece> piece;
    State state;
    Outcome outcome;
    int64_t bytes;
  };

  using Lock = std::unique_lock<std::mutex>;

  // Pieces that a thread fetches or runs without taking the lock in between.
  using Group = absl::InlinedVector<Entry*, PieceTimes::kMostAtOnce>;

  // Claims, fetches or runs what can be done now; fetching and running release
  // the lock. Returns false if there is nothing to do.
  bool Step(Lock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ClaimNext(Lock& lock, bool may_run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds a claimed piece to the ring, and queues it if it needs work. If
  // `group` is not null, adds a piece to run to the group instead of a queue.
  // Returns false for kNotNow.
  bool Accept(Claimed claimed, std::unique_ptr<Piece> piece, Group* group)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeFront(std::deque<Entry*>* queue, Group* group)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FetchAndRun(Lock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(Lock& lock, const Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fetches or runs each piece of a group, with the lock released. Returns how
  // long that took.
  PieceTimes::Duration DoEach(Lock& lock, const Group& group,
                              Outcome (Work::*step)(Piece*))
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!ring_.empty() && ring_.front()->state == State::kDropped) {
      ring_.pop_front();
    }
  }
  // The next result's position in the ring; the ring's size if none is ready.
  size_t FindReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return FindReady() < ring_.size();
  }
  bool TakeReady(std::unique_ptr<Piece>* piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsUnderWay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether there is room for another piece with all limits divided by `part`.
  bool HasRoom(int part) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return room_.Has(ring_.size(), to_fetch_.size(), part);
  }
  // Whether the consumer has waited long for the first piece, and no more
  // pieces than calls are not ready.
  bool IsHeldUp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return consumer_sleeps_ && waits_long_ && !IsReady() &&
           ring_.size() <= room_.num_ready() + max_calls_;
  }
  bool MayClaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (settling_ || claims_ended_ || claims_blocked_) return false;
    return HasRoom(1) || (IsHeldUp() && room_.Extend(ring_.size()));
  }
  // How many threads may be awake.
  int MostThreads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return max_calls_ - consumer_helps_;
  }
  int NumAwake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<int>(threads_.size()) - num_sleeping_ - num_starting_;
  }
  // Whether a thread that is awake has work. If the number of calls has fallen,
  // some threads have none, and sleep.
  bool ThreadHasWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return NumAwake() <= MostThreads() && HasWork();
  }
  // Whether a thread sleeps that may work.
  bool MayWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return num_sleeping_ > 0 && NumAwake() < MostThreads();
  }
  bool HasWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !to_run_.empty() || (!to_fetch_.empty() && !fetching_) ||
           (idle_claims_ < options_.max_pieces && MayClaim());
  }
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return claims_ended_ && to_fetch_.empty() && to_run_.empty();
  }
  void SleepAsConsumer(Lock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes the threads if there is enough room: see `Options::wake_part`.
  void WakeIfRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (MayWake() && HasRoom(options_.wake_part) && HasWork()) {
      wake_threads_.notify_all();
    }
  }
  // Starts a thread if there is work for it, no other is asleep or starting,
  // and `max_calls_` allows it.
  void AddThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns what `calls_now` does, if it is time to call it, otherwise 0.
  int ReadCalls(std::chrono::steady_clock::time_point now)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetCalls(int calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Work* const work_;
  const StartThread start_thread_;

  std::mutex mu_;
  std::condition_variable wake_threads_;
  std::condition_variable wake_consumer_;
  // Claimed pieces that the consumer has not got yet, in the order of claims.
  std::deque<std::unique_ptr<Entry>> ring_ ABSL_GUARDED_BY(mu_);
  // Entries and pieces for reuse. Freeing another thread's memory while the
  // lock is held would make all threads wait for malloc.
  std::vector<std::unique_ptr<Entry>> spares_ ABSL_GUARDED_BY(mu_);
  // Entries of the ring that are still to be fetched, or run, in order.
  std::deque<Entry*> to_fetch_ ABSL_GUARDED_BY(mu_);
  std::deque<Entry*> to_run_ ABSL_GUARDED_BY(mu_);
  // Written with the lock held, but also read without it.
  std::atomic<bool> fetching_{false};
  std::atomic<std::chrono::steady_clock::time_point> calls_read_;
  int max_calls_ ABSL_GUARDED_BY(mu_);
  PieceTimes times_ ABSL_GUARDED_BY(mu_);
  RoomAhead room_ ABSL_GUARDED_BY(mu_);
  // How many claims in a row have returned kDone.
  size_t idle_claims_ ABSL_GUARDED_BY(mu_) = 0;
  bool claims_blocked_ ABSL_GUARDED_BY(mu_) = false;
  bool claims_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
  bool settling_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool consumer_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  // Whether it has waited for the time of a long piece, in order.
  bool waits_long_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the consumer does pieces in place of the last thread.
  bool consumer_helps_ ABSL_GUARDED_BY(mu_);
  int num_sleeping_ ABSL_GUARDED_BY(mu_) = 0;
  int num_starting_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<void>> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
