// An epoch under way: the one place where it is decided, for each sample, whether
// it is prepared or taken from the store, and that knows what has been yielded.
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
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

// The counts of an epoch, which outlive it. `EpochStats` in stats.py says what they
// are.
struct EpochCounters : Counters {
  Count fresh{this, "fresh"};
  Count cached{this, "cached"};
  Count evicted{this, "evicted"};
  Count absent{this, "absent"};
  Count bytes{this, "bytes"};
  Count fresh_wait_nanos{this, "fresh_wait_nanos"};
  Count store_wait_nanos{this, "store_wait_nanos"};
};

// What comes at a place of the epoch.
struct Place {
  enum class From {
    kStore,   // `sample`, which has been taken.
    kReading,  // A read of the store, which is to be begun and ended.
    kSource,  // The next one that is read from the source.
  };
  From from = From::kSource;
  // Of `kSource` on a stream it is empty until it has been read.
  std::optional<uint32_t> index;
  Sample sample;
  WantedSample wanted;  // Of `kReading`.
  int64_t bytes = 0;  // Counted as taken ahead.
  bool absent = false;  // It is prepared, though the schedule has it as cached.
  bool new_input = false;  // Before it, the source is to be read anew.
};

// The order is walked once. What a place holds is decided when it is its turn, or
// before that, when the source asks ahead for what is to be prepared or a disk is
// read ahead. From a store in memory what was decided is taken at that very moment.
// On a disk it is read by the worker that comes to it, so that no file is touched
// while a claim holds the locks; if it is not there any more, it is deferred. How far
// ahead is bounded in bytes.
//
// A place whose sample is prepared takes the next sample from the source. One with
// random access yields them in the order in which they are asked for; a stream, in
// its own.
//
// Some samples are deferred to the end of the order: one that the stream has passed
// over, as it was in the store, and that is gone; on a shared store, one that
// another job is preparing, which by then is most likely in the store; one whose
// record on the disk turns out to be damaged. What is not in the store then either
// is read from the source anew.
//
// Thread-safe. Lock order: `mu_` before the locks of the store.
class Epoch {
 public:
  // `schedule` is empty while the number of samples is unknown: then every
  // sample is prepared, in the order in which they come. `owner` keeps alive
  // what `schedule` refers to. `random_access`: of the source. `alive` tells the
  // stage for how long the epoch lasts.
  Epoch(uint64_t number, uint64_t seed, std::optional<EpochSchedule> schedule,
        std::shared_ptr<const Schedule> owner, bool random_access,
        std::shared_ptr<SampleStore> store, std::shared_ptr<SharedUse> shared,
        std::shared_ptr<EpochCounters> counters, std::shared_ptr<void> alive);

  // Goes on where a checkpoint was saved, before anything else is done. What was
  // not yielded keeps its place in the order, as far as that is still to come;
  // what was yielded early, as a stream does, is replaced by what was passed.
  void Resume(const SavedEpoch& saved) ABSL_LOCKS_EXCLUDED(mu_);
  bool resumed() const { return resumed_; }

