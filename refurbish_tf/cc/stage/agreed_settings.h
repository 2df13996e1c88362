// The settings that a stage agrees on with a store on disk, so that all jobs
// keep the same samples there, or `cached` the same elements.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/schedule/schedule.h"
#include "refurbish_tf/cc/stage/source_shard.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

// How long a step of training waits for a process that writes the settings:
// the beginning and the end of an epoch, and a restore. (Building a stage waits
// longer.)
inline constexpr std::chrono::milliseconds kPatienceOfAStep(500);

// Whether a stage has agreed on settings with this store.
bool HasStageSettings(const Settings& settings);

// `num_samples` is below 0 while unknown, and `schedule` is null until there is
// one.
Settings StageSettings(const ScheduleOptions& options, int64_t num_samples,
                       const SourceShard& shard, const Schedule* schedule);

// Of a store that was filled when the source was divided into another number of
// shards: notes that it is this shard's from now on, and removes the samples
// that are others'. The rest and the schedule stay. Does nothing if the store
// does not fit for other reasons, which AgreeWithStore tells. Fails if a job is
// at work on it, or if some samples are kept and others not: then the schedule
// of the former shards does not say which the new ones keep. `num_kept`: by the
// stage. Does I/O.
absl::Status TakeOver(SampleStore& store, const ScheduleOptions& options,
                      int64_t num_samples, const SourceShard& shard,
                      std::optional<uint32_t> num_kept);

// The schedule that others have agreed on for as many samples, or for any
// number if `num_samples` is below 0. Null if there is none, or if no stage can
// have written what is there: anybody can, with a right checksum.
std::shared_ptr<const Schedule> AgreedSchedule(const Settings& settings,
                                               const ScheduleOptions& options,
                                               int64_t num_samples,
                                               const SourceShard& shard);

// Notes another schedule than the one agreed on, for later runs: a checkpoint
// of another number of shards had it. Does I/O.
absl::Status AgreeAnew(SampleStore& store, const ScheduleOptions& options,
                       const SourceShard& shard, const Schedule& schedule);

// Compares the settings of a stage with those of a store on disk. Returns
// `schedule`, or, if that is null, the one that others have begun, if any.
// `num_samples` as above; `shard` is nullopt while unknown. Does I/O, and may
// wait for another process for as long as `patience`.
absl::StatusOr<std::shared_ptr<const Schedule>> AgreeWithStore(
    SampleStore& store, const ScheduleOptions& options, int64_t num_samples,
    const std::optional<SourceShard>& shard,
    std::shared_ptr<const Schedule> schedule,
    std::chrono::milliseconds patience);

// The same for the elements of a source, which `cached` keeps: there the reuse
// factor is a word, so that neither takes the other's store. Fails, too, if the
// store was filled from a source of another length or shard.
absl::Status AgreeOnElements(SampleStore& store, int64_t num_elements,
                             const std::string& shard);

}  // namespace refurbish_tf
