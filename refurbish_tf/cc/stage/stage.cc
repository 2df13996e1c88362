#include "refurbish_tf/cc/stage/stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/stage/agreed_settings.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/registry.h"
#include "refurbish_tf/cc/store/samples/sample_codec.h"
#include "tensorflow/core/platform/logging.h"

namespace refurbish_tf {
std::shared_ptr<Stage> Stage::GetOrCreate(const std::string& id) {
  return Registry<Stage>::Global().GetOrCreate(
      id, [&] { return std::make_shared<Stage>(id); });
}

std::shared_ptr<Stage> Stage::Find(const std::string& id) {
  return Registry<Stage>::Global().Find(id);
}

absl::Status Stage::SetShards(const std::string& shards) {
  absl::MutexLock lock(&mu_);
  if (!shards_.has_value()) shards_ = shards;
  if (*shards_ == shards) return absl::OkStatus();
  const auto name = [](const std::string& which) {
    return which.empty() ? std::string("the whole source")
                         : absl::StrCat("shard ", which, " of the source");
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "A refurbish stage in use on ", name(*shards_), " was made for ",
      name(shards), ", too, but a sample is known by its position, so they "
      "cannot share what is cached. Let each worker of a tf.data service be a "
      "process of its own."));
}

absl::Status Stage::Configure(const StageOptions& options,
                              std::shared_ptr<SampleStore> store,
                              const tensorflow::DataTypeVector& dtypes) {
  absl::MutexLock lock(&mu_);
  const bool length_became_known =
      options.num_samples != kUnknownSamples &&
      options_.num_samples == kUnknownSamples && counters_.empty();
  if (configured_ && !length_became_known) {
    // TensorFlow may have put `map` and `batch` into one, which has none. Of a shard
    // that is not filled in it is not known.
    options_.random_access &=
        options.random_access || options.num_samples == kUnknownSamples;
    if (options.num_samples == kUnknownSamples ||
        options_.num_samples == kUnknownSamples ||
        options.num_samples == options_.num_samples) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "A refurbish stage was built on a source of ", options_.num_samples,
        " elements, which a later rewrite of the pipeline changed to ",
        options.num_samples,
        ". Shard before the stage, source.shard(n, i).refurbish(...), and set "
        "experimental_distribute.auto_shard_policy to OFF."));
  }
  const int64_t max_bytes = store->store().max_bytes();
  const bool limited = max_bytes != kUnlimited;
  if (options.num_samples > static_cast<int64_t>(kMaxSamples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The source has ", options.num_samples,
                     " elements; refurbish takes at most ", kMaxSamples,
                     ". Shard it, one stage a shard."));
  }
  if (limited && options.sample_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A partially augmented sample takes ", options.sample_bytes,
        " bytes, more than max_bytes=", max_bytes,
        " of the CacheStore, so none could be kept. Give it room for many "
        "samples, or use r=1, which keeps none."));
  }
  if (store->disk() != nullptr) {
    if (options.num_samples > static_cast<int64_t>(Index::kMaxSamples)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The source has ", options.num_samples,
          " elements; a cache store on disk takes at most ",
          Index::kMaxSamples, ". Shard it, one stage and one store a shard."));
    }
    if (options.sample_bytes > static_cast<int64_t>(kMaxRecord)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A partially augmented sample takes ", options.sample_bytes,
          " bytes; a cache store on disk takes samples of at most ", kMaxRecord,
          ". Keep them in memory with store=None, or make them smaller."));
    }
  }
  if (store->disk() == nullptr) {
    absl::Status reserved = store->Reserve(id_, weak_from_this(), dtypes);
    if (!reserved.ok()) return reserved;
  } else {
    absl::Status encodable = CheckEncodable(dtypes);
    if (!encodable.ok()) return encodable;
    absl::Status there = store->CheckDirectory();
    if (!there.ok()) return there;
  }
  options_ = options;
  store_ = std::move(store);
  MakeSchedule();
  if (store_->disk() != nullptr) {
    absl::Status agreed = AgreeWithStore();
    if (!agreed.ok()) {
      // As before this call.
      if (!configured_) store_ = nullptr;
      schedule_ = nullptr;
      options_.num_samples = kUnknownSamples;
      return agreed;
    }
  }
  configured_ = true;
  return absl::OkStatus();
}

