// The state of a refurbish stage, shared by the copies of its dataset op and by all
// their iterators.
#ifndef REFURBISH_TF_CC_STAGE_STAGE_H_
#define REFURBISH_TF_CC_STAGE_STAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/schedule/schedule.h"
#include "refurbish_tf/cc/stage/epoch.h"
#include "refurbish_tf/cc/stage/fitting_samples.h"
#include "refurbish_tf/cc/stage/saved_epoch.h"
#include "refurbish_tf/cc/stage/shared_use.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

struct StageOptions {
  ScheduleOptions schedule;
  int64_t num_samples = kUnknownSamples;
  int64_t sample_bytes = -1;  // -1 when samples differ in size.
  bool random_access = false;  // Of the source; else it is a stream.
  // Whether the seeds are not the user's, so that those of a checkpoint may take
  // their place.
  bool any_seed = false;
  // What runs the functions, for who asks.
  bool partial_inline = true;
  bool final_inline = true;
};

// Found again by its name.
//
// Lock order: `mu_`, then those of `UsedGenerations` and of the store. What takes
// time is done without `mu_`: files, other processes, what is put into the store.
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

  // What went wrong at the end of an epoch, once, for the next one to fail with:
  // whoever knows the number of elements, as Keras does, never asks for the end, and
  // drops what a `prefetch` has read there.
  void KeepEndError(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);

  // What a checkpoint of an iterator says that has not begun an epoch, or has
  // ended one.
  SavedEpoch Save() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the stage to where it was when the checkpoint was saved, and resumes its
  // epoch, if it had begun one; else returns null. Iterators that are under way
  // go on with their epochs, and nothing is taken from them. Fails, and changes
  // nothing, when the checkpoint is of another pipeline or damaged.
  //
  // A stage that was not given a seed takes that of the checkpoint. What it has
  // kept was prepared with another, so it is dropped; hence no iterator may be
  // under way then.
  absl::StatusOr<std::shared_ptr<Epoch>> Restore(const SavedEpoch& saved)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps a sample that has been prepared in `epoch`, if it is to be kept.
  absl::Status Keep(const Epoch& epoch, uint32_t index, Generation generation,
                    const Sample& sample)
      ABSL_LOCKS_EXCLUDED(mu_);

  int64_t num_samples() const ABSL_LOCKS_EXCLUDED(mu_);
  // A checkpoint may have brought another one than was given.
  uint64_t order_seed() const ABSL_LOCKS_EXCLUDED(mu_);
  // By epoch.
  std::vector<std::shared_ptr<const EpochCounters>> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_);
  // What `rtf.describe` tells. Numbers of samples are kUnknownSamples while unknown.
  NamedNumbers Describe() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What an epoch is made of, which takes time proportional to the number of
  // samples, and so is made without the lock.
  struct EpochParts {
    uint64_t number;
    StageOptions options;
    std::shared_ptr<const Schedule> schedule;
    std::shared_ptr<SampleStore> store;
    std::shared_ptr<SharedUse> shared;
    std::shared_ptr<EpochCounters> counters;
    std::shared_ptr<void> alive;
  };
  struct BegunEpoch {
    uint64_t number;
    std::weak_ptr<void> alive;
  };
  // `scheduled`: by the schedule, if there is one.
  EpochParts BeginEpoch(uint64_t number, bool scheduled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Epoch> MakeEpoch(EpochParts parts) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the checkpoint's seeds are ours, or may be.
  absl::Status CheckSeeds(const SavedEpoch& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeSeeds(const SavedEpoch& saved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes what a rewrite of the source has changed, as its random access may be lost.
  // Nothing of a stage that is still to be configured.
  std::optional<absl::Status> Reconfigure(const StageOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stage can go on where the checkpoint was saved.
  absl::Status CheckFits(const SavedEpoch& saved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The schedule, if it is known by now.
  static std::shared_ptr<const Schedule> MakeSchedule(
      const StageOptions& options, int64_t max_bytes);
  // Takes it, unless there is one.
  void TakeSchedule(std::shared_ptr<const Schedule> schedule)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Becomes a job on a store on disk, unless it is one.
  absl::Status JoinOthers() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the schedule that another job has begun meanwhile, if so.
  absl::Status TakeOthersSchedule() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckLength(int64_t num_samples) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the store, for the newest epoch.
  void CountBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool NewerEpochIsAlive(uint64_t number) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string id_;
  mutable absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Empty until `shard` is filled in.
  std::optional<std::string> shards_ ABSL_GUARDED_BY(mu_);
  StageOptions options_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SampleStore> store_ ABSL_GUARDED_BY(mu_);
  // Null until the first epoch, and on a store of our own. Before `store_` goes.
  std::shared_ptr<SharedUse> shared_ ABSL_GUARDED_BY(mu_);
  absl::Status end_error_ ABSL_GUARDED_BY(mu_);
  // A restore may set it back.
  uint64_t next_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  // The highest of all epochs that were begun.
  uint64_t last_begun_ ABSL_GUARDED_BY(mu_) = 0;
  // Those that iterators are in.
  std::vector<BegunEpoch> epochs_ ABSL_GUARDED_BY(mu_);
  // By epoch.
  std::vector<std::shared_ptr<EpochCounters>> counters_ ABSL_GUARDED_BY(mu_);

  // Made when both the number of samples and how many of them the store can
  // hold are known: at once for samples of fixed size, else after the first
  // whole pass. Until then every epoch prepares every sample.
  std::shared_ptr<const Schedule> schedule_ ABSL_GUARDED_BY(mu_);
  // Before that, under a limit.
  FittingSamples fitting_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_STAGE_H_
