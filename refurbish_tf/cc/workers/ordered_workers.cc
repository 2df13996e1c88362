#include "refurbish_tf/cc/workers/ordered_workers.h"

#include <algorithm>
#include <utility>

namespace refurbish_tf {
namespace {

// This many pauses take less time than putting a thread to sleep and waking it.
constexpr int kSpins = 256;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // Most CPUs ignore `yield`.
#endif
}

// Spins before it sleeps, because the lock is held only for microseconds. Tries
// less and less often: a try takes the lock's cache line from its owner.
void Acquire(std::unique_lock<std::mutex>& lock) {
  for (int spins = 1; spins < kSpins; spins *= 2) {
    if (lock.try_lock()) return;
    for (int i = 0; i < spins; ++i) Pause();
  }
  lock.lock();
}

}  // namespace

using Clock = std::chrono::steady_clock;

OrderedWorkers::OrderedWorkers(const Options& options, Work* work,
                               StartThread start_thread)
    : options_(options),
      work_(work),
      start_thread_(std::move(start_thread)),
      calls_read_(Clock::now()),
      max_calls_(options.max_calls),
      room_(options),
      consumer_helps_(options.max_calls == 0 ||
                      (options.consumer_helps && options.max_calls > 1)) {}

OrderedWorkers::~OrderedWorkers() {
  Cancel();
  std::vector<std::shared_ptr<void>> threads;
  {
    Lock lock(mu_);
    threads.swap(threads_);
  }
  threads.clear();
}

void OrderedWorkers::Cancel() {
  Lock lock(mu_);
  cancelled_ = true;
  wake_threads_.notify_all();
  wake_consumer_.notify_all();
}

bool OrderedWorkers::Settle(std::vector<const Piece*>* ready) {
  Lock lock(mu_);
  settling_ = true;
  to_fetch_.clear();
  ring_.erase(std::remove_if(ring_.begin(), ring_.end(),
                             [](const auto& entry) {
                               return entry->state == State::kToFetch;
                             }),
              ring_.end());
  ForgetDropped();
  const auto is_settled = [](const auto& entry) {
    return entry->state == State::kDone || entry->state == State::kDropped;
  };
  while (!cancelled_ && !std::all_of(ring_.begin(), ring_.end(), is_settled)) {
    SleepAsConsumer(lock);
  }
  for (const auto& entry : ring_) {
    if (entry->state == State::kDone) ready->push_back(entry->piece.get());
  }
  return !cancelled_;
}

OrderedWorkers::Next OrderedWorkers::GetNext(std::unique_ptr<Piece>* piece,
                                             int64_t* waited_nanos) {
  *waited_nanos = 0;
  Clock::time_point began;
  bool waited = false;
  const auto wait_begins = [&] {
    if (!waited) began = Clock::now();
    waited = true;
  };
  Lock lock(mu_, std::defer_lock);
  Acquire(lock);
  while (!cancelled_) {
    if (TakeReady(piece)) {
      WakeIfRoom();
      if (waited) {
        *waited_nanos = std::chrono::nanoseconds(Clock::now() - began).count();
      }
      return Next::kPiece;
    }
    if (ring_.empty() && claims_ended_) {
      return stuck_ ? Next::kStuck : Next::kEnd;
    }
    // Nothing is under way. The next piece may need no work, so claim it here.
    if (ring_.empty() && !claims_blocked_) {
      const Claimed claimed = work_->Claim(piece);
      if (claimed == Claimed::kDone) {
        ++idle_claims_;
        return Next::kPiece;
      }
      wait_begins();
      Group group;
      Accept(claimed, std::move(*piece), consumer_helps_ ? &group : nullptr);
      if (!group.empty()) Run(lock, group);
      continue;
    }
    // Pieces under way also take room, so threads may have gone to sleep
    // although no result is ready.
    if (!waited && MayWake() && HasWork()) wake_threads_.notify_all();
    wait_begins();
    if (consumer_helps_ && Step(lock)) {
      if (max_calls_ > 0 && times_.are_long(max_calls_)) {
        consumer_helps_ = false;
        AddThread();
      }
      continue;
    }
    if (!consumer_helps_ && idle_claims_ >= options_.max_pieces && MayClaim()) {
      ClaimNext(lock, /*may_run=*/false);
      continue;
    }
    if (cancelled_ || IsReady() || ring_.empty()) continue;
    SleepAsConsumer(lock);
  }
  return Next::kCancelled;
}

absl::Status OrderedWorkers::ErrorOf(Next next) {
  if (next == Next::kCancelled) {
    return absl::CancelledError("Iteration was cancelled.");
  }
  return absl::InternalError(
      "The next piece of work waits for one that is under way, but none is. "
      "This is a bug in refurbish_tf.");
}

