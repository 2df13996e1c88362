// How the room of a limited cache store is divided between the samples that are
// kept and those in transit from one job to another.
#pragma once

#include <cstdint>
#include <optional>

#include "refurbish_tf/cc/plan/schedule.h"

namespace refurbish_tf {

// What the room depends on, the same for all jobs on a store.
struct RoomOptions {
  ScheduleOptions schedule;
  int64_t num_samples;   // Below 0 while unknown.
  int64_t sample_bytes;  // That one takes in the store; below 0 if they vary.
  int64_t max_bytes;     // Of the store, or kUnlimited.
  bool random_access;    // Of the source.
  bool shared;           // With other jobs.
};

// Whether the job takes part in the ring. The paper's baselines do not, also
// where others have agreed on one before.
bool MayShare(const RoomOptions& options);

// How many samples are kept, if that can be known before they are prepared: all
// if they fit. Else a fiftieth of all samples, or as many as jobs may have
// under way if that is more, have their room in the ring. With r = 1 keeping is
// of no use to the job itself, so all room is the ring's; but not for a stream,
// which cannot choose what it prepares.
std::optional<uint32_t> NumKept(const RoomOptions& options);

// The bytes of the ring beside what `schedule` keeps; null while that is
// unknown. The schedule knows how many samples there are, perhaps from others,
// where the source does not.
int64_t TransitBytes(const RoomOptions& options, const Schedule* schedule);

}  // namespace refurbish_tf
