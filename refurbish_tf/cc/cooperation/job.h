// A stage as one of the jobs on a store: what it may use, what it prepares
// itself, and what it passes to other jobs. These classes are for a job that is
// alone and follows its own schedule; those in `shared/` are for several jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// What a job knows about one of its epochs.
struct JobPlan {
  uint64_t number = 0;
  // How many epochs the job has begun, including this one (`Job::BeginEpoch`).
  uint64_t num_begun = 0;
  // Null while the number of samples is unknown. It must outlive the JobEpoch.
  const EpochSchedule* schedule = nullptr;
  // Maps samples to their numbers in the store.
  Shard keys;
  // Whether jobs may pass each other samples that are not kept.
  bool hands_on = false;
};

// An epoch of a job. For one thread at a time, except for the methods that are
// said to be thread-safe.
class JobEpoch {
 public:
  explicit JobEpoch(const JobPlan& plan) : plan_(plan) {}
  virtual ~JobEpoch() = default;

  // Continues an epoch after `num_handed_out` samples were handed over. `walk`
  // is at the place after them.
  virtual void Resume(const OrderWalk& /*walk*/, uint32_t /*num_handed_out*/) {}
  // Called before a group of decisions, which share one check for other jobs.
  virtual void BeginDecisions() {}
  // Whether other jobs are running that pass on samples that are not kept.
  virtual bool OthersHandOn() { return false; }

  // Which generations of the sample may be used, given the schedule's
  // generation, `own`. Thread-safe.
  virtual GenerationRange Wanted(uint32_t /*index*/, Generation own) const {
    return {own, own};
  }
  // Counts a use of a generation that was found in the store or in the ring.
  // False if it may not be used again. Thread-safe.
  virtual bool Use(uint32_t /*index*/, Generation /*found*/, bool /*in_ring*/) {
    return true;
  }
  // Claims the preparation of a sample and decides its generation. False if
  // another job is preparing it, unless `also_claimed`.
  virtual bool Claim(uint32_t /*index*/, bool /*also_claimed*/) { return true; }
  // The generation that `Claim` decided. Thread-safe.
  virtual Generation Claimed(uint32_t index) const {
    return OwnGeneration(index);
  }
  // Replaces the claimed generation by one that was found, if that may be used.
  // Thread-safe.
  virtual bool Adopt(uint32_t index, Generation found) {
    return found == Claimed(index);
  }
  // Whether to keep a sample, or put it into the ring, just for other
  // jobs. Thread-safe.
  virtual bool KeepsForOthers(uint32_t /*index*/) const { return false; }
  virtual bool ShouldPublish(uint32_t /*index*/) const { return false; }
  // Called when `count` samples of the epoch have been handed over.
  virtual void NoteHandedOut(uint32_t /*count*/) {}

  // The methods below are for unkept samples, if jobs pass them on. Any such
  // sample may come at the place of another, so the epoch needs as many as it
  // has places left: those that the walk has not reached, plus those owed,
  // minus those claimed ahead.

  virtual bool InRing(uint32_t /*index*/) const { return false; }
  // What to use at the place of an unkept sample.
  struct Unkept {
    // Empty for the next sample of a stream that has claimed ahead.
    std::optional<uint32_t> index;
    // Only for a sample in the ring. Others are claimed and must be prepared.
    std::optional<uint64_t> position = std::nullopt;
    Generation generation = 0;
  };
  using Needs = std::function<bool(uint32_t index)>;
  // The next unkept sample that the epoch `needs`. Empty if it needs none.
  virtual std::optional<Unkept> NextUnkept(const Needs& /*needs*/) {
    return std::nullopt;
  }
  // Called when a stream yields a sample before the walk has reached a place
  // for it. The next place of an unkept sample is then left to the stream.
  virtual void ClaimAhead(uint32_t /*index*/) {}
  // Called when a sample of the ring was replaced before it was read. It is
  // needed again, and a place is owed, which comes before the next one.
  virtual void GiveBack(uint32_t /*index*/) {}
  // Uses up a place that is owed. Returns false if no place is owed.
  virtual bool TakeReturnedPlace() { return false; }

 protected:
  // The generation that the schedule wants.
  Generation OwnGeneration(uint32_t index) const {
    return plan_.schedule == nullptr ? plan_.number
                                     : plan_.schedule->Generation(index);
  }

  const JobPlan plan_;
};

// A stage as a user of its store, across epochs. The base class is for a stage
// that is alone on its store. Thread-safe.
class Job {
 public:
  virtual ~Job() = default;

  // Whether no other job uses the store.
  virtual bool alone() const { return true; }
  // The number of the first epoch.
  virtual uint64_t BeginFirstEpoch() { return 0; }
  // Begins an epoch. Returns how many this job has begun; only `SharedJob`
  // counts them.
  virtual uint64_t BeginEpoch(uint64_t /*number*/) { return 0; }
  // The slow part of beginning an epoch. The job must outlive the epoch.
  virtual std::unique_ptr<JobEpoch> InEpoch(const JobPlan& plan) {
    return std::make_unique<JobEpoch>(plan);
  }
  // Called after a restore. Epochs before `exact_before` must repeat the same
  // samples, so they use no newer generations than the schedule's. No sample
  // before `ring_from` in the ring is used: the job may have used it already.
  virtual void Restore(uint64_t /*exact_before*/, uint64_t /*ring_from*/) {}
  // The bytes of memory that grow with the number of samples.
  virtual int64_t bytes() const { return 0; }
};

}  // namespace refurbish_tf
