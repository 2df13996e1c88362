// An epoch under way. It alone decides whether a sample is fresh (prepared) or
// cached (taken from the store), and knows what has been yielded.
//
// Identity: in epoch t, sample i is at generation g(i, t), which rises each
// time that the schedule evicts it (schedule.h). The seeds that `partial_fn`
// gets depend on the stage seed, i and g alone, and so does a cached sample, if
// `partial_fn` draws from these seeds. So the store is a memo: losing it costs
// time and never content. A sample in memory is used only if it has exactly the
// generation wanted, so iterators at different epochs do not disturb each
// other. Beginning an epoch removes nothing from the store.
#ifndef REFURBISH_TF_CC_STAGE_EPOCH_H_
#define REFURBISH_TF_CC_STAGE_EPOCH_H_

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
#include "refurbish_tf/cc/schedule/schedule.h"
#include "refurbish_tf/cc/stage/saved_epoch.h"
#include "refurbish_tf/cc/stage/shared_use.h"
#include "refurbish_tf/cc/stage/transit_order.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"
#include "refurbish_tf/cc/store/transit/transit_ring.h"

namespace refurbish_tf {

// The counts of an epoch, which outlive it: `EpochStats` in stats.py.
struct EpochCounters : Counters {
  Count fresh{this, "fresh"};
  Count cached{this, "cached"};
  Count from_others{this, "from_others"};
  Count evicted{this, "evicted"};
  Count absent{this, "absent"};
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
  WantedSample wanted;       // Of `kReading`.
  int64_t bytes = 0;         // Counted as taken ahead.
  bool from_others = false;  // Another process prepared it.
  bool absent = false;     // Prepared although the schedule expects it cached.
  bool new_input = false;  // The source is first read from its start again.
};

// The schedule plans which places are fresh (`Slot::fresh`); what the store
// holds decides (`DecideOne`), and `absent` counts the difference. The order is
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
  // this one hand each other, or null. `alive` tells the stage that the epoch
  // still exists.
  Epoch(uint64_t number, uint64_t seed, std::optional<EpochSchedule> schedule,
        std::shared_ptr<const Schedule> owner, bool random_access,
        std::shared_ptr<SampleStore> store, std::shared_ptr<SharedUse> shared,
        const TransitRing* ring, std::shared_ptr<EpochCounters> counters,
        std::shared_ptr<void> alive);

  // Continues where a checkpoint was saved. To be called before anything else.
  // What was not yielded keeps its place in the order if that is still to come.
  // A stream may have yielded samples before their places: samples whose places
  // have passed come there.
  void Resume(const SavedEpoch& saved) ABSL_LOCKS_EXCLUDED(mu_);
  bool resumed() const { return resumed_; }

  // For a checkpoint.
  SavedEpoch Save() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t number() const { return number_; }
  uint64_t seed() const { return seed_; }
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

