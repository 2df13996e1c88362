// A stage as one of the jobs on a store: what it may use, what it prepares
// itself, and what it hands on. These classes are for a job that is alone,
// which uses what its own schedule wants. Those in `shared/` are for several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/store/cache_store.h"

namespace refurbish_tf {

// What a job knows of one of its epochs.
struct JobPlan {
  uint64_t number = 0;
  // How many epochs the job had begun then (`Job::BeginEpoch`).
  uint64_t num_begun = 0;
  // Null while the number of samples is unknown. It must outlive the JobEpoch.
  const EpochSchedule* schedule = nullptr;
  // What number a sample has in the store.
  Shard keys;
  // Whether samples that are not kept may be handed from job to job.
  bool hands_on = false;
};

// An epoch of a job. For one thread at a time, but for what is said to be
// thread-safe.
class JobEpoch {
 public:
  explicit JobEpoch(const JobPlan& plan) : plan_(plan) {}
  virtual ~JobEpoch() = default;

  // Continues an epoch, of which so many samples were handed out, by a walk
  // that is at the next place.
  virtual void Resume(const OrderWalk& /*walk*/, uint32_t /*num_handed_out*/) {}
  // Some decisions follow. What others do is asked once for all of them.
  virtual void BeginDecisions() {}
  // Whether others are at work that hand on what is not kept.
  virtual bool OthersHandOn() { return false; }

  // Which generations of the sample may be used. `own`: what the schedule
  // alone says. Thread-safe.
  virtual GenerationRange Wanted(uint32_t /*index*/, Generation own) const {
    return {own, own};
  }
  // Counts a use of what was found in the store, or in the ring. False if that
  // may not be used again. Thread-safe.
  virtual bool Use(uint32_t /*index*/, Generation /*found*/, bool /*in_ring*/) {
    return true;
  }
  // Claims the sample's preparation and decides its generation. False if
  // another job is preparing it; never with `also_claimed`.
  virtual bool Claim(uint32_t /*index*/, bool /*also_claimed*/) { return true; }
  // The generation that was decided. Thread-safe.
  virtual Generation Claimed(uint32_t index) const {
    return OwnGeneration(index);
  }
  // Whether to keep, or to hand on, a sample that the job does not use again.
  // Thread-safe.
  virtual bool KeepsForOthers(uint32_t /*index*/) const { return false; }
  virtual bool HandsOnNow(uint32_t /*index*/) const { return false; }
  // `count` samples were handed out.
  virtual void NoteHandedOut(uint32_t /*count*/) {}

  // Samples that are not kept, where they are handed on. Any of them may come
  // at any of their places. There are always as many that are needed as places
  // for them: not walked, and owed, less those asked ahead.

  virtual bool HandsOn(uint32_t /*index*/) const { return false; }
  // What comes at a place of theirs.
  struct Unkept {
    // Empty: what a stream was asked for ahead.
    std::optional<uint32_t> index;
    // If it is in the ring: where, and its generation. If not, it was claimed.
    std::optional<uint64_t> position = std::nullopt;
    Generation generation = 0;
  };
  using Needs = std::function<bool(uint32_t index)>;
  // Has a value while a sample that is handed on is needed.
  virtual std::optional<Unkept> NextUnkept(const Needs& /*needs*/) {
    return std::nullopt;
  }
  // A stream has come to a sample before the walk was at a place for it. The
  // next such place is for what the stream yields.
  virtual void ClaimAhead(uint32_t /*index*/) {}
  // What was found in the ring was gone when it was read: the sample is needed
  // again, and its place is owed. It comes before the next place of the order.
  virtual void GiveBack(uint32_t /*index*/) {}
  // Whether a place was owed, which is not any longer.
  virtual bool TakeOwed() { return false; }

 protected:
  // What the schedule alone says.
  Generation OwnGeneration(uint32_t index) const {
    return plan_.schedule == nullptr ? plan_.number
                                     : plan_.schedule->Generation(index);
  }

  const JobPlan plan_;
};

// Thread-safe.
class Job {
 public:
  virtual ~Job() = default;

  // Whether no other job uses the store.
  virtual bool alone() const { return true; }
  // The number of the first epoch.
  virtual uint64_t BeginFirstEpoch() { return 0; }
  // Begins an epoch. Returns its number among all that were begun, where that
  // matters.
  virtual uint64_t BeginEpoch(uint64_t /*number*/) { return 0; }
  // The rest of `BeginEpoch`, which may take time. The job must outlive it.
  virtual std::unique_ptr<JobEpoch> InEpoch(const JobPlan& plan) {
    return std::make_unique<JobEpoch>(plan);
  }
  // After a restore, epochs before this one yield again what they did: nothing
  // newer than the schedule wants is used, nor what is in the ring before this
  // position, as the job may have used it.
  virtual void Restore(uint64_t /*exact_before*/, uint64_t /*ring_from*/) {}
  // What it takes that grows with the number of samples.
  virtual int64_t bytes() const { return 0; }
};

}  // namespace refurbish_tf
