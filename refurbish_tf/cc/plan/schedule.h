// Which samples of an epoch are fresh, and the order of fresh and cached ones:
// balanced eviction (Lee et al., USENIX ATC 2021, section 5.2), cache-aware
// shuffle (section 5.3), and the naive baselines of the paper.
//
// Everything here is a pure function of the options, the samples, the capacity,
// the origin and the epoch. Threads may share a const object.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/kept_samples.h"
#include "refurbish_tf/cc/plan/permutation.h"
#include "refurbish_tf/cc/plan/policies.h"

namespace refurbish_tf {

struct ScheduleOptions {
  uint64_t seed = 0;
  // If given, replaces `seed` for the orders of the epochs.
  std::optional<uint64_t> order_seed;
  double reuse_factor = 1;  // Any real number >= 1.
  Eviction eviction = Eviction::kBalanced;
  Shuffle shuffle = Shuffle::kCacheAware;
};

inline constexpr uint64_t kMaxSamples = std::numeric_limits<uint32_t>::max();
inline constexpr int64_t kUnknownSamples = -1;
// The most samples that a stage can have: at most kMaxSamples, and no more than
// fit into this machine's memory at `bytes_each`. The default was measured:
// what a stage and an epoch of a moved shard take for each sample.
int64_t MostSamples(int64_t bytes_each = 5);
// Epoch numbers are below this. A sample is evicted at most once an epoch, so
// its generation is at most the epoch's number. Epoch numbers and generations
// have 32 bits, and their greatest value means "none".
inline constexpr uint64_t kMaxEpochs = std::numeric_limits<uint32_t>::max();

// The schedule's plan for a position of an epoch.
struct Slot {
  uint32_t index;
  bool fresh;  // The schedule wants the sample prepared in this epoch.
  uint64_t generation = 0;
  bool reused = false;  // See `EpochSchedule::Reused`.
};

class Schedule;

// A shard whose samples keep the schedule that they had when the source, of
// `whole` samples, was divided into `former` shards. Every sample is kept.
struct MovedShard {
  Shard shard;
  uint32_t former = 1;
  uint64_t whole = 0;
};

// One epoch: the order of the samples and their generations.
class EpochSchedule {
 public:
  // An epoch in which every sample is fresh and has generation `epoch`.
  static EpochSchedule AllFresh(const ScheduleOptions& options,
                                uint32_t num_samples, uint64_t epoch);

  uint64_t epoch() const { return epoch_; }
  uint32_t num_samples() const { return num_samples_; }
  uint32_t num_fresh() const { return num_fresh_; }
  // How many kept samples the epoch evicts.
  uint32_t num_evicted() const { return num_evicted_; }
  int64_t bytes() const { return orders_[0].bytes() + orders_[1].bytes(); }

  // The plan for the `position`-th place of the epoch.
  Slot At(uint32_t position) const;

  uint64_t Generation(uint32_t index) const;

  // Whether the next epoch uses the content that the sample has in this epoch.
  bool Reused(uint32_t index) const;

  bool Kept(uint32_t index) const;

 private:
  friend class Schedule;

  // The part of a cycle (`Schedule::Hands`) to evict. It may wrap around.
  struct Evicted {
    uint32_t first = 0;
    uint32_t count = 0;
  };

  EpochSchedule() = default;
  void Arrange(const ScheduleOptions& options);

  uint64_t epoch_ = 0;
  uint32_t num_samples_ = 0;
  uint32_t num_fresh_ = 0;
  uint32_t num_evicted_ = 0;
  const Schedule* schedule_ = nullptr;  // Not owned; null when all are fresh.
  // By cycle: the eviction hands of this epoch and of the next one.
  std::array<EvictionHand, 2> now_, next_;
  std::array<Evicted, 2> evicted_;

  // Cache-aware: the orders of the fresh and of the cached samples, which `At`
  // interleaves, starting at `phase_`. Uniform: one order of all samples, in
  // which the fresh ones have the lowest numbers.
  std::array<Permutation, 2> orders_;
  bool is_uniform_ = false;
  uint32_t phase_ = 0;
};

// Walks an order, place by place.
class OrderWalk {
 public:
  explicit OrderWalk(const EpochSchedule& order) : order_(&order) {}
  // Continues an order in which the samples in `has_come` have come. Some of
  // them may have come before their places; those places then get samples whose
  // own places have passed but that have not come.
  OrderWalk(const EpochSchedule& order, std::vector<bool> has_come);

