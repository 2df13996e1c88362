// The state of a refurbish stage that is the same for all epochs: the settings,
// the seeds, the schedule, the store, and the number of the next epoch. The
// copies of the stage's dataset op and all their iterators share it.
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

// TensorFlow rebuilds a dataset when it rewrites a graph. The rebuilt dataset
// finds its stage by the stage's id. A worker of a tf.data service makes the
// stage from the graph, in its own process.
//
// Lock order: `mu_`, then the lock of the job or `FirstPassSelection`, then the
// store's lock. Nothing accesses files, waits for other processes or puts
// samples while it holds `mu_`.
class Stage : public std::enable_shared_from_this<Stage> {
 public:
  static std::shared_ptr<Stage> GetOrCreate(const std::string& id);

  explicit Stage(std::string id) : id_(std::move(id)) {}

  const std::string& id() const { return id_; }

  // Called before `Configure`, with the shard of the source that the graph
  // shows. Fails if the stage was given another one before, because samples are
  // numbered from 0 in each shard.
  absl::Status SetShard(const SourceShard& shard) ABSL_LOCKS_EXCLUDED(mu_);

  // Called for each dataset object of the stage. The first call counts, unless
  // a later one is the first that knows the number of samples and the stage has
  // not been used yet: with SHARD_HINT, tf.data first makes a dataset whose
  // shard is not filled in.
  absl::Status Configure(const StageOptions& options,
                         std::shared_ptr<SampleStore> store,
                         const SampleTypes& types) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::shared_ptr<Epoch>> StartEpoch() ABSL_LOCKS_EXCLUDED(mu_);

  // Called when an iterator has read `epoch` to its end.
  absl::Status EndEpoch(const Epoch& epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // Called when an iterator of `epoch` was destroyed before its end.
  void LeaveEpoch(const Epoch& epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes an error at the end of an epoch, which the next `StartEpoch` returns,
  // once. Otherwise it could be lost: a consumer that knows the number of
  // elements, such as Keras, never asks for the end, and drops what a
  // `prefetch` has read there.
  void NoteEndError(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    end_error_ = error;
  }

  // Called when a restored checkpoint lacks the stage's position, because
  // TensorFlow's `batch` drops the iterator at the end of an epoch. Unless
  // `KeepPosition` or `Restore` gives the position, the next epoch is an error.
  void NoteLostPosition() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (told_ != Told::kPosition) told_ = Told::kLost;
  }

  // Sets the position that counts after a restore, because the restored
  // iterators know only their own epochs, may have begun the next one, or may
  // be missing. If `next_epoch` is negative, the next epoch is an error.
  void KeepPosition(int64_t next_epoch) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    told_ = next_epoch < 0 ? Told::kLost : Told::kPosition;
    next_epoch_ = std::max<int64_t>(next_epoch_, next_epoch);
  }

  // The position of a stage that is in no epoch.
  EpochPosition Save() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the stage to a position. If the position is in an epoch, the iterator
  // that begins next yields the rest of it. Running iterators end their epochs
  // undisturbed. Fails, and changes nothing, if the position is damaged or was
  // saved by another pipeline.
  //
  // A stage that was given no seed adopts the saved one. It then drops the
  // samples that it has kept, which were prepared with another seed, so no
  // iterator may be running. A position in an epoch is also refused while an
  // iterator is in one, because that iterator might take the rest.
  absl::Status Restore(const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);
  // Like `Restore`, for an iterator that yields the rest itself. Null if the
  // position is in no epoch.
  absl::StatusOr<std::shared_ptr<Epoch>> RestoreAndResume(
      const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);

