// Saving a stage in a checkpoint, and restoring it.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "tensorflow/core/platform/logging.h"

namespace refurbish_tf {
namespace {

template <class Policy>
absl::Status CheckPolicy(const Policies<Policy>& policies, Policy given,
                         int64_t number) {
  const auto saved = static_cast<Policy>(number);
  return saved == given ? absl::OkStatus()
                        : OtherPipeline(policies.kind, policies.NameOf(given),
                                        policies.NameOf(saved));
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
  if (shard_.has_value()) {
    saved.num_shards = shard_->num_shards;
    saved.whole = shard_->whole;
    saved.schedule_shards = shard_->shard.has_value() ? shard_->num_shards : 0;
  }
  if (store_ != nullptr) {
    const Cooperation::Place place = store_->cooperation().place();
    saved.store_id = place.store_id;
    saved.ring_head = place.ring_head;
  }
  if (schedule_ != nullptr) {
    saved.scheduled = true;
    saved.num_samples = schedule_->num_samples();
    saved.num_kept = schedule_->capacity();
    saved.origin = schedule_->origin();
    if (saved.schedule_shards > 0) {
      saved.schedule_shards = schedule_->ShardsThen(numbering().count);
    }
  }
  return saved;
}

bool Stage::HasSchedule(const SavedEpoch& saved) const {
  if (schedule_ == nullptr || schedule_->origin() != saved.origin) return false;
  return saved.schedule_shards == 0 ||
         saved.schedule_shards ==
             int64_t{schedule_->ShardsThen(numbering().count)};
}

bool Stage::IsMoved(const SavedEpoch& saved) const {
  return saved.num_shards != 0 && shard_.has_value() &&
         saved.num_shards != shard_->num_shards;
}

bool Stage::HasOtherSize(const SavedEpoch& saved) const {
  return !saved.begun && !IsMoved(saved) && saved.whole >= 0 &&
         shard_.has_value() && saved.whole == shard_->whole &&
         saved.num_samples != kUnknownSamples &&
         saved.num_samples != options_.num_samples;
}

bool Stage::KeepsOrder(const SavedEpoch& saved) const {
  return IsMoved(saved) || (!saved.begun && !options_.any_seed &&
                            shard_.has_value() && shard_->num_shards > 1);
}

absl::Status Stage::CheckMoved(const SavedEpoch& saved) const {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The checkpoint was saved when the source had ", saved.num_shards,
        saved.num_shards == 1 ? " shard" : " shards", ", and now it has ",
        shard_->num_shards, ". ", why));
  };
  if (saved.begun) {
    return refused(
        "In the middle of an epoch it cannot be told which samples of the new "
        "shards were handed out. Restore it with the former number, and change "
        "the number with a checkpoint that was saved between two epochs.");
  }
  if (saved.schedule_shards == 0 || !shard_->shard.has_value()) {
    return refused(
        "It is not known which samples a shard has. Shard next to refurbish, "
        "by source.shard(n, i).refurbish(...), and not file names; or begin "
        "with the first epoch.");
  }
  if (saved.whole >= 0 && shard_->whole >= 0 && saved.whole != shard_->whole) {
    return refused(absl::StrCat(
        "But all shards together had ", saved.whole, " samples, and now have ",
        shard_->whole,
        ". Divide the same samples, as by take(n) with an n that both numbers "
        "divide."));
  }
  return absl::OkStatus();
}

std::shared_ptr<const Schedule> Stage::SavedSchedule(
    const SavedEpoch& saved) const {
  const bool moved = IsMoved(saved);
  if (!saved.scheduled && !moved) return nullptr;
  const bool own_size = moved || HasOtherSize(saved);
  const bool follows_own = saved.schedule_shards == 0 ||
                           saved.schedule_shards == int64_t{numbering().count};
  const std::optional<uint32_t> num_kept =
      own_size ? NumKept(RoomOf(options_, *store_))
               : static_cast<uint32_t>(saved.num_kept);
  const bool keeps_all =
      saved.scheduled && saved.num_kept == saved.num_samples &&
      num_kept == (own_size ? options_.num_samples : saved.num_samples);
  if (!follows_own && keeps_all) {
    const std::optional<MovedShard> followed =
        MovedFrom(*shard_, saved.schedule_shards);
    if (followed.has_value()) {
      return std::make_shared<Schedule>(options_.schedule, *followed,
                                        saved.origin);
    }
  }
  if (!num_kept.has_value()) return nullptr;
  // Where not every sample is kept, the former schedule does not say which the
  // new shard keeps; nor can it be followed where the length of the whole
  // source is unknown. A new one begins, in which every sample is fresh.
  const bool stays = keeps_all && follows_own;
  return std::make_shared<Schedule>(
      options_.schedule, own_size ? options_.num_samples : saved.num_samples,
      *num_kept, moved && !stays ? saved.next_epoch : saved.origin);
}

