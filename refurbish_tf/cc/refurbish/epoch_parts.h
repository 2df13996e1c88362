// What an epoch is made from, and what comes at the places of its order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/cooperation/job.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

// The counts of an epoch, which outlive it: `EpochStats` in stats.py.
struct EpochCounters : Counters {
  Count fresh{this, "fresh"};
  Count cached{this, "cached"};
  Count from_other_jobs{this, "from_other_jobs"};
  Count evicted{this, "evicted"};
  Count missing{this, "missing"};
  Count bytes{this, "bytes"};
  Count fresh_wait_nanos{this, "fresh_wait_nanos"};
  Count store_wait_nanos{this, "store_wait_nanos"};
};

struct EpochParts {
  uint64_t number = 0;
  uint64_t seed = 0;
  Shard shard;  // Which samples of the whole source these are.
  // Keeps alive what the order refers to. Null if every sample is prepared.
  std::shared_ptr<const Schedule> schedule;
  bool random_access = false;  // Of the source.
  std::shared_ptr<SampleStore> store;
  std::shared_ptr<Job> job;  // Goes before `store`.
  uint64_t num_begun = 0;    // By the job.
  bool hands_on = false;     // As `JobPlan::hands_on`.
  std::shared_ptr<EpochCounters> counters;
  // Tells the stage that the epoch still exists, and what it takes that grows
  // with the number of samples.
  std::shared_ptr<std::atomic<int64_t>> alive;
};

// How many are decided, and claimed, at once from a store in memory.
inline constexpr size_t kPlacesAtOnce = 16;

struct Place {
  enum class From {
    kStore,    // `sample`, already taken from the store.
    kReading,  // To be read from a store on disk.
    kSource,   // To be read from the source, as its next one.
  };
  From from = From::kSource;
  // Empty for `kSource` on a stream, until it has been read.
  std::optional<uint32_t> index;
  Sample sample;
  WantedSample wanted;           // Of `kReading`.
  int64_t bytes_ahead = 0;       // As counted in `Epoch::bytes_ahead_`.
  bool from_other_jobs = false;  // Another process prepared it.
  bool missing = false;    // Prepared although the schedule expects it cached.
  bool new_input = false;  // The source is first read from its start again.
};

// What to do at the current position of a stream.
struct Advance {
  int64_t pass_over = 0;  // This many elements are not wanted,
  bool wanted = false;    // the one after them is, ...
  uint32_t index = 0;     // ... and has this index,
  bool at_end = false;    // or the stream should end after them.
};

}  // namespace refurbish_tf
