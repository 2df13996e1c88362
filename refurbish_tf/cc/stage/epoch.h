// An epoch under way. It alone decides whether a sample is fresh (prepared) or
// cached (found in the store), and knows what has been yielded.
//
// Identity: in epoch t, sample i is at generation g(i, t), which rises each
// time that the schedule evicts it (schedule.h). The seeds that `partial_fn`
// gets depend on the stage seed, i and g alone, and so does a cached sample, if
// `partial_fn` draws from these seeds. So the store is a memo: losing it costs
// time and never content. A sample in memory is used only if it has exactly the
// generation wanted, so iterators at different epochs do not disturb each
// other. Beginning an epoch removes nothing from the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/cooperation/shared/shared_use.h"
#include "refurbish_tf/cc/cooperation/shared/transit_order.h"
#include "refurbish_tf/cc/schedule/schedule.h"
#include "refurbish_tf/cc/stage/sample_states.h"
#include "refurbish_tf/cc/stage/saved_epoch.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"
#include "refurbish_tf/cc/store/transit/transit_ring.h"

namespace refurbish_tf {

// The counts of an epoch, which outlive it: `EpochStats` in stats.py.
struct EpochCounters : Counters {
  Count fresh{this, "fresh"};
  Count cached{this, "cached"};
  Count from_other_jobs{this, "from_other_jobs"};
  Count evicted{this, "evicted"};
  Count missing{this, "missing"};
  Count bytes{this, "bytes"};
  Count fresh_wait_nanos{this, "fresh_wait_nanos"};
  Count store_wait_nanos{this, "store_wait_nanos"};
};

// What comes at one place of the order.
struct Place {
  enum class From {
    kStore,    // `sample`, already taken from the store.
    kReading,  // To be read from a store on disk.
    kSource,   // To be read from the source, as its next one.
  };
  From from = From::kSource;
  // Empty for `kSource` on a stream, until it has been read.
  std::optional<uint32_t> index;
  Sample sample;
  WantedSample wanted;           // Of `kReading`.
  int64_t bytes_ahead = 0;       // As counted in `Epoch::bytes_ahead_`.
  bool from_other_jobs = false;  // Another process prepared it.
  bool missing = false;    // Prepared although the schedule expects it cached.
  bool new_input = false;  // The source is first read from its start again.
};

// The schedule plans which places are fresh (`Slot::fresh`); what the store
// holds decides (`Decide`), and `missing` counts the difference. The order is
// walked once. A place is decided at its turn, with up to seven others from a
// store in memory, or earlier, when the source asks ahead for what to prepare
// or a disk is read ahead.
// Deciding takes the sample from a store in memory at that moment, so that it
// cannot vanish. A sample on disk is read later, by the worker that comes to
// it, so that claims touch no file. What a source with random access (its own
// `map` or `prefetch`) has asked ahead is bounded in bytes: beyond that
// `Request` waits.
//
// A place whose sample is prepared takes the next sample from the source. A
// source with random access delivers them in the order of its requests, which
// is that of the claims, so the index is known from the claim on. A stream has
// its own order.
//
// Some samples are deferred to the end of the order: one that was in the store
// when the stream passed over it and is gone; on a shared store, one to keep
// that another job is preparing, as it is most likely in the store by then; one
// whose record on disk is gone or damaged. The source is read again for those
// that are still not stored.
//
// At a place whose sample is not kept, while other jobs are at work on the
// store, comes another one that is not kept, by the rule of `TransitOrder`.
// Each of them still comes once.
//
// In memory, a sample leaves the store at its last use: memory falls to
// N·(1 - 1/r) samples, and `map` may work in place.
//
// Thread-safe. Lock order: `mu_`, then that of `UsedGenerations`, then those of
// the store and its `ReadAhead`.
class Epoch {
 public:
  // `schedule` is empty while the number of samples is unknown: then every
  // sample is prepared, in the order in which they come. `owner` keeps alive
  // what `schedule` refers to, and is null if every sample is prepared.
  // `random_access`: whether the source has it. `ring`: what other jobs and
  // this one hand each other, or null. `number_begun`: `num_begun` when it
  // began. `alive` tells the stage that the epoch still exists, and what it
  // takes that grows with the number of samples. `shard`: which
  // samples of the whole source these are.
  Epoch(uint64_t number, uint64_t seed, const Shard& shard,
        std::optional<EpochSchedule> schedule,
        std::shared_ptr<const Schedule> owner, bool random_access,
        std::shared_ptr<SampleStore> store, std::shared_ptr<SharedUse> shared,
        const TransitRing* ring, uint64_t number_begun,
        std::shared_ptr<EpochCounters> counters,
        std::shared_ptr<std::atomic<int64_t>> alive);