  // For a checkpoint.
  SavedEpoch Save() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t number() const { return number_; }
  uint64_t seed() const { return seed_; }
  EpochCounters& counters() { return *counters_; }
  // Only when the number of samples was known when the epoch began.
  bool random_access() const { return random_access_; }
  // The generation of which the sample is prepared in this epoch.
  Generation PreparedGeneration(uint32_t index) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether to keep what is prepared of the sample: for another use of our own,
  // or for other jobs.
  bool ToKeep(uint32_t index) const;
  // Whether the schedule was known when the epoch began. Otherwise every sample
  // is prepared.
  bool scheduled() const { return owner_ != nullptr; }
  // Whether the number of samples was known when the epoch began.
  bool num_samples_known() const { return schedule_.has_value(); }
  // How many samples the source has, as far as is known.
  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);

  // The order. ----------------------------------------------------------------

  enum class Step {
    kPlace,
    kNotNow,  // Until a read that is under way has ended.
    kEnd,
  };
  // For one thread at a time. Does not wait.
  Step Next(Place* place) ABSL_LOCKS_EXCLUDED(mu_);

  // Begins the reads that were decided on since. It opens files and reads what is
  // in the page cache, so it is for who holds no lock.
  void StartReads();
  // The same, and ends the read of this place. False when the sample was not there:
  // it is deferred.
  bool Read(Place* place) ABSL_LOCKS_EXCLUDED(mu_);

  // What came at the place was handed out, or its error. `index` is empty where an
  // error belongs to no sample. True when it is known to be the last one.
  bool HandedOut(std::optional<uint32_t> index) ABSL_LOCKS_EXCLUDED(mu_);

  // The source. ---------------------------------------------------------------

  // It is about to be read from its start again, for what is missing at the end of
  // the order.
  void ReadAnew() ABSL_LOCKS_EXCLUDED(mu_);

  // Random access: the index of the `n`-th sample to prepare, or OutOfRange when
  // there is none. May be called by several sources, each counting from 0, and for
  // the same `n` again. Waits where too much has been taken ahead.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_);

  // Stream: what to do at its current position.
  struct Advance {
    int64_t pass_over = 0;         // This many elements are not wanted,
    bool wanted = false;           // the one after them is, ...
    uint32_t index = 0;            // ... and has this index,
    bool at_end = false;           // or the stream should end after them.
  };
  Advance AdvanceStream() ABSL_LOCKS_EXCLUDED(mu_);
  // Stream of unknown length: it has ended.
  void StreamEnded() ABSL_LOCKS_EXCLUDED(mu_);
  // Likewise, and what was read of it and shuffled has arrived.
  void ArrivalsEnded() ABSL_LOCKS_EXCLUDED(mu_);

  // Whoever waits in `Request` gives up, now and from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // By the schedule alone.
  Generation GenerationOf(uint32_t index) const {
    return schedule_.has_value() ? schedule_->Generation(index) : number_;
  }
  GenerationRange Wanted(uint32_t index) const;
  // Whether only what the schedule wants may be used, and nothing newer.
  bool Exact() const {
    return shared_ == nullptr || number_ < shared_->exact_before;
  }
  bool Reused(uint32_t index) const {
    return schedule_.has_value() && schedule_->Reused(index);
  }
  bool IsStored(uint32_t index) {
    return store_->store().Contains(index, Wanted(index));
  }
  // Decides what comes at the next places: as many as it takes to have one, or to
  // keep the disk busy.
  void Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DecideFromMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing comes there when the sample is deferred.
  void DecideOne(const Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  // From here on, the sample is wanted from the source.
  void Ask(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  const std::shared_ptr<EpochCounters> counters_;
  const std::shared_ptr<void> alive_;
  // Null where reading takes no time.
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
  // What was saved last, and what was yielded since. None when nothing was saved
  // for some time.
  std::optional<tensorflow::Tensor> saved_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> yielded_since_ ABSL_GUARDED_BY(mu_);
  // How many places were handed out, also before the epoch was resumed.
  uint32_t num_handed_out_ ABSL_GUARDED_BY(mu_) = 0;
  // Every place of the order before this is decided.
  uint32_t next_position_ ABSL_GUARDED_BY(mu_) = 0;
  // Decided and not yet claimed, and what was taken for them.
  std::deque<Place> decided_ ABSL_GUARDED_BY(mu_);
  int64_t taken_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Reads that are to be noted together, and how many have not ended.
  std::vector<WantedSample> to_read_ ABSL_GUARDED_BY(mu_);
  int64_t num_reading_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  // By sample: is wanted from the source.
  std::vector<bool> requested_ ABSL_GUARDED_BY(mu_);
  // Of those that are, which are prepared of another generation than that of the
  // schedule.
  std::unordered_map<uint32_t, Generation> other_generations_
      ABSL_GUARDED_BY(mu_);
  // By sample: was taken from the store, or is deferred, so that a stream passes it
  // over.
  std::vector<bool> served_ ABSL_GUARDED_BY(mu_);
  // Random access: what was requested, in order. Kept to the end, as
  // `concatenate` counts separately for each of its sources.
  std::vector<uint32_t> requests_ ABSL_GUARDED_BY(mu_);
  // Stream: every sample before this is decided.
  int64_t stream_position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t stream_length_ ABSL_GUARDED_BY(mu_) = kUnknownSamples;
  bool arrivals_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<uint32_t> deferred_ ABSL_GUARDED_BY(mu_);
  // Deferred, and not in the store at the end of the order either: what the source
  // is read anew for, and how many of them have no place yet.
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  size_t num_missing_left_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_EPOCH_H_