absl::Status Stage::CheckSeeds(const SavedEpoch& saved) const {
  const auto seed = static_cast<int64_t>(options_.schedule.seed);
  const auto order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  if (saved.seed == seed &&
      (saved.order_seed == order_seed || KeepsOrder(saved))) {
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
  const uint64_t order_seed = KeepsOrder(saved)
                                  ? *options_.schedule.order_seed
                                  : static_cast<uint64_t>(saved.order_seed);
  if (seed == options_.schedule.seed &&
      order_seed == *options_.schedule.order_seed) {
    return;
  }
  options_.schedule.seed = seed;
  options_.schedule.order_seed = order_seed;
  store_->store().Clear();
  fitting_.Clear();
  schedule_ = MakeSchedule(options_, shard_, *store_);
}

absl::Status Stage::CheckFits(const SavedEpoch& saved) const {
  RTF_RETURN_IF_ERROR(CheckSaved(saved, options_.num_samples));
  if (saved.reuse_factor != options_.schedule.reuse_factor) {
    return OtherPipeline("r", absl::StrCat(options_.schedule.reuse_factor),
                         absl::StrCat(saved.reuse_factor));
  }
  const ScheduleOptions& own = options_.schedule;
  RTF_RETURN_IF_ERROR(CheckPolicy(kEvictions, own.eviction, saved.eviction));
  RTF_RETURN_IF_ERROR(CheckPolicy(kShuffles, own.shuffle, saved.shuffle));
  RTF_RETURN_IF_ERROR(CheckSeeds(saved));
  if (!shard_.has_value() && saved.num_shards != 0) {
    return absl::FailedPreconditionError(
        "The checkpoint was restored before it is known which shard of the "
        "source refurbish has: tf.data fills in SHARD_HINT where the dataset "
        "is distributed. Restore after that, or shard by numbers, as by "
        "source.shard(n, i).");
  }
  if (IsMoved(saved)) return CheckMoved(saved);
  if (HasOtherSize(saved)) return absl::OkStatus();
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
    RTF_RETURN_IF_ERROR(CheckFits(saved));
  }
  RTF_RETURN_IF_ERROR(JoinOthers());
  ToMake to_make;
  // What a store on disk is to note, or null.
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<SampleStore> store;
  Cooperation::Terms terms;
  {
    absl::MutexLock lock(&mu_);
    // Another thread may have begun an epoch meanwhile.
    RTF_RETURN_IF_ERROR(CheckFits(saved));
    AdoptSeeds(saved);
    if (IsMoved(saved) || (saved.scheduled && !HasSchedule(saved))) {
      schedule_ = SavedSchedule(saved);
      if (schedule_ != nullptr) {
        options_.num_samples = schedule_->num_samples();
      }
    }
    // In another store there is nothing that the job has used.
    const int64_t id = store_->cooperation().place().store_id;
    job_->Restore(next_epoch_, saved.store_id == id ? saved.ring_head : 0);
    next_epoch_ = saved.next_epoch;
    restored_ = true;
    end_error_ = absl::OkStatus();
    if (schedule_ != nullptr &&
        (IsMoved(saved) || schedule_->moved().has_value())) {
      store = store_;
      schedule = schedule_;
      terms = TermsOf(options_, shard_);
    }
    if (saved.begun) to_make = BeginEpoch(saved.number, saved.scheduled);
  }
  if (schedule != nullptr) {
    const absl::Status noted = store->cooperation().AgreeAnew(terms, *schedule);
    // A later run without this checkpoint then follows another schedule.
    if (!noted.ok()) LOG(WARNING) << noted.message();
  }
  if (!saved.begun) return nullptr;
  std::shared_ptr<Epoch> epoch = MakeEpoch(std::move(to_make));
  epoch->Resume(saved);
  return epoch;
}

}  // namespace refurbish_tf
