// What the two dataset ops of a refurbish stage share.
#ifndef REFURBISH_TF_CC_KERNELS_STAGE_H_
#define REFURBISH_TF_CC_KERNELS_STAGE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/sample_store.h"
#include "refurbish_tf/cc/kernels/stopwatch.h"
#include "refurbish_tf/cc/schedule/schedule.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

inline constexpr int64_t kUnknownSamples = -1;

struct StageOptions {
  ScheduleOptions schedule;
  int64_t num_samples = kUnknownSamples;
  int64_t sample_bytes = -1;  // -1 when samples differ in size.
};

struct EpochCounts {
  int64_t fresh = 0;    // Prepared in this epoch, for whatever reason.
  int64_t cached = 0;   // Taken from the store.
  int64_t evicted = 0;  // Made stale by the schedule when the epoch began.
  int64_t absent = 0;   // Among the fresh: the schedule had them as cached.
  int64_t bytes = 0;    // Held by the store when the next epoch begins, or now.
  int64_t fresh_wait_nanos = 0;  // Waited for fresh samples from upstream,
  int64_t store_wait_nanos = 0;  // and for a store to read.
};

// On a store that others use, too, a job may meet a sample of a newer generation
// than its schedule has come to, and uses it. So that it uses no partially
// augmented sample more than r times, it may then want the next one earlier than
// its schedule. This counts the uses of the newest generation of each sample that
// the job has come to.
//
// Thread-safe.
class UsedGenerations {
 public:
  explicit UsedGenerations(double reuse_factor)
      : most_uses_(std::min(std::ceil(reuse_factor), 4e9)) {}

  // What may be used of a sample of which the schedule wants `generation`.
  GenerationRange Wanted(uint32_t index, Generation generation) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a use, unless that generation was used up or passed meanwhile.
  bool Use(uint32_t index, Generation used) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts anew, from no use on.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Uses {
    Generation generation = 0;
    uint32_t count = 0;  // 0 for none.
  };
  const uint32_t most_uses_;
  mutable absl::Mutex mu_;
  // By sample, up to the last one that was used.
  std::vector<Uses> uses_ ABSL_GUARDED_BY(mu_);
};

// What a stage needs on a store that others use, too.
struct SharedUse {
  explicit SharedUse(double reuse_factor) : generations(reuse_factor) {}

  UsedGenerations generations;
  std::unique_ptr<SharedState::Job> job;
  // After a restore: before this epoch only what the schedule wants is used and
  // nothing newer, to yield what was yielded before.
  std::atomic<uint64_t> exact_before{0};
};

// The counts of an epoch, which outlive it.
struct EpochCounters {
  std::atomic<int64_t> fresh{0};
  std::atomic<int64_t> cached{0};
  std::atomic<int64_t> evicted{0};
  std::atomic<int64_t> absent{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> fresh_wait_nanos{0};
  std::atomic<int64_t> store_wait_nanos{0};
};

// What there is to say of a stage without having counted anything.
struct StageDescription {
  int64_t num_samples = kUnknownSamples;
  int64_t num_kept = kUnknownSamples;  // How many of them the store can hold.
  bool random_access = false;          // Else the source is a stream.
};

// The error of a checkpoint that does not fit.
absl::Status OtherPipeline(const char* what, const std::string& given,
                           const std::string& saved);
// The error of a checkpoint that no pipeline has saved.
absl::Status DamagedCheckpoint(const std::string& what);

// What a checkpoint says of an epoch: enough to go on with it in another process,
// and nothing that the cache store holds.
struct SavedEpoch {
  uint64_t next_epoch = 0;  // Of the stage.
  bool begun = false;       // Else the rest means nothing.
  uint64_t number = 0;
  int64_t num_samples = kUnknownSamples;
  bool scheduled = false;
  int64_t num_kept = 0;  // With a schedule only.
  uint64_t origin = 0;   // Likewise.
  // By sample, eight to a byte from the lowest bit on: was yielded (uint8). Then
  // the samples that were yielded after that (uint32): symbolic checkpoints are
  // saved with every element, and must not copy everything each time.
  tensorflow::Tensor yielded;
  tensorflow::Tensor yielded_since;
};

// An epoch under way: the one place where it is decided, for each sample,
// whether it is prepared or taken from the store. The op downstream walks the
// order of the epoch; the op upstream runs ahead of it, as far as the `map`
// between the two reads ahead. Whichever reaches a sample first decides, as late
// as it can, and both keep to that.
//
// A place of the order whose sample is prepared takes the next sample to arrive
// from upstream. From a random-access source they arrive in the order of the
// epoch; from a stream, in the stream's.
//
// A sample that was found in the store by the op upstream and is gone when the
// op downstream wants it (cleared, or replaced through another iterator) is
// deferred: when the order has been walked to its end, upstream is made anew and
// asked for just those. So is, on a shared store, one that another job is
// preparing; by then it is most likely in the store.
//
// Lock order: `mu_` before the locks of the stage and the store.
class Epoch {
 public:
  enum class Source { kNone, kRandomAccess, kStream };

