// What an epoch is made from, what comes at the places of its order, and what
// it has decided and noted about its samples.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/cooperation/job.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/sample_store/shared_level.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// The counts of an epoch, which outlive it. stats.py shows them as
// `EpochStats`.
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

struct StageOptions {
  ScheduleOptions schedule;
  int64_t num_samples = kUnknownSamples;
  int64_t sample_bytes = -1;           // -1 when samples differ in size.
  std::shared_ptr<SharedLevel> level;  // Null unless machines share samples.
  bool random_access = false;          // If false, the source is a stream.
  // Whether no seed was given, so that the stage may adopt a checkpoint's. With
  // a shared level, whose samples have the seed: no order_seed was given.
  bool any_seed = false;
  // Whether the functions run inline; for `Describe`.
  bool partial_inline = true;
  bool final_inline = true;
};

struct EpochParts {
  uint64_t number = 0;
  StageOptions stage;
  Shard shard;  // Which samples of the whole source it reads.
  // Keeps the order's schedule alive. Null if every sample is prepared.
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<SampleStore> store;
  std::shared_ptr<Job> job;  // Destroyed before `store`.
  uint64_t num_begun = 0;    // See `JobPlan::num_begun`.
  bool hands_on = false;     // See `JobPlan::hands_on`.
  std::shared_ptr<EpochCounters> counters;
  // Lets the stage see whether the epoch still exists, and how many of its
  // bytes grow with the number of samples.
  std::shared_ptr<std::atomic<int64_t>> alive;
};

// With a store in memory, at most this many places are decided, and claimed, at
// once.
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
  WantedSample wanted;           // For `kReading`.
  int64_t bytes_ahead = 0;       // Its part of `Epoch::bytes_ahead_`.
  bool from_other_jobs = false;  // Another process prepared it.
  // If `sample` came from the shared level: its generation.
  std::optional<Generation> from_level;
  bool missing = false;    // Prepared although the schedule expects it cached.
  bool new_input = false;  // Before it, the source starts over.
};

// What to do at the current position of a stream.
struct Advance {
  int64_t pass_over = 0;  // How many elements to skip.
  bool wanted = false;    // Whether the element after them is wanted.
  uint32_t index = 0;     // The index of that element.
  bool at_end = false;    // Whether the stream should end after them.
};

// What an epoch has decided about a sample.
enum class SampleState : uint8_t {
  // Nothing is decided yet.
  kOpen,
  // Requested from the source, which yields it to be prepared.
  kAsked,
  // Not needed from the source: it was taken from the store, is being read from
  // the store or the ring, or was already yielded.
  kFound,
  // To be looked up in the store again when the order has been walked. Until
  // then, the sample is not taken from the source.
  kDeferred,
};

// Takes two bits per sample. A sample is kOpen until its state is set.
class SampleStates {
 public:
  void Resize(uint32_t num_samples) { bytes_.resize(num_samples / 4 + 1); }
  SampleState operator[](uint32_t index) const {
    return index / 4 < bytes_.size()
               ? SampleState(bytes_[index / 4] >> 2 * (index % 4) & 3)
               : SampleState::kOpen;
  }
  void Set(uint32_t index, SampleState state) {
    if (index / 4 >= bytes_.size()) bytes_.resize(index / 4 + 1);
    uint8_t& byte = bytes_[index / 4];
    const int shift = 2 * (index % 4);
    byte = (byte & ~(3 << shift)) | static_cast<uint8_t>(state) << shift;
  }

 private:
  std::vector<uint8_t> bytes_;
};

// The reads that an epoch has noted, and how many have not ended.
class NotedReads {
 public:
  // `position`: where in the ring a sample in transit is.
  WantedSample Note(uint64_t key, GenerationRange wanted,
                    std::optional<uint64_t> position) {
    noted_.push_back({next_ticket_++, key, wanted, position});
    ++num_reading_;
    num_transit_reading_ += position.has_value();
    return noted_.back();
  }
  // The number of noted reads that were not taken yet.
  size_t size() const { return noted_.size(); }
  std::vector<WantedSample> Take() { return std::exchange(noted_, {}); }

  void End(const WantedSample& read) {
    --num_reading_;
    num_transit_reading_ -= read.position.has_value();
  }
  bool any() const { return num_reading_ > 0; }
  // Whether many reads are in progress. The limit is lower for samples in
  // transit, which may soon be replaced.
  bool many() const {
    return num_reading_ > kMostReading ||
           num_transit_reading_ > kMostTransitReading;
  }

 private:
  static constexpr int64_t kMostReading = 256;
  static constexpr int64_t kMostTransitReading = 32;

  std::vector<WantedSample> noted_;
  int64_t num_reading_ = 0;
  int64_t num_transit_reading_ = 0;
  uint64_t next_ticket_ = 0;
};

}  // namespace refurbish_tf