bool OrderedWorkers::TakeReady(std::unique_ptr<Piece>* piece) {
  const size_t ready = FindReady();
  if (ready == ring_.size()) return false;
  waits_long_ = false;
  std::unique_ptr<Entry> entry = std::move(ring_[ready]);
  ring_.erase(ring_.begin() + ready);
  room_.Remove(entry->bytes);
  piece->swap(entry->piece);
  spares_.push_back(std::move(entry));
  ForgetDropped();
  return true;
}

size_t OrderedWorkers::TakeReady(absl::Span<std::unique_ptr<Piece>> pieces) {
  Lock lock(mu_, std::defer_lock);
  Acquire(lock);
  size_t taken = 0;
  while (!cancelled_ && taken < pieces.size() && TakeReady(&pieces[taken])) {
    ++taken;
  }
  if (taken > 0) WakeIfRoom();
  return taken;
}

void OrderedWorkers::SleepAsConsumer(Lock& lock) {
  consumer_sleeps_ = true;
  if (IsHeldUp()) AddThread();
  if (IsHeldUp()) wake_threads_.notify_all();
  work_->Sleeps(true);
  if (waits_long_ || !options_.in_order || options_.spare == nullptr) {
    wake_consumer_.wait(lock);
  } else {
    // The thread sanitizer does not know waits with the steady clock.
    const auto end = std::chrono::system_clock::now() + PieceTimes::kLongPiece;
    waits_long_ =
        wake_consumer_.wait_until(lock, end) == std::cv_status::timeout;
  }
  work_->Sleeps(false);
  consumer_sleeps_ = false;
}

size_t OrderedWorkers::FindReady() const {
  if (room_.num_ready() == 0) return ring_.size();
  if (options_.in_order) {
    return ring_.front()->state == State::kDone ? 0 : ring_.size();
  }
  const auto done = std::find_if(
      ring_.begin(), ring_.end(),
      [](const auto& entry) { return entry->state == State::kDone; });
  return done - ring_.begin();
}

bool OrderedWorkers::IsUnderWay() const {
  return std::any_of(ring_.begin(), ring_.end(), [](const auto& entry) {
    return entry->state != State::kDone && entry->state != State::kDropped;
  });
}

void OrderedWorkers::AddThread() {
  if (num_sleeping_ > 0 || num_starting_ > 0 ||
      static_cast<int>(threads_.size()) >= MostThreads() || !HasWork()) {
    return;
  }
  ++num_starting_;
  threads_.push_back(start_thread_([this] { Loop(); }));
}

void OrderedWorkers::Loop() {
  Lock lock(mu_);
  --num_starting_;
  while (!cancelled_ && !Ended()) {
    if (ThreadHasWork() && Step(lock)) continue;
    if (cancelled_ || Ended() || ThreadHasWork()) continue;
    ++num_sleeping_;
    work_->Sleeps(true);
    wake_threads_.wait(lock);
    work_->Sleeps(false);
    --num_sleeping_;
  }
}

bool OrderedWorkers::Step(Lock& lock) {
  if (cancelled_) return false;
  if (!to_run_.empty()) {
    Group group;
    TakeFront(&to_run_, &group);
    Run(lock, group);
    return true;
  }
  if (!fetching_ && !to_fetch_.empty()) {
    FetchAndRun(lock);
    return true;
  }
  if (!MayClaim()) return false;
  if (!to_fetch_.empty() && times_.short_fetches()) {
    // The fetch under way is short, so wait for its end and do the next one.
    // Otherwise each thread would claim a piece, leave its short fetch to
    // others, and be woken for it.
    lock.unlock();
    for (int i = 0; i < kSpins && fetching_; ++i) Pause();
    Acquire(lock);
    if (cancelled_ || !fetching_ || !MayClaim()) return true;
  }
  return ClaimNext(lock, /*may_run=*/true);
}

bool OrderedWorkers::ClaimNext(Lock& lock, bool may_run) {
  Group group;
  size_t found = 0;
  bool go_on = may_run;
  do {
    std::unique_ptr<Piece> piece;
    if (!spares_.empty()) piece = std::move(spares_.back()->piece);
    const Claimed claimed = work_->Claim(&piece);
    go_on = go_on && (piece == nullptr || work_->IsShort(*piece));
    // A piece that may take long is left to other threads, unless it is the
    // first that this thread has claimed.
    const bool is_own = may_run && (go_on || group.empty());
    if (!Accept(claimed, std::move(piece), is_own ? &group : nullptr)) break;
  } while (++found < times_.at_once() && go_on && MayClaim());
  if (!group.empty()) {
    Run(lock, group);
  } else if (may_run && !fetching_ && !to_fetch_.empty()) {
    FetchAndRun(lock);
  }
  return found > 0;
}

