// Saving a stage in a checkpoint, and restoring it.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/stage/stage.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {
namespace {

// By the numbers of Eviction and Shuffle.
constexpr const char* kEvictions[] = {"balanced", "reference_count"};
constexpr const char* kShuffles[] = {"cache_aware", "uniform"};

absl::Status CheckPolicy(const char* what, const char* const* names,
                         int64_t given, int64_t saved) {
  return saved == given || saved == kUnsaved
             ? absl::OkStatus()
             : OtherPipeline(what, names[given], names[saved]);
}

}  // namespace

SavedEpoch Stage::Save() const {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved;
  saved.seed = static_cast<int64_t>(options_.schedule.seed);
  saved.order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  saved.reuse_factor = options_.schedule.reuse_factor;
  saved.next_epoch = next_epoch_;
  saved.eviction = static_cast<int64_t>(options_.schedule.eviction);
  saved.shuffle = static_cast<int64_t>(options_.schedule.shuffle);
  if (store_ != nullptr && store_->disk() != nullptr) {
    saved.store_id = static_cast<int64_t>(store_->disk()->records().store_id());
    // What was handed out was put before, so it lies before the head.
    const TransitRing* const ring = store_->disk()->transit();
    if (ring != nullptr) saved.ring_head = static_cast<int64_t>(ring->head());
  }
  if (schedule_ != nullptr) {
    saved.scheduled = true;
    saved.num_samples = schedule_->num_samples();
    saved.num_kept = schedule_->capacity();
    saved.origin = schedule_->origin();
  }
  return saved;
}

absl::Status Stage::CheckSeeds(const SavedEpoch& saved) const {
  const auto seed = static_cast<int64_t>(options_.schedule.seed);
  const auto order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  if (saved.seed == seed && saved.order_seed == order_seed) {
    return absl::OkStatus();
  }
  if (!options_.any_seed) {
    return saved.seed != seed
               ? OtherPipeline("seed", absl::StrCat(seed),
                               absl::StrCat(saved.seed))
               : OtherPipeline("order_seed", absl::StrCat(order_seed),
                               absl::StrCat(saved.order_seed));
  }
  for (const BegunEpoch& epoch : epochs_) {
    if (epoch.alive.expired()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "The checkpoint was saved by a refurbish stage with seed ", saved.seed,
        ". This stage was given none and would take that one, but another "
        "iterator is in an epoch. Drop that iterator first, or give the stage "
        "seed=",
        saved.seed, "."));
  }
  return absl::OkStatus();
}

void Stage::AdoptSeeds(const SavedEpoch& saved) {
  const auto seed = static_cast<uint64_t>(saved.seed);
  const auto order_seed = static_cast<uint64_t>(saved.order_seed);
  if (seed == options_.schedule.seed &&
      order_seed == *options_.schedule.order_seed) {
    return;
  }
  options_.schedule.seed = seed;
  options_.schedule.order_seed = order_seed;
  store_->store().Clear();
  fitting_.Clear();
  schedule_ = MakeSchedule(options_, *store_);
}

absl::Status Stage::CheckFits(const SavedEpoch& saved) const {
  absl::Status sound = CheckSaved(saved, options_.num_samples);
  if (!sound.ok()) return sound;
  if (saved.reuse_factor != options_.schedule.reuse_factor) {
    return OtherPipeline("r", absl::StrCat(options_.schedule.reuse_factor),
                         absl::StrCat(saved.reuse_factor));
  }
  const ScheduleOptions& own = options_.schedule;
  absl::Status same =
      CheckPolicy("eviction", kEvictions, static_cast<int64_t>(own.eviction),
                  saved.eviction);
  same.Update(CheckPolicy("shuffle", kShuffles,
                          static_cast<int64_t>(own.shuffle), saved.shuffle));
  same.Update(CheckSeeds(saved));
  if (!same.ok()) return same;
  if (saved.num_samples != kUnknownSamples &&
      options_.num_samples != kUnknownSamples &&
      saved.num_samples != options_.num_samples) {
    return OtherPipeline("num_samples", absl::StrCat(options_.num_samples),
                         absl::StrCat(saved.num_samples));
  }
  if (saved.scheduled && schedule_ != nullptr &&
      saved.num_kept != schedule_->capacity()) {
    return OtherPipeline("the number of samples that the store can keep",
                         absl::StrCat(schedule_->capacity()),
                         absl::StrCat(saved.num_kept));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::Restore(const SavedEpoch& saved) {
  {
    absl::MutexLock lock(&mu_);
    absl::Status fits = CheckFits(saved);
    if (!fits.ok()) return fits;
  }
  absl::Status joined = JoinOthers();
  if (!joined.ok()) return joined;
  EpochParts parts;
  {
    absl::MutexLock lock(&mu_);
    // Another thread may have begun an epoch meanwhile.
    absl::Status fits = CheckFits(saved);
    if (!fits.ok()) return fits;
    AdoptSeeds(saved);
    if (saved.scheduled &&
        (schedule_ == nullptr || schedule_->origin() != saved.origin)) {
      schedule_ = std::make_shared<Schedule>(
          options_.schedule, saved.num_samples, saved.num_kept, saved.origin);
      options_.num_samples = saved.num_samples;
    }
    if (shared_ != nullptr) {
      shared_->exact_before =
          std::max<uint64_t>(shared_->exact_before, next_epoch_);
      shared_->generations.Clear();
      // In another store there is nothing that the job has used.
      const auto id =
          static_cast<int64_t>(store_->disk()->records().store_id());
      shared_->ring_from = saved.store_id == id ? saved.ring_head : 0;
    }
    next_epoch_ = saved.next_epoch;
    end_error_ = absl::OkStatus();
    if (!saved.begun) return nullptr;
    parts = BeginEpoch(saved.number, saved.scheduled);
  }
  std::shared_ptr<Epoch> epoch = MakeEpoch(std::move(parts));
  epoch->Resume(saved);
  return epoch;
}

}  // namespace refurbish_tf
