// What the jobs that use one store do together: they keep the same samples,
// hand each other those that are not kept, and prepare none twice.
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
#include "refurbish_tf/cc/store/cache_store.h"

namespace refurbish_tf {

// How long a step of training waits for a process that writes the settings:
// the beginning and the end of an epoch, and a restore. (Building a stage waits
// longer.)
inline constexpr std::chrono::milliseconds kPatienceOfAStep(500);
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(1);

// Every store makes its own. This one is of a store that no other job uses: its
// job agrees with itself. Thread-safe.
class Cooperation {
 public:
  // What is the same for all jobs on a store. `num_samples` is below 0 while
  // unknown.
  struct Terms {
    ScheduleOptions options;
    int64_t num_samples;
    std::optional<SourceShard> shard;  // Empty while unknown.
  };

  virtual ~Cooperation() = default;

  // Of a store that was filled when the source was divided into another number
  // of shards: notes that it is this shard's from now on, and removes the
  // samples that are others'. The rest and the schedule stay. Does nothing if
  // the store does not fit for other reasons, which `Agree` tells. Fails if a
  // job is at work on it, or if some samples are kept and others not: then the
  // schedule of the former shards does not say which the new ones keep.
  // `num_kept`: by the stage. Does I/O.
  virtual absl::Status TakeOver(const Terms& /*terms*/,
                                std::optional<uint32_t> /*num_kept*/) {
    return absl::OkStatus();
  }

  // The schedule that others have agreed on for as many samples, or for any
  // number if that is unknown. Null if there is none, or if no stage can have
  // written what is there: anybody can, with a right checksum.
  virtual std::shared_ptr<const Schedule> Agreed(const Terms& /*terms*/) {
    return nullptr;
  }

  // Compares the terms of a stage with those of the others. Returns `schedule`,
  // or, if that is null, the one that others have begun, if any. Does I/O, and
  // may wait for another process for as long as `patience`.
  virtual absl::StatusOr<std::shared_ptr<const Schedule>> Agree(
      const Terms& /*terms*/, std::shared_ptr<const Schedule> schedule,
      std::chrono::milliseconds /*patience*/) {
    return schedule;
  }

  // Notes another schedule than the one agreed on, for later runs: a checkpoint
  // of another number of shards had it. Does I/O.
  virtual absl::Status AgreeAnew(const Terms& /*terms*/,
                                 const Schedule& /*schedule*/) {
    return absl::OkStatus();
  }

  // As `Agree`, for the elements of a source, which `cached` keeps: there the
  // reuse factor is a word, so that neither takes the other's store. Fails,
  // too, if the store was filled from a source of another length or shard.
  virtual absl::Status AgreeOnElements(int64_t /*num_elements*/,
                                       const std::string& /*shard*/) {
    return absl::OkStatus();
  }

  // Compares settings with those that the store was written under, adds the
  // missing ones, and returns all.
  virtual absl::StatusOr<Settings> AgreeOn(const Settings& /*settings*/,
                                           bool /*replace*/) {
    return NotOnDisk();
  }

  // Rows of numbers of each job, for people to see.
  virtual absl::StatusOr<std::vector<NamedNumbers>> LivingJobs() {
    return NotOnDisk();
  }

  // Makes the stage a job. The store must outlive it. Does I/O.
  virtual absl::StatusOr<std::shared_ptr<Job>> Join(double /*reuse_factor*/) {
    return std::make_shared<Job>();
  }
  // Makes room for so many elements that are kept without a job, so that no put
  // need do it.
  virtual void MakeRoomFor(uint64_t /*num_elements*/) {}

  // Sets the bytes of the samples in transit, each of `sample_bytes`, or -1 if
  // they vary. If others have the store open, what they have agreed on stays.
  // Does I/O.
  virtual absl::Status PlanTransit(int64_t /*bytes*/,
                                   int64_t /*sample_bytes*/) {
    return absl::OkStatus();
  }
  virtual int64_t num_in_transit() { return 0; }

  // For a checkpoint: the store's id, and one after the last position of its
  // ring that the job may have used.
  struct Place {
    int64_t store_id = 0;
    int64_t ring_head = 0;
  };
  virtual Place place() { return {}; }

  // The error of a stage that is given a store with samples of unknown origin.
  static absl::Status SamplesPutByHand() {
    return absl::FailedPreconditionError(
        "This CacheStore holds samples that were put into it by hand, and it is "
        "not known whether they are what partial_fn would return. Clear it "
        "first, or give the stage a CacheStore of its own.");
  }

 private:
  static absl::Status NotOnDisk() {
    return absl::InvalidArgumentError("This CacheStore is not on disk.");
  }
};

}  // namespace refurbish_tf
