// Threads that each claim a piece of work and do it, whatever the work is. The
// consumer gets the results in order, or as they are done.
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

// A piece of work goes through three steps. First it is claimed, one at a time,
// which decides its position among the results. If it needs the input, it is
// then fetched, one at a time, in the order of the claims. Finally it is run,
// many at once. So a slow source does not hold up pieces that need no input.
//
// A thread sleeps only when enough results are ready or nothing can be claimed
// now, and is woken when half of the results are gone: waking a thread for each
// sample took half of the CPU time for 32x32 images. A thread is started only
// when all others are busy. While pieces are much shorter than a sleep, a
// thread claims and runs several with the lock taken once. The consumer sleeps
// only when its next result is not ready. While pieces take less than a few
// milliseconds, it first does one itself, in place of the last thread. While
// claims find nothing to run, threads stay asleep and the consumer claims. A
// thread that finds the input busy with a short fetch, or the lock taken, spins
// for some microseconds.
class OrderedWorkers {
 public:
  struct Piece {
    virtual ~Piece() = default;
  };

  enum class Claimed {
    kDone,    // A piece that needs no work.
    kRun,     // One to be run.
    kFetch,   // One to be fetched.
    kNotNow,  // None until a piece under way is done; there must be one.
    kEnd,     // No more pieces.
  };
  enum class Outcome {
    kRun,      // After a fetch: to be run.
    kDone,     // Ready for the consumer.
    kDropped,  // It has no result.
  };

  class Work {
   public:
    virtual ~Work() = default;
    // Claims the next piece, without waiting. `*piece` may hold an earlier
    // piece for reuse. Never called by two threads at once.
    virtual Claimed Claim(std::unique_ptr<Piece>* piece) = 0;
    // May wait. Never called by two threads at once.
    virtual Outcome Fetch(Piece* piece) = 0;
    virtual Outcome Run(Piece* piece) = 0;
    // The bytes that a piece holds once it has run.
    virtual int64_t Bytes(const Piece& piece) const = 0;
    // Whether a claimed piece certainly takes only microseconds: it waits for
    // nothing and calls no user code. A thread does several in a row.
    virtual bool IsShort(const Piece&) const { return false; }
    // A thread, or the consumer, is about to sleep (`begins`), or has woken.
    virtual void Sleeps(bool /*begins*/) {}
  };

  struct Options : RoomAhead::Limits {
    // Whether results come in the order of the claims.
    bool in_order = true;
    // Whether the consumer may do a piece itself before it sleeps.
    bool consumer_helps = true;
    // Sleeping threads are woken when less than one part in `wake_part` of each
    // limit is in use.
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

  // kStuck: `Claim` has returned kNotNow with nothing under way, so no result
  // would ever come.
  enum class Next { kPiece, kEnd, kCancelled, kStuck };
  // The error for kCancelled and kStuck.
  static absl::Status ErrorOf(Next next);
  // The next result. For one thread at a time. `*piece` may hold an earlier
  // piece for reuse. `*waited_nanos` is how long the result was not ready.
  Next GetNext(std::unique_ptr<Piece>* piece, int64_t* waited_nanos)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes further results that are ready now, and returns how many. Locks once,
  // not once per result as `GetNext` does.
  size_t TakeReady(absl::Span<std::unique_ptr<Piece>> pieces)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `GetNext` would not wait. Lets a thread begin if nothing is under
  // way. For the thread that calls `GetNext`, if the consumer does not help.
  bool IsNextReady() ABSL_LOCKS_EXCLUDED(mu_);

  // For a checkpoint: waits until fetches and runs under way are done, and
  // claims nothing until `Resume`. Pieces that are claimed but not fetched yet
  // are dropped; it must be possible to claim them again. `*ready` are the next
  // results, in order; this object still owns them. False if cancelled. For the
  // thread that calls `GetNext`.
  bool Settle(std::vector<const Piece*>* ready) ABSL_LOCKS_EXCLUDED(mu_);
  void Resume() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on no call begins and no result is returned. Does not wait.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kToFetch, kToRun, kUnderWay, kDone, kDropped };
  // While it is under way, its thread alone uses all but the state.
  struct Entry {
    std::unique_ptr<Piece> piece;
    State state;
    Outcome outcome;
    int64_t bytes;
  };

  using Lock = std::unique_lock<std::mutex>;

  // Pieces that a thread fetches or runs without taking the lock in between.
  using Group = absl::InlinedVector<Entry*, PieceTimes::kMostAtOnce>;

  // Does one step that can be done now, and releases the lock during it. False
  // if there is none.
  bool Step(Lock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ClaimNext(Lock& lock, bool may_run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A piece to run goes to `group` or, if that is null, to other threads.
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
  // Removes dropped entries from the front of the ring.
  void ForgetDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The position in the ring of the next result; the ring's size if none is
  // ready.
  size_t FindReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return FindReady() < ring_.size();
  }
  bool TakeReady(std::unique_ptr<Piece>* piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether any piece was claimed and is not done yet.
  bool IsUnderWay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a claim has room if all limits are divided by `part`.
  bool HasRoom(int part) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return room_.Has(ring_.size(), to_fetch_.size(), part);
  }
  bool MayClaim() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !settling_ && !claims_ended_ && !claims_blocked_ && HasRoom(1);
  }
  // Whether a thread has something to do.
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return claims_ended_ && to_fetch_.empty() && to_run_.empty();
  }
  void SleepAsConsumer(Lock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes threads if there is room with all limits divided by `wake_part`.
  void WakeIfRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts a thread if there is work for it, none sleeps, and the limit allows
  // it.
  void AddThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Work* const work_;
  const StartThread start_thread_;

  std::mutex mu_;
  std::condition_variable wake_threads_;
  std::condition_variable wake_consumer_;
  // In the order of the claims.
  std::deque<std::unique_ptr<Entry>> ring_ ABSL_GUARDED_BY(mu_);
  // Entries and pieces for reuse. Freeing what another thread has allocated,
  // with the lock held, would make all threads wait for malloc.
  std::vector<std::unique_ptr<Entry>> spares_ ABSL_GUARDED_BY(mu_);
  // Entries of the ring that are still to be fetched, or run, in order.
  std::deque<Entry*> to_fetch_ ABSL_GUARDED_BY(mu_);
  std::deque<Entry*> to_run_ ABSL_GUARDED_BY(mu_);
  // Written with the lock held, but also read without it.
  std::atomic<bool> fetching_{false};
  PieceTimes times_ ABSL_GUARDED_BY(mu_);
  RoomAhead room_ ABSL_GUARDED_BY(mu_);
  // Claims in a row that found nothing to run.
  size_t idle_claims_ ABSL_GUARDED_BY(mu_) = 0;
  bool claims_blocked_ ABSL_GUARDED_BY(mu_) = false;
  bool claims_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
  bool settling_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool consumer_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the consumer does pieces in place of the last thread.
  bool consumer_helps_ ABSL_GUARDED_BY(mu_);
  int num_sleeping_ ABSL_GUARDED_BY(mu_) = 0;
  // Threads that were started but are not at work yet.
  int num_starting_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<void>> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