void Stage::MakeSchedule() {
  const int64_t max_bytes = store_->store().max_bytes();
  const bool limited = max_bytes != kUnlimited;
  if (options_.num_samples == kUnknownSamples ||
      (limited && options_.sample_bytes < 0)) {
    return;
  }
  uint32_t capacity = options_.num_samples;
  if (limited && options_.sample_bytes > 0) {
    capacity = std::min(options_.num_samples, max_bytes / options_.sample_bytes);
  }
  schedule_ = std::make_shared<Schedule>(options_.schedule,
                                         options_.num_samples, capacity);
}

absl::Status Stage::AgreeWithStore() {
  if (!HasStageSettings(store_->disk()->settings()) &&
      store_->store().Stats().entries > 0) {
    return SamplesPutByHand();
  }
  absl::Status status = store_->Agree(
      StageSettings(options_.schedule, options_.num_samples, shards_.value_or(""),
                    schedule_.get()));
  // Without knowing which part of the source we are we know no schedule either.
  if (!status.ok() || schedule_ != nullptr || !shards_.has_value()) {
    return status;
  }
  schedule_ = AgreedSchedule(store_->disk()->settings(), options_.schedule);
  if (schedule_ != nullptr) options_.num_samples = schedule_->num_samples();
  return absl::OkStatus();
}

absl::Status Stage::JoinOthers() {
  if (store_->disk() == nullptr || shared_ != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SharedState::Job>> job =
      store_->disk()->Join();
  if (!job.ok()) {
    absl::Status there = store_->CheckDirectory();
    return there.ok() ? job.status() : there;
  }
  shared_ = std::make_shared<SharedUse>(options_.schedule.reuse_factor);
  shared_->job = *std::move(job);
  next_epoch_ = shared_->job->BeginFirstEpoch();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::StartEpoch() {
  EpochParts parts;
  {
    absl::MutexLock lock(&mu_);
    if (!end_error_.ok()) {
      return std::exchange(end_error_, absl::OkStatus());
    }
    absl::Status joined = JoinOthers();
    if (!joined.ok()) return joined;
    // Another job may have ended its first pass meanwhile. Whose directory was
    // deleted goes on alone.
    if (shared_ != nullptr && schedule_ == nullptr &&
        store_->CheckDirectory().ok()) {
      absl::Status agreed = AgreeWithStore();
      if (!agreed.ok()) return agreed;
    }
    // The schedule of another job may have begun later than we are, and so may our
    // own after a restore.
    if (schedule_ != nullptr) {
      next_epoch_ = std::max(next_epoch_, schedule_->origin());
    }
    if (next_epoch_ >= kMaxEpochs) {
      return absl::FailedPreconditionError(absl::StrCat(
          "refurbish has no epoch ", next_epoch_, ": they are numbered below ",
          kMaxEpochs, ". Build the stage anew, or restore an earlier checkpoint; "
          "a store on disk has to begin anew with overwrite=True."));
    }
    // The number and the schedule together: one that begins with a later epoch
    // may take its place as soon as the lock is gone.
    parts = BeginEpoch(next_epoch_++, /*scheduled=*/true);
  }
  return MakeEpoch(std::move(parts));
}

Stage::EpochParts Stage::BeginEpoch(uint64_t number, bool scheduled) {
  if (shared_ != nullptr) {
    shared_->job->BeginEpoch(number);
    if (schedule_ != nullptr) {
      store_->disk()->records().SetRanks([schedule = schedule_](uint64_t index) {
        return index < schedule->num_samples() ? schedule->Rank(index)
                                               : ~uint32_t{0};
      });
    }
  }
  last_begun_ = std::max(last_begun_, number);
  if (!counters_.empty()) {
    counters_.back()->bytes = store_->store().Stats().bytes;
  }
  counters_.push_back(std::make_shared<EpochCounters>());
  epochs_.erase(std::remove_if(
                    epochs_.begin(), epochs_.end(),
                    [](const auto& other) { return other.alive.expired(); }),
                epochs_.end());
  const auto alive = std::make_shared<char>();
  epochs_.push_back({number, alive});
  return {number, options_, scheduled ? schedule_ : nullptr,
          store_, shared_, counters_.back(), alive};
}

std::shared_ptr<Epoch> Stage::MakeEpoch(EpochParts parts) {
  std::optional<EpochSchedule> order;
  if (parts.schedule != nullptr) {
    order = parts.schedule->Epoch(parts.number);
    parts.counters->evicted = parts.schedule->NumEvicted(parts.number);
  } else if (parts.options.num_samples != kUnknownSamples) {
    order = EpochSchedule::AllFresh(parts.options.schedule,
                                    parts.options.num_samples, parts.number);
  }
  return std::make_shared<Epoch>(
      parts.number, parts.options.schedule.seed, std::move(order),
      std::move(parts.schedule), parts.options.random_access,
      std::move(parts.store), std::move(parts.shared),
      std::move(parts.counters), std::move(parts.alive));
}

SavedEpoch Stage::Save() const {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved;
  saved.seed = static_cast<int64_t>(options_.schedule.seed);
  saved.order_seed = static_cast<int64_t>(*options_.schedule.order_seed);
  saved.reuse_factor = options_.schedule.reuse_factor;
  saved.next_epoch = next_epoch_;
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
        "The checkpoint was saved by a refurbish stage with the seed ",
        saved.seed, ". This one was given none and would take it, but another "
        "iterator of it is in an epoch. Drop that one first, or give the stage "
        "seed=", saved.seed, "."));
  }
  return absl::OkStatus();
}

