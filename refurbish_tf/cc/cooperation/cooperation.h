// How the jobs on one store cooperate: they keep the same samples, pass each
// other the samples that are not kept, and prepare no sample twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/cooperation/job.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/plan/source_shard.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// How long to wait for a process that is writing the settings: kPatience
// while a stage is built; kPatienceOfAStep in a restore, and when an epoch
// begins or ends.
inline constexpr std::chrono::milliseconds kPatienceOfAStep(500);
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(1);

// Each store has one. The base class is for a store that no other job uses, so
// there is nothing to agree on. Thread-safe.
class Cooperation {
 public:
  // What all jobs on a store have in common. `num_samples` < 0 if unknown.
  struct Terms {
    ScheduleOptions options;
    int64_t num_samples;
    std::optional<SourceShard> shard;  // Empty while unknown.
  };

  virtual ~Cooperation() = default;

  // The schedule that other jobs have agreed on for this number of samples, or
  // for any number while it is unknown. Null if there is none, or if no stage
  // can have written it: anybody can write settings with a correct checksum.
  virtual std::shared_ptr<const Schedule> Agreed(const Terms& /*terms*/) {
    return nullptr;
  }

  // Compares the terms of a stage with those of other jobs. Returns `schedule`
  // or, if that is null, the schedule that other jobs have begun, if any. Does
  // I/O, and may wait up to `patience` for another process.
  virtual absl::StatusOr<std::shared_ptr<const Schedule>> Agree(
      const Terms& /*terms*/, std::shared_ptr<const Schedule> schedule,
      std::chrono::milliseconds /*patience*/) {
    return schedule;
  }

  // Replaces the agreed schedule by one from a checkpoint that was saved with
  // another number of shards, so that later runs follow it. Does I/O.
  virtual absl::Status AgreeAnew(const Terms& /*terms*/,
                                 const Schedule& /*schedule*/) {
    return absl::OkStatus();
  }

  // Like `Agree`, for the elements of a source that `cached` keeps. The
  // settings have a word in place of a reuse factor, so `refurbish` and
  // `cached` do not use each other's stores. Also fails if the store was filled
  // from a source of another length or another shard.
  virtual absl::Status AgreeOnElements(int64_t /*num_elements*/,
                                       const std::string& /*shard*/) {
    return absl::OkStatus();
  }

  // Compares settings with those of the store, adds those that it lacks, and
  // returns all of them. If some differ, replaces them (`replace`) or fails.
  virtual absl::StatusOr<Settings> AgreeOn(const Settings& /*settings*/,
                                           bool /*replace*/) {
    return NotOnDisk();
  }

  // Numbers for each living job, for people to read.
  virtual absl::StatusOr<std::vector<NamedNumbers>> LivingJobs() {
    return NotOnDisk();
  }

  // Registers the stage as a job. The store must outlive the job. Does I/O.
  virtual absl::StatusOr<std::shared_ptr<Job>> Join(double /*reuse_factor*/) {
    return std::make_shared<Job>();
  }
  // For `cached`, which is not a job: extends the store's index for all of its
  // elements at once, so that no put has to. (A job does this for itself.)
  virtual void MakeRoomFor(uint64_t /*num_elements*/) {}

  // Sets the size of the ring in bytes. `sample_bytes`: -1 if samples vary in
  // size. If other processes have the store open, the ring that they agreed on
  // stays. Does I/O.
  virtual absl::Status PlanTransit(int64_t /*bytes*/,
                                   int64_t /*sample_bytes*/) {
    return absl::OkStatus();
  }
  virtual int64_t num_in_transit() { return 0; }

  // For a checkpoint: the store's id, and the position after the last one in
  // its ring that the job may have used.
  struct Place {
    int64_t store_id = 0;
    int64_t ring_head = 0;
  };
  virtual Place place() { return {}; }

  // The error for a stage whose store holds samples of unknown origin.
  static absl::Status SamplesPutByHand() {
    return FailedPrecondition(
        "This CacheStore holds samples that were put into it by hand, which may "
        "not be what partial_fn would return. Clear it first, or give the stage "
        "its own CacheStore.");
  }

 private:
  static absl::Status NotOnDisk() {
    return InvalidArgument("This CacheStore is not on disk.");
  }
};

}  // namespace refurbish_tf