  // Random access: the index of the `n`-th sample to prepare, or OutOfRange if
  // there are fewer. Several sources may call this, each counting from 0, and
  // again for the same `n`. Waits while too much is taken ahead.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_);

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
  bool IsStored(uint32_t index) {
    return store_->store().Contains(index, Wanted(index));
  }
  // Decides as many of the next places as it takes to have one, or to keep the
  // disk busy.
  void Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasEnoughToPrepare() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DecideFromMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides the next place of the order.
  void DecideNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlace(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds no place if the sample is deferred.
  void DecideOne(const Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The place of a sample that is not kept, while there is a ring.
  void DecideUnkept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakeInTransit(Place* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether it is of those that may be in transit, ...
  bool Unkept(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return transit_.has_value() && !schedule_->Kept(index);
  }
  // ... and has not come yet, nor been asked for.
  bool NeedsUnkept(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Unkept(index) && !requested_[index] && !served_[index];
  }
  // Claims such a sample and decides its generation. False if another job is
  // preparing it, unless `also_claimed`. `alone`: no other job is at work.
  bool BeginUnkept(uint32_t index, bool also_claimed, bool alone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes a place to be read.
  void WillRead(uint32_t index, GenerationRange wanted,
                std::optional<uint64_t> position, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the sample from the store, or notes that it is to be read.
  bool TakeStored(uint32_t index, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WantReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<size_t> DecideRequest(size_t n) ABSL_LOCKS_EXCLUDED(mu_);
  bool OrderIsWalked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_position_ >= schedule_->num_samples();
  }
  // Whether another job is about to put the sample into the store.
  bool ClaimedByOther(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Marks the sample as wanted from the source, in the generation that is to be
  // prepared.
  void Ask(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteGeneration(uint32_t index, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot At(uint32_t position) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return resumed_ ? rest_[position - first_position_]
                    : schedule_->At(position);
  }
  void NoteYielded(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t number_;
  const uint64_t seed_;
  const std::shared_ptr<const Schedule> owner_;
  const std::optional<EpochSchedule> schedule_;
  const bool random_access_;
  const std::shared_ptr<SampleStore> store_;
  const std::shared_ptr<SharedUse> shared_;  // Null on a store of our own.
  const TransitRing* const ring_;
  const uint64_t number_begun_;  // `num_begun` when it began.
  const std::shared_ptr<EpochCounters> counters_;
  const std::shared_ptr<void> alive_;
  // Null if reading takes no time: for a store in memory.
  const std::unique_ptr<CacheStore<Sample>::ReadAhead> read_ahead_;

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // Of an epoch that was resumed: its order from this position on.
  bool resumed_ = false;  // Set before the epoch is used.
  uint32_t first_position_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Slot> rest_ ABSL_GUARDED_BY(mu_);
  // By sample, as in SavedEpoch.
  std::vector<uint8_t> yielded_ ABSL_GUARDED_BY(mu_);
  // What was saved last, and what was yielded since. Empty if nothing was saved
  // for some time.
  std::optional<tensorflow::Tensor> saved_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> yielded_since_ ABSL_GUARDED_BY(mu_);
  // How many places were handed out, also before the epoch was resumed.
  uint32_t num_handed_out_ ABSL_GUARDED_BY(mu_) = 0;
  // Every place of the order before this is decided.
  uint32_t next_position_ ABSL_GUARDED_BY(mu_) = 0;
  // Decided and not yet claimed, and the bytes that were taken ahead.
  std::deque<Place> decided_ ABSL_GUARDED_BY(mu_);
  size_t num_to_prepare_ ABSL_GUARDED_BY(mu_) = 0;  // Of these.
  int64_t taken_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Reads to be noted together, and how many have not ended.
  std::vector<WantedSample> to_read_ ABSL_GUARDED_BY(mu_);
  int64_t num_reading_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_transit_reading_ ABSL_GUARDED_BY(mu_) = 0;  // Of these.
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  // By sample: whether it is wanted from the source.
  std::vector<bool> requested_ ABSL_GUARDED_BY(mu_);
  // Which of these are prepared with another generation than the schedule's.
  std::unordered_map<uint32_t, Generation> other_generations_
      ABSL_GUARDED_BY(mu_);
  // By sample: whether it was taken from the store or is deferred, so that a
  // stream passes over it.
  std::vector<bool> served_ ABSL_GUARDED_BY(mu_);
  // Random access: what was requested, in order. Kept to the end, as
  // `concatenate` counts separately for each of its sources.
  std::vector<uint32_t> requests_ ABSL_GUARDED_BY(mu_);
  // Stream: every sample before this is decided.
  int64_t stream_position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t stream_length_ ABSL_GUARDED_BY(mu_) = kUnknownSamples;
  bool arrivals_ended_ ABSL_GUARDED_BY(mu_) = false;
  // Null if every sample is kept, or none can be handed to others.
  std::optional<TransitOrder> transit_ ABSL_GUARDED_BY(mu_);
  // Whether other jobs were at work when a place was last decided whose sample
  // is not kept.
  bool with_others_ ABSL_GUARDED_BY(mu_) = false;
  // How many samples in transit were gone when they were to be read: so many
  // places are to be decided again.
  uint32_t num_places_again_ ABSL_GUARDED_BY(mu_) = 0;
  // Stream: how many samples that are not kept it has asked for before their
  // places were decided.
  uint32_t num_unkept_ahead_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> deferred_ ABSL_GUARDED_BY(mu_);
  // Deferred, and still not in the store at the end of the order: the source is
  // read again for these. Then how many of them have no place yet.
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  size_t num_missing_left_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_EPOCH_H_