void Stage::TakeSeeds(const SavedEpoch& saved) {
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
  schedule_ = nullptr;
  MakeSchedule();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::Restore(const SavedEpoch& saved) {
  EpochParts parts;
  {
    absl::MutexLock lock(&mu_);
    absl::Status sound = CheckSaved(saved, options_.num_samples);
    if (!sound.ok()) return sound;
    if (saved.reuse_factor != options_.schedule.reuse_factor) {
      return OtherPipeline("r", absl::StrCat(options_.schedule.reuse_factor),
                           absl::StrCat(saved.reuse_factor));
    }
    absl::Status seeds = CheckSeeds(saved);
    if (!seeds.ok()) return seeds;
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
    absl::Status joined = JoinOthers();
    if (!joined.ok()) return joined;
    TakeSeeds(saved);
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

absl::Status Stage::EndEpoch(const Epoch& epoch) {
  const int64_t num_samples = epoch.num_samples();
  absl::MutexLock lock(&mu_);
  if (schedule_ != nullptr) {
    // Two first passes at once, of which this one ended second.
    if (num_samples == options_.num_samples) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "The source of refurbish has yielded ", num_samples,
        " elements and, to another iterator, ", options_.num_samples,
        ", so its samples cannot be told apart by position. Use a source that "
        "is the same in every epoch."));
  }
  if (num_samples == 0) {
    return absl::InvalidArgumentError(
        "The source of refurbish has no elements. Check the file names, filters "
        "and splits it is made from.");
  }
  options_.num_samples = num_samples;
  // How many fit is not known of what was read before the restore.
  if (epoch.resumed() && store_->store().max_bytes() != kUnlimited) {
    return absl::OkStatus();
  }
  const uint32_t capacity =
      fitting_.Count(options_.schedule.seed, num_samples);
  // Counted from the epoch begun last, so that no generation is used by an
  // epoch of the time before the schedule and again by one after.
  schedule_ = std::make_shared<Schedule>(options_.schedule, num_samples,
                                         capacity, last_begun_);
  if (store_->disk() != nullptr && store_->CheckDirectory().ok()) {
    absl::Status agreed = AgreeWithStore();
    if (absl::IsFailedPrecondition(agreed)) {
      // Another job has ended its first pass before us. Its schedule is as good.
      schedule_ = nullptr;
      return AgreeWithStore();
    }
    // On a full disk it is not written down; the next run begins anew.
    if (!agreed.ok()) LOG(WARNING) << agreed.message();
  }
  return absl::OkStatus();
}

void Stage::KeepEndError(const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  end_error_ = error;
}

absl::Status Stage::Keep(const Epoch& epoch, uint32_t index,
                         const Sample& sample) {
  std::shared_ptr<SampleStore> sample_store;
  std::shared_ptr<const Schedule> schedule;
  uint64_t seed;
  bool may_be_too_large, reused;
  {
    absl::MutexLock lock(&mu_);
    sample_store = store_;
    schedule = schedule_;
    seed = options_.schedule.seed;
    reused = options_.schedule.reuse_factor > 1;
    // Of samples of one size this was seen when the stage was built.
    may_be_too_large = options_.sample_bytes < 0;
  }
  CacheStore<Sample>& store = sample_store->store();
  may_be_too_large = may_be_too_large && store.max_bytes() != kUnlimited;
  if (const int64_t bytes = may_be_too_large ? sample_store->Bytes(sample) : 0;
      bytes > store.max_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The partially augmented sample ", index, " takes ", bytes,
        " bytes, more than max_bytes=", store.max_bytes(),
        " of the CacheStore. Give it room for many samples, or use r=1, which "
        "keeps none."));
  }
  if (epoch.scheduled()) {
    if (epoch.ToKeep(index)) {
      const Generation generation = epoch.PreparedGeneration(index);
      if (store.Put(index, generation, sample) == PutResult::kNewerKept &&
          !store.shared() && !NewerEpochIsAlive(epoch.number())) {
        // The stage was set back to before that one was prepared, and nobody is
        // left to use it.
        store.Remove(index);
        store.Put(index, generation, sample);
      }
    }
  } else if (schedule != nullptr) {
    // Another iterator has come to the end of its first pass meanwhile.
    if (epoch.number() == schedule->origin() && schedule->Kept(index)) {
      store.Put(index, epoch.number(), sample);
    }
  } else if (reused && store.max_bytes() == kUnlimited) {
    store.Put(index, epoch.number(), sample);
  } else if (reused) {
    fitting_.Put(seed, epoch.number(), index, sample, store);
  }
  return absl::OkStatus();
}

