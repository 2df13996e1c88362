// The state of a refurbish stage that is the same for all epochs: the settings,
// the seeds, the schedule, the store, and the number of the next epoch. It is
// shared by the copies of its dataset op and by all their iterators.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/cooperation/cooperation.h"
#include "refurbish_tf/cc/cooperation/store_room.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/plan/source_shard.h"
#include "refurbish_tf/cc/refurbish/epoch.h"
#include "refurbish_tf/cc/refurbish/epoch_position.h"
#include "refurbish_tf/cc/refurbish/first_pass_selection.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

struct StageOptions {
  ScheduleOptions schedule;
  int64_t num_samples = kUnknownSamples;
  int64_t sample_bytes = -1;   // -1 when samples differ in size.
  bool random_access = false;  // Of the source; if false, it is a stream.
  // Whether the user gave no seed, so that a checkpoint's may be adopted.
  bool any_seed = false;
  // Whether the functions run inline; for `Describe`.
  bool partial_inline = true;
  bool final_inline = true;
};

// A stage is found by its name, because rewriting a graph rebuilds its dataset.
// A worker of a tf.data service makes the stage from the graph, in its own
// process.
//
// Lock order: `mu_`, then those of the job or `FirstPassSelection`, then that
// of the store. Nothing accesses files, waits for other processes or puts
// samples while it holds `mu_`.
class Stage : public std::enable_shared_from_this<Stage> {
 public:
  static std::shared_ptr<Stage> GetOrCreate(const std::string& id);

  explicit Stage(std::string id) : id_(std::move(id)) {}

  const std::string& id() const { return id_; }

  // Called before `Configure`, with the shard of the source that CheckSource
  // found. Fails if the stage was given another one before: samples are
  // numbered from 0 in each shard.
  absl::Status SetShard(const SourceShard& shard) ABSL_LOCKS_EXCLUDED(mu_);

  // Called for each dataset object of the stage. The first call counts, or, if
  // the stage has not been used by then, the first one that knows the number of
  // samples: with SHARD_HINT, tf.data first makes a dataset whose shard is not
  // filled in, and then the one that counts.
  absl::Status Configure(const StageOptions& options,
                         std::shared_ptr<SampleStore> store,
                         const SampleTypes& types) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::shared_ptr<Epoch>> StartEpoch() ABSL_LOCKS_EXCLUDED(mu_);

  // An iterator has read `epoch` to its end.
  absl::Status EndEpoch(const Epoch& epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // An iterator of `epoch` was destroyed before its end.
  void LeaveEpoch(const Epoch& epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes an error at the end of an epoch, which the next `StartEpoch` returns,
  // once: a consumer that knows the number of elements, such as Keras, never
  // asks for the end, and drops what a `prefetch` has read there.
  void NoteEndError(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    end_error_ = error;
  }

  // A checkpoint was restored that has nothing of the stage: TensorFlow's
  // `batch` drops its iterator at the end of an epoch. Unless `KeepPosition` or
  // `Restore` gives the position, the next epoch is an error.
  void NoteLostPosition() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (told_ != Told::kPosition) told_ = Told::kLost;
  }

  // The iterators that are restored after `Restore` know only their own epochs,
  // may have begun the next one, or may be missing, so this position counts. If
  // it is negative, the next epoch is an error.
  void KeepPosition(int64_t next_epoch) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    told_ = next_epoch < 0 ? Told::kLost : Told::kPosition;
    next_epoch_ = std::max<int64_t>(next_epoch_, next_epoch);
  }