  // Must not be called after the last place.
  Slot Next();

 private:
  const EpochSchedule* order_;
  std::vector<bool> has_come_;
  uint32_t position_ = 0;
  // Every sample at a place before this one has come, or got another place.
  uint32_t passed_ = 0;
};

// The schedule of a training run over `num_samples` samples, of which
// `capacity` can be kept in the cache store at a time. It begins at epoch
// `origin`, in which every sample is fresh.
//
// Balanced eviction goes round the kept samples in the order of one random
// permutation, capacity / r per epoch, until training ends. After t epochs it
// has made exactly floor(t * capacity / r) evictions, which gives every
// generation in closed form. The other samples are prepared in every epoch.
//
// The generation of a kept sample is `origin` plus the number of its evictions;
// the generation of any other sample is the epoch's number. Two generations of
// a sample are two different partially augmented samples.
//
// Between two epochs the number of shards of the source may change. Each sample
// then keeps its place in the eviction order of the shard that it was in when
// the schedule began, and so its generations: a shard follows one eviction
// order for each former shard that its samples come from. These orders have one
// of two lengths, and orders of the same length are equal. A moved shard's
// schedule sorts its samples, which takes time and four bytes a sample.
class Schedule {
 public:
  Schedule(const ScheduleOptions& options, uint32_t num_samples,
           uint32_t capacity, uint64_t origin = 0);
  Schedule(const ScheduleOptions& options, const MovedShard& moved,
           uint64_t origin);

  uint32_t num_samples() const { return num_samples_; }
  uint32_t capacity() const { return capacity_; }
  int64_t bytes() const {
    return kept_.bytes() + by_rank_.bytes() + ranks_[0].bytes() +
           ranks_[1].bytes() + 4 * (members_[0].size() + members_[1].size());
  }
  uint64_t origin() const { return origin_; }
  // Empty if the source is divided as it was when the schedule began.
  const std::optional<MovedShard>& moved() const { return moved_; }
  // The number of shards when the schedule began. `now`: the present number.
  uint32_t ShardsThen(uint32_t now) const {
    return moved_.has_value() ? moved_->former : now;
  }
  bool Kept(uint32_t index) const {
    return capacity_ == num_samples_ || kept_.NumberOf(index) < capacity_;
  }

  // `epoch` must be at least `origin`. The result refers to this object.
  EpochSchedule Epoch(uint64_t epoch) const;
  // Equals `Epoch(epoch).Generation(index)`.
  uint64_t Generation(uint32_t index, uint64_t epoch) const {
    return GenerationOf(StandingOf(index), HandsAt(epoch), epoch);
  }

 private:
  friend class EpochSchedule;

  // The samples form two cycles: those that are kept, and the others. In a
  // moved shard, which keeps all, the second cycle has the samples of the
  // former shards that had one sample less than the first ones.
  using Hands = std::array<EvictionHand, 2>;
  struct Standing {
    int cycle;
    uint32_t rank;  // In its eviction order.
  };
  struct Member {
    uint32_t index;
    Standing standing;
  };

  bool KeepsCycle(int cycle) const { return cycle == 0 || moved_.has_value(); }
  uint32_t CycleSize(int cycle) const {
    if (moved_.has_value()) return members_[cycle].size();
    return cycle == 0 ? capacity_ : num_samples_ - capacity_;
  }
  Hands HandsAt(uint64_t epoch) const;
  Standing StandingOf(uint32_t index) const;
  Member At(int cycle, uint32_t place) const;
  // How many members of a cycle the hand has passed in its present round.
  uint32_t NumBefore(int cycle, const EvictionHand& hand) const;
  uint64_t GenerationOf(Standing standing, const Hands& hands,
                        uint64_t epoch) const {
    if (!KeepsCycle(standing.cycle)) return epoch;
    return origin_ + hands[standing.cycle].Evictions(standing.rank);
  }
  void SortMembers();

  const ScheduleOptions options_;
  const uint32_t num_samples_;
  const uint32_t capacity_;
  const uint64_t origin_;
  const std::optional<MovedShard> moved_;
  KeptSamples kept_;
  // Eviction orders: the KeptSamples number at each rank and, by cycle, the
  // rank of each number. A moved shard has only ranks (of former shards).
  Permutation by_rank_;
  std::array<Permutation, 2> ranks_;
  // The samples of a moved shard, by cycle, in eviction order.
  std::array<std::vector<uint32_t>, 2> members_;
};

}  // namespace refurbish_tf
