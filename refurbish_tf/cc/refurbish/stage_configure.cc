// Configuring a stage: its settings, store and schedule.
#include <memory>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {

RoomOptions Stage::RoomOf(const StageOptions& options,
                          const std::optional<SourceShard>& shard,
                          SampleStore& store) {
  // Shards divide the room, and have no samples in common.
  const bool shared = store.store().shared();
  const int64_t shards = shared && shard.has_value() ? shard->num_sharing() : 1;
  return {options.schedule,      options.num_samples,
          options.sample_bytes,  RoomOfShard(store.store().max_bytes(), shards),
          options.random_access, shared && shards == 1};
}

std::optional<uint32_t> Stage::NumKept(const StageOptions& options,
                                       const std::optional<SourceShard>& shard,
                                       SampleStore& store) {
  RoomOptions room = RoomOf(options, shard, store);
  const int64_t shards = shard.has_value() ? shard->num_sharing() : 1;
  if (shards == 1 || !store.store().shared()) {
    return refurbish_tf::NumKept(room);
  }
  // Either all shards keep all of their samples, or all keep the same number,
  // below the size of the smallest shard.
  room.num_samples = (shard->whole + shards - 1) / shards;
  const std::optional<uint32_t> kept = refurbish_tf::NumKept(room);
  if (!kept.has_value()) return kept;
  if (*kept == room.num_samples) return options.num_samples;
  return std::min<int64_t>(*kept,
                           std::max(shard->whole / shards, int64_t{1}) - 1);
}

absl::Status Stage::SetShard(const SourceShard& shard) {
  absl::MutexLock lock(&mu_);
  if (!shard_.has_value()) shard_ = shard;
  if (shard_->names == shard.names) return absl::OkStatus();
  const auto name = [](const std::string& which) {
    return which.empty() ? std::string("the whole source")
                         : absl::StrCat("shard ", which, " of the source");
  };
  return FailedPrecondition(
      "A refurbish stage that is in use on ", name(shard_->names),
      " was also built on ", name(shard.names),
      ". A sample is identified by its position, so the two cannot share cached "
      "samples. Run each worker of a tf.data service in its own process.");
}

absl::Status Stage::Configure(const StageOptions& options,
                              std::shared_ptr<SampleStore> store,
                              const SampleTypes& types) {
  std::optional<SourceShard> shard;
  {
    absl::MutexLock lock(&mu_);
    const std::optional<absl::Status> configured = Reconfigure(options);
    if (configured.has_value()) return *configured;
    shard = shard_;
  }
  const int64_t max_bytes = RoomOf(options, shard, *store).max_bytes;
  const bool limited = max_bytes != kUnlimited;
  if (options.num_samples > MostSamples()) {
    return InvalidArgument(
        "The source has ", options.num_samples,
        " elements; refurbish takes at most ", MostSamples(),
        ", the number for which this machine has memory. If the source repeats, "
        "for example with Grain's .repeat(), put .repeat() after refurbish "
        "instead. Otherwise use a machine with more memory, or several shards.");
  }
  if (limited && options.sample_bytes > max_bytes) {
    return InvalidArgument(
        "A partially augmented sample takes ", options.sample_bytes,
        " bytes, more than max_bytes=", max_bytes, " of the CacheStore",
        max_bytes < store->store().max_bytes() ? " for each shard" : "",
        ", so no sample would fit. Raise max_bytes to hold many samples, or use "
        "r=1 without a store, which keeps none.");
  }
  const int64_t whole =
      WholeOf(shard.value_or(SourceShard()), options.num_samples);
  // Seeds include a sample's number in the whole source, as 32 bits.
  if (whole > static_cast<int64_t>(kMaxSamples)) {
    return InvalidArgument(
        "The source has ", whole,
        " elements in all shards together; refurbish takes at most ",
        kMaxSamples,
        ". Divide it with take and skip, and use one stage for each part.");
  }
  const SampleStore::Limits limits = store->limits();
  if (whole > limits.samples) {
    return InvalidArgument(
        "The source has ", whole,
        " elements; a cache store on disk takes at most ", limits.samples,
        ", in all shards together. Divide it with take and skip, and use one "
        "stage and one store for each part, or keep the samples in memory.");
  }
  if (options.sample_bytes > limits.bytes) {
    return InvalidArgument(
        "A partially augmented sample takes ", options.sample_bytes,
        " bytes; a cache store on disk takes samples of at most ", limits.bytes,
        ". Keep them in memory with store=None, or make them smaller.");
  }
  RTF_RETURN_IF_ERROR(store->Reserve(id_, weak_from_this(), types));
  Cooperation& jobs = store->cooperation();
  const Cooperation::Terms terms = TermsOf(options, shard);
  RTF_ASSIGN_OR_RETURN(
      std::shared_ptr<const Schedule> schedule,
      jobs.Agree(terms, MakeSchedule(options, shard, *store), kPatience));
  RTF_RETURN_IF_ERROR(jobs.PlanTransit(
      TransitBytes(RoomOf(options, shard, *store), schedule.get()),
      options.sample_bytes));
  absl::MutexLock lock(&mu_);
  // Another thread may have configured the stage since.
  const std::optional<absl::Status> configured = Reconfigure(options);
  if (configured.has_value()) return *configured;
  options_ = options;
  sizes_vary_ = options.sample_bytes < 0;
  store_ = std::move(store);
  AdoptSchedule(std::move(schedule));
  configured_ = true;
  return absl::OkStatus();
}

std::shared_ptr<const Schedule> Stage::MakeSchedule(
    const StageOptions& options, const std::optional<SourceShard>& shard,
    SampleStore& store) {
  const std::optional<uint32_t> num_kept = NumKept(options, shard, store);
  if (!num_kept.has_value()) return nullptr;
  // A schedule that other jobs have agreed on is kept, if its samples fit.
  std::shared_ptr<const Schedule> earlier =
      store.cooperation().Agreed(TermsOf(options, shard));
  if (earlier != nullptr &&
      (*num_kept == options.num_samples ||
       (options.sample_bytes > 0 &&
        earlier->capacity() <=
            RoomOf(options, shard, store).max_bytes / options.sample_bytes))) {
    return earlier;
  }
  return std::make_shared<Schedule>(options.schedule, options.num_samples,
                                    *num_kept);
}

std::optional<absl::Status> Stage::Reconfigure(const StageOptions& options) {
  const bool length_became_known = options.num_samples != kUnknownSamples &&
                                   options_.num_samples == kUnknownSamples &&
                                   counters_.empty();
  if (!configured_ || length_became_known) return std::nullopt;
  // TensorFlow may have fused `map` and `batch`, which loses random access.
  // Until the shard is filled in, that cannot be seen.
  options_.random_access &=
      options.random_access || options.num_samples == kUnknownSamples;
  if (options.num_samples == kUnknownSamples ||
      options_.num_samples == kUnknownSamples ||
      options.num_samples == options_.num_samples) {
    return absl::OkStatus();
  }
  return FailedPrecondition(
      "A refurbish stage was built on a source of ", options_.num_samples,
      " elements, which a later rewrite of the pipeline changed to ",
      options.num_samples,
      ". Shard before the stage, source.shard(n, i).refurbish(...), and set "
      "experimental_distribute.auto_shard_policy to OFF.");
}

}  // namespace refurbish_tf