  // The position of a stage that is in no epoch.
  EpochPosition Save() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the stage to a position. If that is in an epoch, the iterator that
  // begins next yields the rest of it. Running iterators end their epochs
  // undisturbed. Fails, and changes nothing, if the position is damaged or of
  // another pipeline.
  //
  // A stage that was given no seed adopts the position's. It drops the samples
  // that it has kept, which were prepared with another seed, so no iterator may
  // be running. A position in an epoch is also refused while an iterator is in
  // one, because that iterator might take the rest.
  absl::Status Restore(const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for an iterator that yields the rest itself. Null if the position
  // is in no epoch.
  absl::StatusOr<std::shared_ptr<Epoch>> RestoreAndResume(
      const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);

  // Puts a sample that was prepared in `epoch` where it is used again: into the
  // store, the ring for other jobs, or nowhere. `source_sum` is the checksum of
  // the element that it was prepared from, or 0.
  absl::Status PutPrepared(const Epoch& epoch, uint32_t index,
                           Generation generation, const Sample& sample,
                           uint32_t source_sum) ABSL_LOCKS_EXCLUDED(mu_);

  SourceChecks& source_checks() { return source_checks_; }

  uint64_t next_epoch() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return next_epoch_;
  }
  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return options_.num_samples;
  }
  // The seed that was given, or that of a checkpoint.
  uint64_t order_seed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return *options_.schedule.order_seed;
  }
  // By epoch.
  std::vector<std::shared_ptr<const EpochCounters>> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_);
  // How often the schedule evicts a sample before its `epoch`-th epoch. While
  // there is no schedule: as if all samples were kept, and, while their number
  // is unknown, as if there were very many.
  absl::StatusOr<int64_t> GenerationOf(int64_t index, int64_t epoch) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // For `rtf.describe`. Numbers of samples may be kUnknownSamples.
  NamedNumbers Describe() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // An epoch takes memory proportional to the number of samples, so it is made
  // without the lock.
  struct ToMake {
    StageOptions options;
    EpochParts parts;
  };
  struct BegunEpoch {
    uint64_t number;
    std::weak_ptr<std::atomic<int64_t>> alive;  // The bytes that it takes.
  };
  // `scheduled`: whether to follow the schedule, if there is one.
  ToMake BeginEpoch(uint64_t number, bool scheduled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SetTo(const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);
  // Null unless an epoch was restored and nobody has begun its rest.
  std::shared_ptr<Epoch> ResumeRest() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Epoch> MakeEpoch(ToMake of) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails unless the checkpoint's seeds are ours or may be adopted.
  absl::Status CheckSeeds(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AdoptSeeds(const EpochPosition& saved)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes what a rewrite of the source has changed, such as a loss of random
  // access. Empty if the stage is still to be configured.
  std::optional<absl::Status> Reconfigure(const StageOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the position was saved with another number of shards.
  bool IsMoved(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the position is of other samples: of another number of shards, of
  // all workers, or, between two epochs, of a shard of another size.
  bool IsOfOthers(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fails if the stage cannot continue from such a position.
  absl::Status CheckOthers(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The part of a joined position that is about the stage's own samples.
  EpochPosition OwnPart(const EpochPosition& joined) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stage keeps its own order instead of the saved one, because
  // each shard may have its own.
  bool KeepsOrder(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes stored samples of workers whose position was lost: they come again,
  // and may have had all their uses.
  void ForgetLost(const EpochPosition& saved, SampleStore& store)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `HasSchedule`: whether the stage follows the saved schedule.
  // `SavedSchedule`: that schedule, as far as the shard can follow it; null
  // while none can be made.
  bool HasSchedule(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const Schedule> SavedSchedule(
      const EpochPosition& saved) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stage can continue where the checkpoint was saved.
  absl::Status CheckFits(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Which samples of the whole source these are.
  Shard numbering() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return shard_.has_value() ? shard_->numbering() : Shard();
  }
  static Cooperation::Terms TermsOf(const StageOptions& options,
                                    const std::optional<SourceShard>& shard) {
    return {options.schedule, options.num_samples, shard};
  }
  static RoomOptions RoomOf(const StageOptions& options, SampleStore& store);
  // Null while the schedule cannot be known.
  static std::shared_ptr<const Schedule> MakeSchedule(
      const StageOptions& options, const std::optional<SourceShard>& shard,
      SampleStore& store);
  // Does nothing if there already is a schedule.
  void AdoptSchedule(std::shared_ptr<const Schedule> schedule)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the stage a job on its store, unless it is one.
  absl::Status JoinOthers() ABSL_LOCKS_EXCLUDED(mu_);
  // Unless there is a schedule, adopts the one that other jobs have begun, or
  // else `schedule`, if not null, which other jobs then follow.
  absl::Status Agree(std::shared_ptr<const Schedule> schedule)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Begins the schedule. Under a limit, `fitting_` must have had every sample.
  absl::Status BeginSchedule(int64_t num_samples) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckLength(int64_t num_samples) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the bytes of the store, for the newest epoch.
  void CountBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How many epochs with at least this number iterators are in.
  int64_t NumAlive(uint64_t least = 0) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The bytes of the stage and its epochs that grow with the number of samples.
  int64_t BytesBesideStore() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `PutPrepared`, while no schedule is known. Returns whether the sample is
  // kept, if there is room.
  bool PutInFirstPass(const Epoch& epoch, uint32_t index, Generation generation,
                      const Sample& sample) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string id_;
  SourceChecks source_checks_;
  mutable absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Empty until `shard` is filled in.
  std::optional<SourceShard> shard_ ABSL_GUARDED_BY(mu_);
  StageOptions options_ ABSL_GUARDED_BY(mu_);
  // If false, samples were checked when the stage was built.
  std::atomic<bool> sizes_vary_{false};
  std::shared_ptr<SampleStore> store_ ABSL_GUARDED_BY(mu_);
  // Null until the first epoch. Destroyed before `store_`.
  std::shared_ptr<Job> job_ ABSL_GUARDED_BY(mu_);
  absl::Status end_error_ ABSL_GUARDED_BY(mu_);
  // What the checkpoints of restored iterators said. It outlives them, because
  // `repeat` and `concatenate` drop the iterators that they made for a restore.
  enum class Told { kNothing, kLost, kPosition };
  Told told_ ABSL_GUARDED_BY(mu_) = Told::kNothing;
  // The rest of a restored epoch, for the iterator that begins next.
  std::optional<EpochPosition> rest_ ABSL_GUARDED_BY(mu_);
  // A restore may set it back.
  uint64_t next_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  // The highest epoch that was begun.
  uint64_t last_begun_ ABSL_GUARDED_BY(mu_) = 0;
  // The epochs that iterators are in.
  std::vector<BegunEpoch> epochs_ ABSL_GUARDED_BY(mu_);
  // By epoch.
  std::vector<std::shared_ptr<EpochCounters>> counters_ ABSL_GUARDED_BY(mu_);

  // Made when both the number of samples and how many of them fit are known: at
  // once for samples of fixed size; otherwise after the first whole pass, or
  // after incomplete passes that together had every sample. Until then every
  // epoch prepares every sample.
  std::shared_ptr<const Schedule> schedule_ ABSL_GUARDED_BY(mu_);
  // Used under a limit, until `schedule_` is made.
  FirstPassSelection fitting_;
};

}  // namespace refurbish_tf
