// Saving a stage in a checkpoint, and restoring it.
#include <algorithm>
#include <memory>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "tensorflow/core/platform/logging.h"

namespace refurbish_tf {
namespace {

// The error for a checkpoint that does not fit the pipeline.
absl::Status OtherPipeline(const char* what, const absl::AlphaNum& given,
                           const absl::AlphaNum& saved) {
  return InvalidArgument(
      "The checkpoint was saved by another pipeline: ", what,
      " of refurbish is ", given, ", but was ", saved,
      " when the checkpoint was saved. Build the pipeline as it was then, or "
      "start the epoch over without this part of the checkpoint.");
}

template <class Policy>
absl::Status CheckPolicy(const Policies<Policy>& policies, Policy given,
                         int64_t number) {
  const auto saved = static_cast<Policy>(number);
  return saved == given ? absl::OkStatus()
                        : OtherPipeline(policies.kind, policies.NameOf(given),
                                        policies.NameOf(saved));
}

}  // namespace

EpochPosition Stage::Save() const {
  absl::MutexLock lock(&mu_);
  EpochPosition saved;
  // Until the rest of a restored epoch is begun, the position is that rest.
  if (rest_.has_value()) saved = *rest_;
  saved.seed = static_cast<int64_t>(options_.schedule.seed);
  saved.order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  saved.reuse_factor = options_.schedule.reuse_factor;
  saved.next_epoch = next_epoch_;
  saved.eviction = static_cast<int64_t>(options_.schedule.eviction);
  saved.shuffle = static_cast<int64_t>(options_.schedule.shuffle);
  if (shard_.has_value()) {
    saved.num_shards = shard_->num_shards;
    saved.whole = shard_->whole;
    saved.shard = numbering().index;
    saved.schedule_shards = shard_->shard.has_value() ? shard_->num_shards : 0;
  }
  if (store_ != nullptr) {
    const Cooperation::Place place = store_->cooperation().place();
    saved.store_id = place.store_id;
    saved.ring_head = place.ring_head;
  }
  if (schedule_ != nullptr && (!saved.begun || saved.scheduled)) {
    saved.SetSchedule(*schedule_, numbering().count);
  }
  return saved;
}

bool Stage::HasSchedule(const EpochPosition& saved) const {
  if (schedule_ == nullptr || schedule_->origin() != saved.origin) return false;
  return saved.schedule_shards == 0 ||
         saved.schedule_shards ==
             int64_t{schedule_->ShardsThen(numbering().count)};
}

bool Stage::IsMoved(const EpochPosition& saved) const {
  return saved.num_shards != 0 && shard_.has_value() &&
         saved.num_shards != shard_->num_shards;
}

bool Stage::IsOfOthers(const EpochPosition& saved) const {
  if (saved.joined || IsMoved(saved)) return true;
  return !saved.begun && saved.whole >= 0 && shard_.has_value() &&
         saved.whole == shard_->whole && saved.num_samples != kUnknownSamples &&
         saved.num_samples != options_.num_samples;
}

bool Stage::KeepsOrder(const EpochPosition& saved) const {
  return IsOfOthers(saved) || (!saved.begun && !options_.any_seed &&
                               shard_.has_value() && shard_->num_shards > 1);
}

absl::Status Stage::CheckOthers(const EpochPosition& saved) const {
  const auto refused = [&](const std::string& why) {
    return InvalidArgument("The position was saved when the source had ",
                           saved.num_shards,
                           saved.num_shards == 1 ? " shard" : " shards",
                           ", and now it has ", shard_->num_shards, ". ", why);
  };
  if (saved.begun && !saved.joined) {
    return refused(
        "In the middle of an epoch the positions of all workers are needed: "
        "join them with rtf.EpochPosition.joined(...), and restore the result "
        "in each worker.");
  }
  if ((saved.schedule_shards == 0 || !shard_->shard.has_value()) &&
      (saved.joined || IsMoved(saved))) {
    return refused(
        "It is not known which samples a shard has. Shard directly before "
        "refurbish, source.shard(n, i).refurbish(...), not the file names; or "
        "begin with the first epoch.");
  }
  if (saved.whole >= 0 && shard_->whole >= 0 && saved.whole != shard_->whole) {
    return refused(absl::StrCat(
        "But all shards together had ", saved.whole, " samples, and now have ",
        shard_->whole,
        ". Divide the same samples, for example after take(n) with an n that "
        "both numbers divide."));
  }
  return absl::OkStatus();
}

EpochPosition Stage::OwnPart(const EpochPosition& joined) const {
  EpochPosition own = joined;
  const Shard shard = numbering();
  const auto all = joined.yielded.vec<uint8_t>();
  const uint64_t end = 8 * static_cast<uint64_t>(all.size());
  YieldedSamples yielded;
  own.num_samples = options_.num_samples;
  if (own.num_samples != kUnknownSamples) yielded.Resize(own.num_samples);
  for (uint64_t i = 0; shard.InWhole(i) < end; ++i) {
    const uint64_t in_whole = shard.InWhole(i);
    if (all(in_whole / 8) >> in_whole % 8 & 1) yielded.Note(i);
  }
  own.yielded = yielded.bits();
  own.joined = false;
  return own;
}

std::shared_ptr<const Schedule> Stage::SavedSchedule(
    const EpochPosition& saved) const {
  const bool own_size = IsOfOthers(saved);
  const bool moved = IsMoved(saved);
  if (!saved.scheduled && !moved) return nullptr;
  const bool follows_own = saved.schedule_shards == 0 ||
                           saved.schedule_shards == int64_t{numbering().count};
  const std::optional<uint32_t> num_kept =
      own_size ? NumKept(options_, shard_, *store_)
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
  // If not every sample is kept, the former schedule does not determine which
  // ones the new shard keeps. If the length of the whole source is unknown,
  // that schedule cannot be followed either. So a new one begins, and all
  // samples of its first epoch are fresh.
  const bool stays = keeps_all && follows_own;
  return std::make_shared<Schedule>(
      options_.schedule, own_size ? options_.num_samples : saved.num_samples,
      *num_kept,
      !moved || stays ? saved.origin
      : saved.begun   ? saved.number
                      : saved.next_epoch);
}

absl::Status Stage::CheckSeeds(const EpochPosition& saved) const {
  const auto seed = static_cast<int64_t>(options_.schedule.seed);
  const auto order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  if (saved.seed == seed &&
      (saved.order_seed == order_seed || KeepsOrder(saved))) {
    return absl::OkStatus();
  }
  // A shared level has samples of this seed, so only the order may change.
  if (!options_.any_seed || (options_.level != nullptr && saved.seed != seed)) {
    return saved.seed != seed
               ? OtherPipeline("seed", seed, saved.seed)
               : OtherPipeline("order_seed", order_seed, saved.order_seed);
  }
  if (NumAlive() == 0) return absl::OkStatus();
  return FailedPrecondition(
      "The checkpoint was saved by a refurbish stage with seed ", saved.seed,
      ". This stage has no seed and would use that one, but an iterator of "
      "this pipeline, perhaps the restored one, has already started an epoch. "
      "Restore before the first element is read and drop other iterators, or "
      "give the stage seed=",
      saved.seed, ".");
}

void Stage::AdoptSeeds(const EpochPosition& saved) {
  const auto seed = static_cast<uint64_t>(saved.seed);
  const uint64_t order_seed = KeepsOrder(saved)
                                  ? *options_.schedule.order_seed
                                  : static_cast<uint64_t>(saved.order_seed);
  if (seed == options_.schedule.seed &&
      order_seed == *options_.schedule.order_seed) {
    return;
  }
  if (seed != options_.schedule.seed) {
    store_->store().Clear();
    fitting_.Clear();
  }
  options_.schedule.seed = seed;
  options_.schedule.order_seed = order_seed;
  schedule_ = MakeSchedule(options_, shard_, *store_);
}

absl::Status Stage::CheckFits(const EpochPosition& saved) const {
  RTF_RETURN_IF_ERROR(CheckSaved(saved, options_.num_samples));
  if (saved.reuse_factor != options_.schedule.reuse_factor) {
    return OtherPipeline("r", options_.schedule.reuse_factor,
                         saved.reuse_factor);
  }
  const ScheduleOptions& own = options_.schedule;
  RTF_RETURN_IF_ERROR(CheckPolicy(kEvictions, own.eviction, saved.eviction));
  RTF_RETURN_IF_ERROR(CheckPolicy(kShuffles, own.shuffle, saved.shuffle));
  RTF_RETURN_IF_ERROR(CheckSeeds(saved));
  if (!shard_.has_value() && saved.num_shards != 0) {
    return FailedPrecondition(
        "The checkpoint was restored before it is known which shard of the "
        "source refurbish has: tf.data fills in SHARD_HINT when the dataset is "
        "distributed. Restore after that, or shard with numbers, "
        "source.shard(n, i).");
  }
  if (IsOfOthers(saved)) return CheckOthers(saved);
  if (saved.num_samples != kUnknownSamples &&
      options_.num_samples != kUnknownSamples &&
      saved.num_samples != options_.num_samples) {
    return OtherPipeline("num_samples", options_.num_samples,
                         saved.num_samples);
  }
  if (saved.scheduled && schedule_ != nullptr &&
      saved.num_kept != schedule_->capacity()) {
    return OtherPipeline("the number of samples that the store can keep",
                         schedule_->capacity(), saved.num_kept);
  }
  return absl::OkStatus();
}

absl::Status Stage::Restore(const EpochPosition& saved) {
  if (saved.begun) {
    absl::MutexLock lock(&mu_);
    if (NumAlive() > 0) {
      return FailedPrecondition(
          "A position in the middle of an epoch was restored, but an iterator "
          "of this pipeline has already started an epoch and might take the "
          "rest. Delete that iterator first, or restore before you make one.");
    }
  }
  return SetTo(saved);
}

absl::Status Stage::SetTo(const EpochPosition& saved) {
  {
    absl::MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(CheckFits(saved));
  }
  RTF_RETURN_IF_ERROR(JoinOthers());
  // The schedule that a store on disk must record for later runs, or null.
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<SampleStore> store;
  Cooperation::Terms terms;
  {
    absl::MutexLock lock(&mu_);
    // Checked again, because another thread may have begun an epoch since.
    RTF_RETURN_IF_ERROR(CheckFits(saved));
    AdoptSeeds(saved);
    const bool moved = IsMoved(saved);
    if (moved || (saved.scheduled && !HasSchedule(saved))) {
      schedule_ = SavedSchedule(saved);
      if (schedule_ != nullptr) {
        options_.num_samples = schedule_->num_samples();
      }
    }
    // `ring_head` counts only for the store where it was saved: the job has
    // used nothing in the ring of another store.
    const int64_t id = store_->cooperation().place().store_id;
    job_->Restore(next_epoch_, saved.store_id == id ? saved.ring_head : 0);
    next_epoch_ = saved.next_epoch;
    if (told_ == Told::kLost) told_ = Told::kNothing;
    end_error_ = absl::OkStatus();
    rest_.reset();
    if (saved.begun) {
      rest_ = saved.joined ? OwnPart(saved) : saved;
      rest_->scheduled |= moved && schedule_ != nullptr;
    }
    store = store_;
    if (schedule_ != nullptr && (moved || schedule_->moved().has_value())) {
      schedule = schedule_;
      terms = TermsOf(options_, shard_);
    }
  }
  ForgetLost(saved, *store);
  if (schedule == nullptr) return absl::OkStatus();
  const absl::Status noted = store->cooperation().AgreeAnew(terms, *schedule);
  // Training continues, but a later run without this checkpoint follows another
  // schedule.
  if (!noted.ok()) LOG(WARNING) << noted.message();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::RestoreAndResume(
    const EpochPosition& saved) {
  RTF_RETURN_IF_ERROR(SetTo(saved));
  if (!saved.begun) return nullptr;
  std::shared_ptr<Epoch> epoch = ResumeRest();
  if (epoch != nullptr) return epoch;
  return FailedPrecondition(
      "While an iterator of refurbish was restored, another one started and "
      "took the rest of the epoch. Restore before other threads read the "
      "pipeline.");
}

std::shared_ptr<Epoch> Stage::ResumeRest() {
  EpochPosition rest;
  EpochParts parts;
  {
    absl::MutexLock lock(&mu_);
    if (!rest_.has_value()) return nullptr;
    rest = *std::exchange(rest_, std::nullopt);
    parts = BeginEpoch(rest.number, rest.scheduled);
  }
  std::shared_ptr<Epoch> epoch = MakeEpoch(std::move(parts));
  epoch->Resume(rest);
  return epoch;
}

void Stage::ForgetLost(const EpochPosition& saved, SampleStore& store) {
  const auto lost = saved.lost_shards.vec<int64_t>();
  if (!saved.joined || lost.size() == 0) return;
  Shard shard;
  int64_t num_samples;
  {
    absl::MutexLock lock(&mu_);
    shard = numbering();
    num_samples = options_.num_samples;
  }
  if (num_samples == kUnknownSamples) return store.store().Clear();
  const Shard keys = store.Keys(shard);
  for (int64_t i = 0; i < num_samples; ++i) {
    const int64_t former = shard.InWhole(i) % saved.num_shards;
    if (std::find(lost.data(), lost.data() + lost.size(), former) !=
        lost.data() + lost.size()) {
      store.store().Remove(keys.InWhole(i), /*evict=*/false);
    }
  }
}

}  // namespace refurbish_tf