  // `schedule` is empty while the number of samples is unknown: then every
  // sample is prepared, in the order in which they come. `owner` keeps alive
  // what `schedule` refers to.
  Epoch(uint64_t number, uint64_t seed, std::optional<EpochSchedule> schedule,
        std::shared_ptr<const Schedule> owner,
        std::shared_ptr<SampleStore> store, std::shared_ptr<SharedUse> shared,
        std::shared_ptr<EpochCounters> counters);

  // Goes on where a checkpoint was saved, before anything else is done. What was
  // not yielded keeps its place in the order, as far as that is still to come;
  // what was yielded early, as a stream does, is replaced by what was passed.
  void Resume(const SavedEpoch& saved) ABSL_LOCKS_EXCLUDED(mu_);
  bool resumed() const { return resumed_; }

  // For a checkpoint. A sample is yielded when it was returned by `Next` or has
  // arrived.
  SavedEpoch Save() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t number() const { return number_; }
  EpochCounters& counters() { return *counters_; }
  uint64_t seed() const { return seed_; }
  // The generation of which the sample is prepared in this epoch.
  Generation PreparedGeneration(uint32_t index) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether to keep what is prepared of the sample: for another use of our own,
  // or for other jobs.
  bool ToKeep(uint32_t index) const;
  // Whether the number of samples was known when the epoch began.
  bool scheduled_length() const { return schedule_.has_value(); }
  // Whether the schedule was known when the epoch began. Otherwise every sample
  // is prepared.
  bool scheduled() const { return owner_ != nullptr; }
  // How many samples the source has, as far as is known.
  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);

  // For the op upstream. ------------------------------------------------------

  // A new input begins to be read, from its start.
  void BeginInput(Source source) ABSL_LOCKS_EXCLUDED(mu_);

  // Random access: the index of the `n`-th sample to prepare, or OutOfRange
  // when there is none. May be called by several sources, each counting from 0,
  // and for the same `n` again.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_);
  // Random access: what was requested as the `n`-th, if anything was.
  std::optional<uint32_t> Requested(size_t n) const ABSL_LOCKS_EXCLUDED(mu_);

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

  // The sample goes downstream to be prepared, or has failed. Returns its index
  // as a tensor.
  tensorflow::Tensor Emitted(uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);

  // For the op downstream. ----------------------------------------------------

