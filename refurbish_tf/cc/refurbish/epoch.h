// An epoch in progress. It alone decides whether a sample is fresh (to be
// prepared) or cached (found in the store), and knows what has been yielded.
//
// In epoch t, sample i is at generation g(i, t), which rises each time that the
// schedule evicts it (schedule.h). The seeds that `partial_fn` gets depend on
// the stage seed, i and g alone, and so does a cached sample, if `partial_fn`
// draws from these seeds. So losing stored samples costs time, but does not
// change any content. A sample in memory is used only if it has exactly the
// generation wanted, so iterators at different epochs do not disturb each
// other. Beginning an epoch removes nothing from the store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/cooperation/job.h"
#include "refurbish_tf/cc/plan/requests.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/refurbish/epoch_parts.h"
#include "refurbish_tf/cc/refurbish/epoch_position.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"

namespace refurbish_tf {

// `epoch_decide.cc` decides where each sample comes from.
//
// Thread-safe. Lock order: `mu_`, then the locks of the `JobEpoch`, then the
// locks of the store and its `ReadAhead`.
class Epoch {
 public:
  // `order` is empty while the number of samples is unknown. Every sample is
  // then prepared, in the order in which the source yields them.
  Epoch(EpochParts parts, std::optional<EpochSchedule> order);

  // Continues where a checkpoint was saved. Must be called before anything
  // else. The remaining samples come at the places that `OrderWalk` gives them.
  void Resume(const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);
  bool resumed() const { return resumed_; }

  // Adds this epoch to a position that `Stage::Save` has made for the next one.
  // Must not be called during `HandedOut`.
  void Save(EpochPosition* saved);

  uint64_t number() const { return parts_.number; }
  uint64_t seed() const { return parts_.stage.schedule.seed; }
  // The number from which the seeds of a sample are made.
  uint64_t InWhole(uint32_t index) const { return parts_.shard.InWhole(index); }
  // Maps samples to their numbers in the store.
  const Shard& keys() const { return keys_; }
  SampleStore& sample_store() const { return *parts_.store; }
  EpochCounters& counters() { return *parts_.counters; }
  bool random_access() const { return random_access_; }
  // The generation that the sample has when it is prepared in this epoch.
  Generation PreparedGeneration(uint32_t index) const {
    return job_->Claimed(index);
  }
  // Whether to keep the prepared sample, because it is used again or other jobs
  // want it.
  bool ToKeep(uint32_t index) const {
    return (order_.has_value() && order_->Reused(index)) ||
           job_->KeepsForOthers(index);
  }
  // Whether to put a sample that is not kept into the ring, for other jobs.
  bool ToShare(uint32_t index) const { return job_->ShouldPublish(index); }
  // Whether the schedule was known when the epoch began. Otherwise every sample
  // is prepared.
  bool scheduled() const { return parts_.schedule != nullptr; }
  // Whether the number of samples was known when the epoch began.
  bool num_samples_known() const { return order_.has_value(); }
  // How many samples the source has, if known.
  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);

  // The order. ----------------------------------------------------------------

  enum class Step {
    kPlaces,
    kNotNow,  // No place until a read in progress has ended.
    kEnd,
  };
  // Returns the next places, at most kPlacesAtOnce. Called by one thread at a
  // time. Does not wait.
  Step Next(std::vector<Place>* places) ABSL_LOCKS_EXCLUDED(mu_);

  // Begins the reads from disk that were decided since the last call. Opens
  // files and reads what is in the page cache, so it must be called without any
  // lock.
  void StartReads();
  // Like `StartReads`, then waits for the read of this place. Returns false if
  // the sample was gone: it then comes at another place.
  bool Read(Place* place) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes a sample that the stage is about to prepare from the shared level, if
  // it has come by now. Thread-safe; takes no lock of the epoch.
  bool TakeShared(Place* place);
  // Writes a prepared sample to the shared level, if there is one.
  void PutShared(uint32_t index, Generation generation, const Sample& sample) {
    if (parts_.stage.level == nullptr) return;
    parts_.stage.level->Put(InWhole(index), generation, sample);
  }
  // Notes that the sample at a place was handed out, or an error instead.
  // `index` is empty if the error belongs to no sample. Returns whether this
  // was the last place, as far as known. Called by one thread at a time.
  bool HandedOut(std::optional<uint32_t> index);
  // `num_to_come`: at most how many samples are still to come. `WasHandedOut`:
  // whether this sample was. Not to be called during `HandedOut`.
  int64_t num_to_come() const;
  bool WasHandedOut(uint32_t index) const {
    return index < yielded_.end() && yielded_.Has(index);
  }

  // The source. ---------------------------------------------------------------

  // Called before the source is read from its start again, for samples that are
  // still missing when the order has been walked.
  void ReadAnew() ABSL_LOCKS_EXCLUDED(mu_);

  // Random access: the index of the `n`-th sample to prepare. OutOfRange if
  // there are fewer. NotFound if it was read: with several sources, as in
  // `concatenate`, each counts from 0, and this one is not the first. Waits
  // while too much is decided ahead. `input`: the result of `NewInput`; fails
  // if `NewInput` was called again since.
  absl::StatusOr<size_t> Request(size_t n, uint64_t input)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The source has read the first `num_read` requests. Called now and then.
  void NoteRead(size_t num_read) ABSL_LOCKS_EXCLUDED(mu_);
  // Called before an input (an iterator of the source) is made, and before it
  // is destroyed. If a thread of the earlier input is waiting in `Request`,
  // that call then fails.
  uint64_t NewInput() ABSL_LOCKS_EXCLUDED(mu_);