  // Continues where a checkpoint was saved. To be called before anything else.
  // What was not yielded keeps its place in the order if that is still to come.
  // A stream may have yielded samples before their places: samples whose places
  // have passed come there.
  void Resume(const SavedEpoch& saved) ABSL_LOCKS_EXCLUDED(mu_);
  bool resumed() const { return resumed_; }

  // For a checkpoint, in place of what the stage has saved of its next epoch.
  void Save(SavedEpoch* saved) ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t number() const { return number_; }
  uint64_t seed() const { return seed_; }
  // What number a sample has for the functions' seeds.
  uint64_t InWhole(uint32_t index) const { return shard_.InWhole(index); }
  // And in the store.
  const Shard& keys() const { return keys_; }
  SampleStore& sample_store() const { return *store_; }
  EpochCounters& counters() { return *counters_; }
  // False if the number of samples was unknown when the epoch began.
  bool random_access() const { return random_access_; }
  // The generation that the sample has when it is prepared in this epoch.
  Generation PreparedGeneration(uint32_t index) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether to keep the prepared sample: to use it again, or for other jobs.
  bool ToKeep(uint32_t index) const;
  // Whether to put it into the ring, for other jobs, as it is not kept.
  bool ToShare(uint32_t index) const;
  // Whether the schedule was known when the epoch began. Otherwise every sample
  // is prepared.
  bool scheduled() const { return owner_ != nullptr; }
  // Whether the number of samples was known when the epoch began.
  bool num_samples_known() const { return schedule_.has_value(); }
  // How many samples the source has, if known.
  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);

  // The order. ----------------------------------------------------------------

  enum class Step {
    kPlace,
    kNotNow,  // None until a read that is under way has ended.
    kEnd,
  };
  // For one thread at a time. Does not wait.
  Step Next(Place* place) ABSL_LOCKS_EXCLUDED(mu_);

  // Begins the reads that were decided on since the last call. It opens files
  // and reads what is in the page cache, so no lock may be held.
  void StartReads();
  // The same, then waits for the read of this place. False if the sample was
  // not there: it is deferred.
  bool Read(Place* place) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the sample at a place was handed out, or its error; `index` is
  // empty if an error belongs to no sample. Returns whether it is known to be
  // the last.
  bool HandedOut(std::optional<uint32_t> index) ABSL_LOCKS_EXCLUDED(mu_);

  // The source. ---------------------------------------------------------------

  // The source will be read from its start again, for what is missing at the
  // end of the order.
  void ReadAnew() ABSL_LOCKS_EXCLUDED(mu_);

  // Random access: the index of the `n`-th sample to prepare; OutOfRange if
  // there are fewer; NotFound if it was read, as then whoever asks is another
  // one of several sources, as in `concatenate`, which each count from 0. Waits
  // while too much is taken ahead. `input`: what `NewInput` has returned; fails
  // if it was called again since.
  absl::StatusOr<size_t> Request(size_t n, uint64_t input)
      ABSL_LOCKS_EXCLUDED(mu_);
  // So many were read. To be called now and then.
  void NoteRead(size_t num_read) ABSL_LOCKS_EXCLUDED(mu_);
  // Called before an input is made, and before it is destroyed, as a thread of
  // it may wait in `Request`.
  uint64_t NewInput() ABSL_LOCKS_EXCLUDED(mu_);