  // Puts a sample that was prepared in `epoch` where it is used again: into the
  // store, the ring for other jobs, or nowhere. `source_sum`: the checksum of
  // the source's element from which the sample was prepared, or 0 if it came
  // from the shared level.
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
  // The `order_seed` that was given or restored.
  uint64_t order_seed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return *options_.schedule.order_seed;
  }
  // The counts of each epoch.
  std::vector<std::shared_ptr<const EpochCounters>> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_);
  // How often the schedule evicts a sample before its `epoch`-th epoch. While
  // there is no schedule, assumes that all samples are kept, and that there are
  // as many as possible if their number is unknown.
  absl::StatusOr<int64_t> GenerationOf(int64_t index, int64_t epoch) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // For `rtf.describe`. Numbers of samples may be kUnknownSamples.
  NamedNumbers Describe() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct BegunEpoch {
    uint64_t number;
    std::weak_ptr<std::atomic<int64_t>> alive;  // Counts its bytes.
  };
  // Returns what the epoch is made from. An epoch takes memory proportional to
  // the number of samples, so it is made without the lock. `scheduled`: whether
  // to follow the schedule, if there is one.
  EpochParts BeginEpoch(uint64_t number, bool scheduled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SetTo(const EpochPosition& saved) ABSL_LOCKS_EXCLUDED(mu_);
  // Resumes the epoch in `rest_`. Null if there is none.
  std::shared_ptr<Epoch> ResumeRest() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Epoch> MakeEpoch(EpochParts parts) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails unless the checkpoint's seeds are the stage's or may be adopted.
  absl::Status CheckSeeds(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AdoptSeeds(const EpochPosition& saved)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes what a rewrite of the pipeline has changed, such as a loss of random
  // access. Empty if the stage is still to be configured.
  std::optional<absl::Status> Reconfigure(const StageOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the position was saved with another number of shards.
  bool IsMoved(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the position is for other samples: with another number of shards,
  // for all workers or, between two epochs, for a shard of another size.
  bool IsOfOthers(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // If `IsOfOthers` is true: fails if the stage cannot continue from `saved`.
  absl::Status CheckOthers(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The part of a joined position that is about the stage's own samples.
  EpochPosition OwnPart(const EpochPosition& joined) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stage keeps its own order instead of the saved order, because
  // each shard may have its own order.
  bool KeepsOrder(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes stored samples of workers whose position was lost. These samples
  // are yielded again, although they may have had all their uses.
  void ForgetLost(const EpochPosition& saved, SampleStore& store)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `HasSchedule`: whether the stage already follows the saved schedule.
  // `SavedSchedule`: the saved schedule if this shard can follow it, otherwise
  // a new one. Null if the stage begins without a schedule.
  bool HasSchedule(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const Schedule> SavedSchedule(
      const EpochPosition& saved) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stage can continue where the checkpoint was saved.
  absl::Status CheckFits(const EpochPosition& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Maps samples to their numbers in the whole source.
  Shard numbering() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return shard_.has_value() ? shard_->numbering() : Shard();
  }
  static Cooperation::Terms TermsOf(const StageOptions& options,
                                    const std::optional<SourceShard>& shard) {
    return {options.schedule, options.num_samples, shard};
  }
  static RoomOptions RoomOf(const StageOptions& options,
                            const std::optional<SourceShard>& shard,
                            SampleStore& store);
  // Null while that is unknown.
  static std::optional<uint32_t> NumKept(
      const StageOptions& options, const std::optional<SourceShard>& shard,
      SampleStore& store);
  // Null while the number of samples, or how many are kept, is unknown.
  static std::shared_ptr<const Schedule> MakeSchedule(
      const StageOptions& options, const std::optional<SourceShard>& shard,
      SampleStore& store);
  // Does nothing if there already is a schedule.
  void AdoptSchedule(std::shared_ptr<const Schedule> schedule)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the stage a job on its store, if it is not one yet.
  absl::Status JoinOthers() ABSL_LOCKS_EXCLUDED(mu_);
  // If there is no schedule yet, adopts the one that other jobs have begun or,
  // if they have none, `schedule` (may be null), which they then follow.
  absl::Status Agree(std::shared_ptr<const Schedule> schedule)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Begins the schedule. Under a limit, `fitting_` must have had every sample.
  absl::Status BeginSchedule(int64_t num_samples) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckLength(int64_t num_samples) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes the bytes of the store in the counts of the newest epoch.
  void CountBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How many epochs with at least this number have an iterator.
  int64_t NumAlive(uint64_t least = 0) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The bytes of the stage and its epochs that grow with the number of samples.
  int64_t BytesBesideStore() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `PutPrepared` for an epoch that began without a schedule. Returns whether
  // the sample is kept, as far as there is room.
  bool PutInFirstPass(const Epoch& epoch, uint32_t index, Generation generation,
                      const Sample& sample) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string id_;
  SourceChecks source_checks_;
  mutable absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Empty until tf.data has filled in `shard`.
  std::optional<SourceShard> shard_ ABSL_GUARDED_BY(mu_);
  StageOptions options_ ABSL_GUARDED_BY(mu_);
  // If false, `Configure` has checked the size of all samples.
  std::atomic<bool> sizes_vary_{false};
  std::shared_ptr<SampleStore> store_ ABSL_GUARDED_BY(mu_);
  // Null until the first epoch. Destroyed before `store_`.
  std::shared_ptr<Job> job_ ABSL_GUARDED_BY(mu_);
  absl::Status end_error_ ABSL_GUARDED_BY(mu_);
  // What the checkpoints of restored iterators said about the position. The
  // stage notes this, because `repeat` and `concatenate` drop the iterators
  // that they made for a restore.
  enum class Told { kNothing, kLost, kPosition };
  Told told_ ABSL_GUARDED_BY(mu_) = Told::kNothing;
  // The rest of a restored epoch, for the iterator that begins next.
  std::optional<EpochPosition> rest_ ABSL_GUARDED_BY(mu_);
  // The number of the next epoch. A restore may set it back.
  uint64_t next_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  // The highest epoch that was begun.
  uint64_t last_begun_ ABSL_GUARDED_BY(mu_) = 0;
  // The epochs that iterators are in.
  std::vector<BegunEpoch> epochs_ ABSL_GUARDED_BY(mu_);
  // The counts of each epoch.
  std::vector<std::shared_ptr<EpochCounters>> counters_ ABSL_GUARDED_BY(mu_);

  // Made when both the number of samples and how many of them fit are known:
  // when the stage is built, if samples have a fixed size; otherwise after the
  // first whole pass, or after incomplete passes that together had every
  // sample. Until then every epoch prepares every sample.
  std::shared_ptr<const Schedule> schedule_ ABSL_GUARDED_BY(mu_);
  // Chooses what is kept under a limit, until `schedule_` is made.
  FirstPassSelection fitting_;
};

}  // namespace refurbish_tf