bool Stage::NewerEpochIsAlive(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  return std::any_of(epochs_.begin(), epochs_.end(), [&](const auto& epoch) {
    return epoch.number > number && !epoch.alive.expired();
  });
}

int64_t Stage::num_samples() const {
  absl::MutexLock lock(&mu_);
  return options_.num_samples;
}

uint64_t Stage::order_seed() const {
  absl::MutexLock lock(&mu_);
  return *options_.schedule.order_seed;
}

std::vector<EpochCounts> Stage::Counts() const {
  absl::MutexLock lock(&mu_);
  std::vector<EpochCounts> counts;
  counts.reserve(counters_.size());
  for (const auto& epoch : counters_) {
    counts.push_back({epoch->fresh, epoch->cached, epoch->evicted,
                      epoch->absent, epoch->bytes, epoch->fresh_wait_nanos,
                      epoch->store_wait_nanos});
  }
  if (!counts.empty()) counts.back().bytes = store_->store().Stats().bytes;
  return counts;
}

StageDescription Stage::Describe() const {
  absl::MutexLock lock(&mu_);
  StageDescription description;
  description.num_samples = options_.num_samples;
  if (schedule_ != nullptr) description.num_kept = schedule_->capacity();
  description.random_access = options_.random_access;
  description.seed = static_cast<int64_t>(options_.schedule.seed);
  description.order_seed =
      static_cast<int64_t>(options_.schedule.order_seed.value_or(0));
  description.partial_inline = options_.partial_inline;
  description.final_inline = options_.final_inline;
  return description;
}

}  // namespace refurbish_tf
