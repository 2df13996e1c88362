// Which samples are prepared afresh in an epoch, and in what order fresh and
// cached ones come: balanced eviction (Lee et al., USENIX ATC 2021, section
// 5.2) and cache-aware shuffle (section 5.3), with the paper's naive baseline.
//
// Everything here is a pure function of the options, the number of samples, the
// capacity and the epoch. There is no storage and there are no threads; a const
// object may be shared between threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/policies.h"
#include "refurbish_tf/cc/plan/random.h"

namespace refurbish_tf {

struct ScheduleOptions {
  uint64_t seed = 0;
  // Seeds the order of an epoch in place of `seed`.
  std::optional<uint64_t> order_seed;
  double reuse_factor = 1;  // Any real number >= 1.
  Eviction eviction = Eviction::kBalanced;
  Shuffle shuffle = Shuffle::kCacheAware;
};

inline constexpr uint64_t kMaxSamples = std::numeric_limits<uint32_t>::max();
inline constexpr int64_t kUnknownSamples = -1;
// The most samples of a stage: at most kMaxSamples, and as many as this machine
// has memory to arrange.
int64_t MostSamples();
// Epoch numbers are below it. A sample is evicted at most once an epoch, so its
// generation is at most its epoch's number: both have 32 bits, and the greatest
// value is left to mean "none".
inline constexpr uint64_t kMaxEpochs = std::numeric_limits<uint32_t>::max();

// Where a sample stands in the eviction order, before it is known how many
// samples there are: those with the smallest keys are evicted first. All keys
// of one seed differ.
uint64_t EvictionKey(uint64_t seed, uint32_t index);

// What the schedule alone says of a position in the order of an epoch.
struct Slot {
  uint32_t index;
  bool fresh;  // The schedule wants the sample prepared in this epoch.
};

class Schedule;

// Those of all eviction orders of a schedule: of the longer ones, and of those
// with one sample less, if there are such.
struct EvictionHands {
  EvictionHand longer;
  EvictionHand shorter;
};

// A shard whose samples keep the schedule that they had when the source, of
// `whole` samples, was divided into `former` shards. Every sample is kept.
struct MovedShard {
  Shard shard;
  uint32_t former = 1;
  uint64_t whole = 0;
};

// One epoch: the order of the samples and their generations. Takes four bytes a
// sample.
class EpochSchedule {
 public:
  // An epoch in which every sample is fresh and has generation `epoch`.
  static EpochSchedule AllFresh(const ScheduleOptions& options,
                                uint32_t num_samples, uint64_t epoch);

  uint64_t epoch() const { return epoch_; }
  uint32_t num_samples() const { return static_cast<uint32_t>(order_.size()); }
  uint32_t num_fresh() const { return num_fresh_; }
  // How many kept samples the epoch evicts.
  uint32_t num_evicted() const { return num_evicted_; }
  int64_t bytes() const { return 4 * order_.size() + fresh_at_.size() / 8; }

  // The sample at the `position`-th place of the epoch.
  Slot At(uint32_t position) const;

  // Takes this in place of the order: samples, and which of them are fresh.
  void SetOrder(std::vector<uint32_t> order, std::vector<bool> fresh) {
    order_ = std::move(order);
    fresh_at_ = std::move(fresh);
  }

  uint64_t Generation(uint32_t index) const;

  // Whether the content that the sample has in this epoch is used again in the
  // next one.
  bool Reused(uint32_t index) const;

  // Whether the sample is kept in the store at all.
  bool Kept(uint32_t index) const;

 private:
  friend class Schedule;

  EpochSchedule() = default;
  void Arrange(const ScheduleOptions& options);

  uint64_t epoch_ = 0;
  const Schedule* schedule_ = nullptr;  // Not owned; null when all are fresh.
  EvictionHands now_;
  EvictionHands next_;