  // Stream: what to do at its current position.
  struct Advance {
    int64_t pass_over = 0;  // This many elements are not wanted,
    bool wanted = false;    // the one after them is, ...
    uint32_t index = 0;     // ... and has this index,
    bool at_end = false;    // or the stream should end after them.
  };
  Advance AdvanceStream() ABSL_LOCKS_EXCLUDED(mu_);
  // Stream of unknown length: it has ended.
  void StreamEnded() ABSL_LOCKS_EXCLUDED(mu_);
  // Likewise, and its last element has left the shuffle buffer.
  void ArrivalsEnded() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on `Request` fails instead of waiting.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What the schedule alone says.
  Generation GenerationOf(uint32_t index) const {
    return schedule_.has_value() ? schedule_->Generation(index) : number_;
  }
  GenerationRange Wanted(uint32_t index) const;
  // Whether only what the schedule wants may be used, and no newer generation.
  bool Exact() const {
    return shared_ == nullptr || number_ < shared_->exact_before;
  }
  bool Reused(uint32_t index) const {
    return schedule_.has_value() && schedule_->Reused(index);
  }

  // The walk of the order, which fills `decided_`. ----------------------------

  bool OrderIsWalked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_position_ >= num_places_;
  }
  // Decides as many of the next places as it takes to have one, or to keep the
  // disk busy.
  void DecideMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DecideFromMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides the next place of the order.
  void DecideNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The place of its sample. Adds no place if the sample is deferred.
  void DecidePlace(const Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A place of any of the samples that are not kept, while there is a ring.
  void DecideUnkept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asked once for several decisions, as it takes a system call for each job.
  void NoteOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DecideFromRing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlace(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddFromSource(uint32_t index, bool missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Decisions. ----------------------------------------------------------------

  // Why a sample is decided on.
  enum class Occasion {
    kPlace,     // Its place has come. It is kept, or there is no ring.
    kInRing,    // A place of samples that are not kept has come, and the ring
                // has it, in the generation of `place->wanted`.
    kNextOwn,   // Such a place has come, and it is the next of the own order.
    kLastOwn,   // The same, and others prepare all that are left, or too many
                // claims were refused (transit_order.h).
    kStream,    // The stream has come to it.
    kGone,      // It was found, and is gone now that it is to be read.
    kEnd,       // The order is walked, and it was deferred.
    kReadAnew,  // The source is read again for all that are still deferred.
  };
  // Where a sample comes from is decided here alone. Returns its new state.
  // `place` is filled in if the store has the sample.
  SampleState Decide(Occasion occasion, uint32_t index, Place* place = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Whether it is of those that may be in transit.
  bool Unkept(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return transit_.has_value() && !schedule_->Kept(index);
  }
  bool NeedsUnkept(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Unkept(index) && states_[index] == SampleState::kOpen;
  }
  // Whether the stream has passed over it, or has yielded it.
  bool Passed(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !random_access_ && index < stream_position_;
  }
  bool IsStored(uint32_t index) {
    return store_->store().Contains(keys_.InWhole(index), Wanted(index));
  }
  // Takes the sample from the store, or notes that it is to be read.
  bool FindStored(uint32_t index, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes a place to be read.
  void WillRead(uint32_t index, GenerationRange wanted,
                std::optional<uint64_t> position, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WantReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Claims the sample's preparation and decides its generation. False if
  // another job is preparing it; never with `also_claimed`.
  bool Ask(uint32_t index, bool also_claimed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AskUnkept(uint32_t index, bool also_claimed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteGeneration(uint32_t index, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::StatusOr<size_t> DecideRequest(size_t n, uint64_t input)
      ABSL_LOCKS_EXCLUDED(mu_);

  const uint64_t number_;
  const uint64_t seed_;
  const Shard shard_;
  // What number a sample has in the store.
  const Shard keys_;
  const std::shared_ptr<const Schedule> owner_;
  std::optional<EpochSchedule> schedule_;  // Set before the epoch is used.
  const bool random_access_;
  const std::shared_ptr<SampleStore> store_;
  const std::shared_ptr<SharedUse> shared_;  // Null on a store of our own.
  const TransitRing* const ring_;
  const uint64_t number_begun_;
  const std::shared_ptr<EpochCounters> counters_;
  const std::shared_ptr<std::atomic<int64_t>> alive_;
  // Null if reading takes no time: for a store in memory.
  const std::unique_ptr<CacheStore<Sample>::ReadAhead> read_ahead_;

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t input_ ABSL_GUARDED_BY(mu_) = 0;

  // What was handed out, also before the epoch was resumed.
  YieldedSamples yielded_ ABSL_GUARDED_BY(mu_);
  uint32_t num_handed_out_ ABSL_GUARDED_BY(mu_) = 0;

  // The order. How many places it has: while that is unknown, more than ever
  // come.
  uint32_t num_places_ ABSL_GUARDED_BY(mu_) = kMaxSamples;
  // Every place before this is decided.
  uint32_t next_position_ ABSL_GUARDED_BY(mu_) = 0;
  bool resumed_ = false;  // Set before the epoch is used.

  // Written by `Decide`, and by `Resume` for what was yielded before.
  SampleStates states_ ABSL_GUARDED_BY(mu_);
  // Which samples are prepared with another generation than the schedule's.
  std::unordered_map<uint32_t, Generation> other_generations_
      ABSL_GUARDED_BY(mu_);

  // Places that are decided and not yet claimed, by `Next` or ahead by
  // `Request`; how many of them are to be prepared; and the bytes of samples
  // that `Request` took from the store ahead.
  std::deque<Place> decided_ ABSL_GUARDED_BY(mu_);
  size_t num_to_prepare_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ahead_ ABSL_GUARDED_BY(mu_) = 0;
  // Reads to be noted together, and how many have not ended.
  std::vector<WantedSample> to_read_ ABSL_GUARDED_BY(mu_);
  int64_t num_reading_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_transit_reading_ ABSL_GUARDED_BY(mu_) = 0;  // Of these.
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 0;

  // Samples that are not kept. Any of them may come at any of their places.
  // Null if every sample is kept, or none can be handed to others.
  std::optional<TransitOrder> transit_ ABSL_GUARDED_BY(mu_);
  // Whether other jobs were at work when it was last asked.
  bool with_others_ ABSL_GUARDED_BY(mu_) = false;
  // There are always as many open ones as places for them:
  //   open = places not walked + `num_unkept_owed_` - `num_unkept_ahead_`.
  // Places that the walk has passed and that are still without a sample, as
  // what was found in the ring was gone when it was read. They come before the
  // next place of the order.
  uint32_t num_unkept_owed_ ABSL_GUARDED_BY(mu_) = 0;
  // Samples that a stream was asked for, as it came by, before the walk was at
  // a place for them. The next such places are for what the stream yields.
  uint32_t num_unkept_ahead_ ABSL_GUARDED_BY(mu_) = 0;

  // How many claims of samples that are kept were refused in this call.
  uint32_t num_refused_ ABSL_GUARDED_BY(mu_) = 0;

  // Those that `Decide` deferred, until the order is walked. Then those that
  // are still not in the store, for which the source is read again, and how
  // many of these were claimed.
  std::vector<uint32_t> deferred_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  size_t num_missing_claimed_ ABSL_GUARDED_BY(mu_) = 0;

  // The source. Random access: what it was asked for, in order, from the
  // `first_request_`-th on. Those before were read.
  std::deque<uint32_t> requests_ ABSL_GUARDED_BY(mu_);
  size_t first_request_ ABSL_GUARDED_BY(mu_) = 0;
  // Stream: what it yields next, and how much it has.
  int64_t stream_position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t stream_length_ ABSL_GUARDED_BY(mu_) = kUnknownSamples;
};

}  // namespace refurbish_tf