  enum class Step {
    kCached,     // `*sample` and `*index` are the next element.
    kArrival,    // The next element is the next one to arrive.
    kMakeInput,  // Make the input, then ask again.
    kMakeInputAnew,  // Some were deferred: read the input to its end, make it
                     // anew, then ask again.
    kEnd,
  };
  // `*last` tells whether the element is known to be the last one.
  Step Next(Sample* sample, uint32_t* index, bool* last)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A prepared sample has arrived, with its index, which is returned.
  uint32_t Arrived(tensorflow::Tensor index) ABSL_LOCKS_EXCLUDED(mu_);
  // Preparing a sample has failed. Returns the samples that it can have been:
  // one, when they arrive in the order in which they were emitted.
  std::vector<uint32_t> Failed(bool in_order) ABSL_LOCKS_EXCLUDED(mu_);

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
  // Takes the sample from the store. `position` is its place in the order, or
  // none for a deferred one.
  bool GetStored(uint32_t index, std::optional<uint32_t> position,
                 Sample* sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to read those samples of the order that are likely to be taken next.
  void ReadAhead() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether another job is about to put the sample into the store.
  bool ClaimedByOther(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // From here on, the sample is let through upstream.
  void Ask(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot At(uint32_t position) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return resumed_ ? rest_[position - first_position_]
                    : schedule_->At(position);
  }
  void Yield(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AtEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_position_ == schedule_->num_samples() && deferred_.empty() &&
           missing_.empty() && num_deferred_left_ == 0;
  }

  const uint64_t number_;
  const uint64_t seed_;
  const std::shared_ptr<const Schedule> owner_;
  const std::optional<EpochSchedule> schedule_;
  const std::shared_ptr<SampleStore> store_;
  const std::shared_ptr<SharedUse> shared_;  // Null on a store of our own.
  const std::shared_ptr<EpochCounters> counters_;
  // For the op downstream alone. Null where reading takes no time.
  const std::unique_ptr<CacheStore<Sample>::ReadAhead> read_ahead_;
  std::vector<WantedSample> to_read_;

  mutable absl::Mutex mu_;
  Source source_ ABSL_GUARDED_BY(mu_) = Source::kNone;
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
  // The order has been walked downstream up to here.
  uint32_t next_position_ ABSL_GUARDED_BY(mu_) = 0;
  // Reads have begun up to here.
  uint32_t read_position_ ABSL_GUARDED_BY(mu_) = 0;
  // The place whose sample is not in the store and waits for an input.
  int64_t absent_position_ ABSL_GUARDED_BY(mu_) = -1;
  // By sample: is, or will be, let through upstream.
  std::vector<bool> requested_ ABSL_GUARDED_BY(mu_);
  // Of those that are, which are prepared of another generation than that of the
  // schedule.
  std::unordered_map<uint32_t, Generation> other_generations_
      ABSL_GUARDED_BY(mu_);
  // By sample: was taken from the store, or is about to be, so that it may be
  // passed over.
  std::vector<bool> served_ ABSL_GUARDED_BY(mu_);
  // Random access: every place of the order before this is decided.
  uint32_t frontier_ ABSL_GUARDED_BY(mu_) = 0;
  // Random access: what was requested, in order. Kept to the end, as
  // `concatenate` counts separately for each of its sources.
  std::vector<uint32_t> requests_ ABSL_GUARDED_BY(mu_);
  // Stream: every sample before this is decided.
  int64_t stream_position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t stream_length_ ABSL_GUARDED_BY(mu_) = kUnknownSamples;
  // On their way from upstream to downstream.
  std::deque<uint32_t> emitted_ ABSL_GUARDED_BY(mu_);
  // Tensors of indices that have arrived, to be used again. Made anew and freed,
  // one between each two samples that stay, they would leave holes that malloc
  // does not fill.
  std::vector<tensorflow::Tensor> spare_indices_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> deferred_ ABSL_GUARDED_BY(mu_);
  // Deferred, and not in the store at the end of the order either.
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  // Of the deferred ones, how many are still to arrive.
  int64_t num_deferred_left_ ABSL_GUARDED_BY(mu_) = 0;
};

// The state of a refurbish stage, shared by its dataset ops and by all their
// iterators, and found again by its name.
//
// Lock order: an epoch's lock, then `mu_`, then the store's.
class Stage : public std::enable_shared_from_this<Stage> {
 public:
  static std::shared_ptr<Stage> GetOrCreate(const std::string& id);
  // Null when there is none.
  static std::shared_ptr<Stage> Find(const std::string& id);

  explicit Stage(std::string id) : id_(std::move(id)) {}

  const std::string& id() const { return id_; }

  // Called before `Configure`, with what CheckSource says of the source. An error
  // when it was another part of the source before: the samples of both have the
  // same indices.
  absl::Status SetShards(const std::string& shards) ABSL_LOCKS_EXCLUDED(mu_);

  // Called each time a dataset object is made for the stage. The first call
  // counts, or the first one that knows the number of samples if the stage has
  // not been used by then: `shard` may be filled in after the stage was built.
  absl::Status Configure(const StageOptions& options,
                         std::shared_ptr<SampleStore> store,
                         const tensorflow::DataTypeVector& dtypes)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Begins the next epoch.
  absl::StatusOr<std::shared_ptr<Epoch>> StartEpoch() ABSL_LOCKS_EXCLUDED(mu_);

  // An iterator has read `epoch` to its end.
  absl::Status EndEpoch(const Epoch& epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // What a checkpoint of an iterator says that has not begun an epoch, or has
  // ended one.
  SavedEpoch Save() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the stage to where it was when the checkpoint was saved, and resumes its
  // epoch, if it had begun one; else returns null. Iterators that are under way
  // go on with their epochs, and nothing is taken from them. Fails, and changes
  // nothing, when the checkpoint is of another pipeline or damaged.
  absl::StatusOr<std::shared_ptr<Epoch>> Restore(const SavedEpoch& saved)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps a sample that has been prepared in `epoch`, if it is to be kept.
  absl::Status Keep(const Epoch& epoch, uint32_t index, const Sample& sample)
      ABSL_LOCKS_EXCLUDED(mu_);

  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<EpochCounts> Counts() const ABSL_LOCKS_EXCLUDED(mu_);
  StageDescription Describe() const ABSL_LOCKS_EXCLUDED(mu_);
  void SetRandomAccess(bool random_access) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // `scheduled`: by the schedule, if there is one.
  std::shared_ptr<Epoch> MakeEpoch(uint64_t number, bool scheduled)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status JoinOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Compares the settings with those of a store on disk, and takes from it the
  // schedule that others have begun.
  absl::Status AgreeWithStore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool NewerEpochIsAlive(uint64_t number) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is in the store competes for its room, whoever has put it.
  void FindKeptKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepWhatFits(Generation generation, uint32_t index, const Sample& sample)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string id_;
  mutable absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Empty until `shard` is filled in.
  std::optional<std::string> shards_ ABSL_GUARDED_BY(mu_);
  StageOptions options_ ABSL_GUARDED_BY(mu_);
  bool random_access_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<SampleStore> store_ ABSL_GUARDED_BY(mu_);
  // Null until the first epoch, and on a store of our own. Before `store_` goes.
  std::shared_ptr<SharedUse> shared_ ABSL_GUARDED_BY(mu_);
  // A restore may set it back.
  uint64_t next_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  // The highest of all epochs that were begun.
  uint64_t last_begun_ ABSL_GUARDED_BY(mu_) = 0;
  // Those that iterators are in.
  std::vector<std::weak_ptr<Epoch>> epochs_ ABSL_GUARDED_BY(mu_);
  // By epoch.
  std::vector<std::shared_ptr<EpochCounters>> counters_ ABSL_GUARDED_BY(mu_);

  // Made when both the number of samples and how many of them the store can
  // hold are known: at once for samples of fixed size, else after the first
  // whole pass. Until then every epoch prepares every sample.
  std::shared_ptr<const Schedule> schedule_ ABSL_GUARDED_BY(mu_);
  // Before that, under a limit: the samples with the smallest eviction keys are
  // kept, as many as fit. Keys from `key_limit_` on did not fit.
  std::set<uint64_t> kept_keys_ ABSL_GUARDED_BY(mu_);
  // Whether it has had those that others have put.
  bool others_found_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t key_limit_ ABSL_GUARDED_BY(mu_) =
      std::numeric_limits<uint64_t>::max();
};

// Hands an epoch from the op downstream, which begins it, to the op upstream,
// whose iterator is made, on the same thread, while this object lives.
class EpochHandover {
 public:
  EpochHandover(const Stage* stage, std::shared_ptr<Epoch> epoch);
  ~EpochHandover();
  EpochHandover(const EpochHandover&) = delete;
  EpochHandover& operator=(const EpochHandover&) = delete;

  // The epoch that is being handed over for `stage`, or null.
  static std::shared_ptr<Epoch> Take(const Stage* stage);

 private:
  const Stage* const stage_;
  const std::shared_ptr<Epoch> epoch_;
  EpochHandover* const outer_;  // Of another stage, further downstream.
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_STAGE_H_