  // Cache-aware: the fresh samples in their order, then the cached ones in
  // theirs; `At` interleaves the two. Uniform: the order itself.
  std::vector<uint32_t> order_;
  std::vector<bool> fresh_at_;  // Uniform, or `SetOrder`.
  uint32_t num_fresh_ = 0;
  uint32_t num_evicted_ = 0;
  uint32_t phase_ = 0;
};

// The schedule of a training run over `num_samples` samples of which `capacity`
// can be kept in the cache store at a time, beginning at epoch `origin`, in
// which every sample is fresh. Takes four bytes a sample, from when one of them
// is first asked for: sorting them takes time, and who makes a schedule may
// have a lock.
//
// The samples that are kept are the first `capacity` of one random permutation,
// and balanced eviction goes round them in its order, capacity / r an epoch,
// until training ends. After t epochs it has made floor(t * capacity / r)
// evictions, exactly, which gives every generation in closed form. The other
// samples are prepared in every epoch.
//
// The generation of a kept sample is `origin` plus how often it has been
// evicted; of the others, the epoch. Two generations of a sample are two
// different partially augmented samples.
//
// Between two epochs the source may be divided into another number of shards.
// Each sample then keeps its place in the eviction order of the shard that it
// was in when the schedule began, and with it its generations: a shard follows
// as many eviction orders as it has samples of former shards.
class Schedule {
 public:
  Schedule(const ScheduleOptions& options, uint32_t num_samples,
           uint32_t capacity, uint64_t origin = 0);
  Schedule(const ScheduleOptions& options, const MovedShard& moved,
           uint64_t origin);

  uint32_t num_samples() const { return num_samples_; }
  uint32_t capacity() const { return capacity_; }
  int64_t bytes() const {
    return sorted_->done ? 4 * int64_t{num_samples_} : 0;
  }
  uint64_t origin() const { return origin_; }
  // Empty if the source is divided as it was when the schedule began.
  const std::optional<MovedShard>& moved() const { return moved_; }
  // In how many shards it was divided then; `now`: in how many it is.
  uint32_t ShardsThen(uint32_t now) const {
    return moved_.has_value() ? moved_->former : now;
  }
  bool Kept(uint32_t index) const {
    return capacity_ == num_samples_ ||
           (capacity_ > 0 && position(index) < capacity_);
  }

  // `epoch` must be at least `origin`. The result refers to this object.
  EpochSchedule Epoch(uint64_t epoch) const;

 private:
  friend class EpochSchedule;

  // Of an eviction order of `length` samples.
  EvictionHand HandAt(uint64_t epoch, uint64_t length) const {
    return HandAfter(options_.eviction, epoch - origin_, length,
                     options_.reuse_factor);
  }
  EvictionHands HandsAt(uint64_t epoch) const;
  uint64_t Evictions(uint32_t index, const EvictionHands& hands) const {
    const EvictionHand& hand =
        InShorterOrder(index) ? hands.shorter : hands.longer;
    return hand.is_between() ? hand.Evictions(position(index)) : hand.rounds;
  }
  // The first of the former shards may have a sample more than the others.
  bool InShorterOrder(uint32_t index) const {
    return moved_.has_value() &&
           moved_->shard.InWhole(index) % moved_->former >=
               moved_->whole % moved_->former;
  }

  // In its eviction order.
  uint32_t position(uint32_t index) const {
    if (!sorted_->done.load(std::memory_order_acquire)) Sort();
    return sorted_->positions[index];
  }
  void Sort() const;

  struct Sorted {
    std::once_flag once;
    std::atomic<bool> done{false};
    std::vector<uint32_t> positions;  // By sample.
  };

  const ScheduleOptions options_;
  const uint32_t num_samples_;
  const uint32_t capacity_;
  const uint64_t origin_;
  const std::optional<MovedShard> moved_;
  const std::shared_ptr<Sorted> sorted_ = std::make_shared<Sorted>();
};

}  // namespace refurbish_tf