bool OrderedWorkers::Accept(Claimed claimed, std::unique_ptr<Piece> piece,
                            Group* group) {
  // Waiting with nothing under way would never end.
  stuck_ = claimed == Claimed::kNotNow && !IsUnderWay();
  if (claimed == Claimed::kEnd || stuck_) {
    claims_ended_ = true;
    // Wakes the threads so that they can end.
    if (Ended()) wake_threads_.notify_all();
    if (consumer_sleeps_) wake_consumer_.notify_one();
    return true;
  }
  if (claimed == Claimed::kNotNow) {
    claims_blocked_ = true;
    return false;
  }
  if (spares_.empty()) {
    ring_.push_back(std::make_unique<Entry>());
  } else {
    ring_.push_back(std::move(spares_.back()));
    spares_.pop_back();
  }
  Entry* const entry = ring_.back().get();
  entry->piece = std::move(piece);
  if (claimed == Claimed::kDone) {
    ++idle_claims_;
    entry->outcome = Outcome::kDone;
    entry->bytes = work_->Bytes(*entry->piece);
    Complete(entry);
    return true;
  }
  if (idle_claims_ >= options_.max_pieces) wake_threads_.notify_all();
  idle_claims_ = 0;
  if (claimed == Claimed::kRun) {
    entry->state = State::kToRun;
    if (group != nullptr) {
      group->push_back(entry);
      return true;
    }
    to_run_.push_back(entry);
  } else {
    entry->state = State::kToFetch;
    to_fetch_.push_back(entry);
  }
  if (group == nullptr) {
    AddThread();
    wake_threads_.notify_one();
  }
  return true;
}

void OrderedWorkers::TakeFront(std::deque<Entry*>* queue, Group* group) {
  bool go_on = true;
  while (go_on && !queue->empty() && group->size() < times_.at_once()) {
    go_on = work_->IsShort(*queue->front()->piece);
    if (!go_on && !group->empty()) break;
    queue->front()->state = State::kUnderWay;
    group->push_back(queue->front());
    queue->pop_front();
  }
}

PieceTimes::Duration OrderedWorkers::DoEach(Lock& lock, const Group& group,
                                            Outcome (Work::*step)(Piece*)) {
  AddThread();
  lock.unlock();
  const Clock::time_point began = Clock::now();
  for (Entry* entry : group) {
    entry->outcome = (work_->*step)(entry->piece.get());
    if (entry->outcome == Outcome::kDone) {
      entry->bytes = work_->Bytes(*entry->piece);
    }
  }
  const Clock::time_point ended = Clock::now();
  const int calls = ReadCalls(ended);
  Acquire(lock);
  if (calls > 0) SetCalls(calls);
  return ended - began;
}

int OrderedWorkers::ReadCalls(Clock::time_point now) {
  Clock::time_point last = calls_read_.load(std::memory_order_relaxed);
  if (!options_.calls_now || now < last + options_.calls_read_every ||
      !calls_read_.compare_exchange_strong(last, now)) {
    return 0;
  }
  return options_.calls_now();
}

void OrderedWorkers::SetCalls(int calls) {
  if (calls == max_calls_ || cancelled_) return;
  max_calls_ = calls;
  // The only thread works while the consumer trains.
  if (calls == 1) consumer_helps_ = false;
  AddThread();
  wake_threads_.notify_all();
}

void OrderedWorkers::FetchAndRun(Lock& lock) {
  Group group, to_run;
  TakeFront(&to_fetch_, &group);
  fetching_ = true;
  times_.Fetched(group.size(), DoEach(lock, group, &Work::Fetch));
  fetching_ = false;
  // Another thread should fetch while this one runs its pieces.
  if (!to_fetch_.empty()) {
    if (MayWake()) {
      wake_threads_.notify_one();
    } else if (consumer_sleeps_ && consumer_helps_) {
      wake_consumer_.notify_one();
    }
  }
  for (Entry* entry : group) {
    if (entry->outcome == Outcome::kRun) {
      to_run.push_back(entry);
    } else {
      Complete(entry);
    }
  }
  if (!to_run.empty()) Run(lock, to_run);
}

void OrderedWorkers::Run(Lock& lock, const Group& group) {
  for (Entry* entry : group) entry->state = State::kUnderWay;
  if (cancelled_) return;
  times_.Ran(group.size(), DoEach(lock, group, &Work::Run));
  for (Entry* entry : group) Complete(entry);
}

void OrderedWorkers::Complete(Entry* entry) {
  if (entry->outcome == Outcome::kDropped) {
    entry->state = State::kDropped;
    if (!options_.in_order) {
      ring_.erase(std::find_if(
          ring_.begin(), ring_.end(),
          [entry](const auto& other) { return other.get() == entry; }));
    }
    ForgetDropped();
    WakeIfRoom();
  } else {
    entry->state = State::kDone;
    if (room_.Add(entry->bytes)) wake_threads_.notify_all();
    // There was no room for a thread, but there is now.
    if (IsHeldUp() && HasWork()) wake_threads_.notify_one();
  }
  const bool were_blocked = std::exchange(claims_blocked_, false);
  if (were_blocked) wake_threads_.notify_all();
  if (consumer_sleeps_ &&
      (were_blocked || settling_ || IsReady() || ring_.empty())) {
    wake_consumer_.notify_one();
  }
}

}  // namespace refurbish_tf