  // Stream: what to do with its next elements.
  Advance AdvanceStream() ABSL_LOCKS_EXCLUDED(mu_);
  // Called when a stream of unknown length has ended.
  void StreamEnded() ABSL_LOCKS_EXCLUDED(mu_);
  // Called later, when its last element has left the shuffle buffer.
  void ArrivalsEnded() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on `Request` fails instead of waiting.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Why a decision about a sample is made.
  enum class Occasion {
    kPlace,     // Its place has come; `place` has it if it is stored.
    kStream,    // The source, a stream, has reached it.
    kGone,      // It was found, but gone when it was to be read.
    kEnd,       // It was deferred; the walk has ended.
    kReadAnew,  // The source is read again for all deferred samples.
  };

  bool OrderIsWalked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_position_ >= num_places_;
  }
  // Asks the shared level for the samples of the next places.
  void AskAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides places until there is one to return and the disk is kept busy.
  void DecideMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides the next places, at most `most`, if the store is in memory.
  void DecideFromMemory(uint32_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DecideNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides the place of a slot. Adds no place if its sample is deferred.
  void DecidePlace(const Slot& slot, Place place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides the place of an unkept sample: any other one may come there.
  void DecideUnkept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlace(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddFromSource(uint32_t index, bool missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Decides where a sample comes from, except at places of unkept samples that
  // jobs share. Returns its new state. Fills in `place` if the sample is to be
  // read from the store.
  SampleState Decide(Occasion occasion, uint32_t index, Place* place = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Whether the stream is past the sample's position.
  bool Passed(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !random_access_ && index < stream_position_;
  }
  GenerationRange Wanted(uint32_t index) const {
    return job_->Wanted(
        index, order_.has_value() ? order_->Generation(index) : number());
  }
  // Whether the store has the sample. If it has, notes its read from disk in
  // `place`, unless that is null.
  bool IsStored(uint32_t index, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the sample of a place is to be read from disk.
  void WillRead(uint32_t index, GenerationRange wanted,
                std::optional<uint64_t> position, Place* place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WantReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SampleMap<Sample>& store() const { return parts_.store->store(); }

  absl::StatusOr<size_t> DecideRequest(size_t n, uint64_t input)
      ABSL_LOCKS_EXCLUDED(mu_);

  const EpochParts parts_;
  // Maps samples to their numbers in the store.
  const Shard keys_;
  std::optional<EpochSchedule> order_;  // Set before the epoch is used.
  const bool random_access_;
  const std::unique_ptr<JobEpoch> job_;
  // Null for a store in memory, where reading takes no time.
  const std::unique_ptr<SampleMap<Sample>::ReadAhead> read_ahead_;
  // Set if there is a shared level.
  std::optional<SharedLevel::Reader> reader_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t input_ ABSL_GUARDED_BY(mu_) = 0;

  // The number of places of the order. While it is unknown, more than will ever
  // come.
  uint32_t num_places_ ABSL_GUARDED_BY(mu_) = kMaxSamples;
  // Every place before this is decided.
  uint32_t next_position_ ABSL_GUARDED_BY(mu_) = 0;
  // Walks `order_`; it is at `next_position_`.
  std::optional<OrderWalk> walk_ ABSL_GUARDED_BY(mu_);
  // Walks it ahead of `walk_`, for `AskAhead`. Only with random access.
  uint32_t asked_position_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<OrderWalk> asked_walk_ ABSL_GUARDED_BY(mu_);
  bool resumed_ = false;  // Set before the epoch is used.
  // What was handed out, including before the epoch was resumed. Without a
  // lock, because `HandedOut` and `Save` are never called at the same time.
  YieldedSamples yielded_;
  uint32_t num_handed_out_ = 0;

  // Written by `Decide`, `DecideUnkept`, and `Resume` (those yielded before).
  SampleStates states_ ABSL_GUARDED_BY(mu_);
  // Places that were decided, by `Next` or `Request`, and not yet claimed; how
  // many of them are to be prepared; and the bytes of those samples among them
  // that `Request` took from the store.
  std::deque<Place> decided_ ABSL_GUARDED_BY(mu_);
  size_t num_to_prepare_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ahead_ ABSL_GUARDED_BY(mu_) = 0;
  // The largest sample that was taken from a store in memory.
  int64_t largest_ ABSL_GUARDED_BY(mu_) = 0;
  NotedReads reads_ ABSL_GUARDED_BY(mu_);

  // Samples that `Decide` deferred until the order is walked. `missing_`: those
  // that are then still not in the store, so that the source is read again for
  // them; and how many of these were claimed.
  std::vector<uint32_t> deferred_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  size_t num_missing_claimed_ ABSL_GUARDED_BY(mu_) = 0;

  // For a source with random access: its requests.
  Requests requests_ ABSL_GUARDED_BY(mu_);
  // For a stream: the index that it yields next, and its length.
  int64_t stream_position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t stream_length_ ABSL_GUARDED_BY(mu_) = kUnknownSamples;
};

}  // namespace refurbish_tf
