// How the room of a limited cache store is divided between the samples that are
// kept and those in transit from one job to another.
#pragma once

#include <cstdint>
#include <optional>

#include "refurbish_tf/cc/plan/schedule.h"

namespace refurbish_tf {

// What the division depends on. It is the same for all jobs on a store.
struct RoomOptions {
  ScheduleOptions schedule;
  int64_t num_samples;   // Below 0 while unknown.
  int64_t sample_bytes;  // Of a sample in the store; below 0 if sizes vary.
  int64_t max_bytes;     // Of the store, see `RoomOfShard`, or kUnlimited.
  bool random_access;    // Whether the source has it.
  bool shared;           // Whether other jobs may use the samples.
};

// A shard's part of a store's `max_bytes`. If the variable LOCAL_WORLD_SIZE,
// which torchrun sets, does not say how many processes this machine has, all
// shards are assumed to use the store.
int64_t RoomOfShard(int64_t max_bytes, int64_t num_shards);

// Whether the job uses the ring. Jobs with the paper's baseline policies do
// not, even if others do.
inline bool MayShare(const RoomOptions& options) {
  return options.shared && options.schedule.eviction == Eviction::kBalanced &&
         options.schedule.shuffle == Shuffle::kCacheAware;
}

// How many samples are kept, if that can be known before they are prepared. All
// are kept if they fit. Otherwise the ring gets room for a fiftieth of all
// samples, or for as many as jobs may have under way if that is more. With r =
// 1 the job itself gains nothing from keeping samples, so the ring gets all the
// room, except for a stream, which cannot choose what it prepares.
std::optional<uint32_t> NumKept(const RoomOptions& options);

// The bytes of the ring, in addition to what `schedule` keeps (null while
// unknown). The schedule may know the number of samples from other jobs when
// the source does not.
int64_t TransitBytes(const RoomOptions& options, const Schedule* schedule);

}  // namespace refurbish_tf
