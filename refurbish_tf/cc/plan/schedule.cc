#include "refurbish_tf/cc/plan/schedule.h"

#include <algorithm>
#include <numeric>

#include "refurbish_tf/cc/base/memory.h"

namespace refurbish_tf {
namespace {

// What the schedule and an epoch take while they are made, measured.
constexpr int64_t kBytesPerSample = 16;

std::vector<uint32_t> RankByEvictionKey(uint64_t seed, uint32_t num_samples) {
  std::vector<uint64_t> keys(num_samples);
  for (uint32_t i = 0; i < num_samples; ++i) keys[i] = EvictionKey(seed, i);
  std::sort(keys.begin(), keys.end());
  std::vector<uint32_t> rank(num_samples);
  for (uint32_t i = 0; i < num_samples; ++i) {
    // The lower half of a key is the index.
    rank[static_cast<uint32_t>(keys[i])] = i;
  }
  return rank;
}

std::vector<uint32_t> RanksInFormerShards(uint64_t seed,
                                          const MovedShard& moved) {
  std::vector<uint32_t> ranks(moved.shard.Size(moved.whole));
  // Former shards of one size have the same order. There are at most two sizes,
  // the larger one first.
  std::vector<uint32_t> in_former;
  for (uint32_t index = 0; index < moved.former; ++index) {
    const Shard former{index, moved.former};
    const uint64_t size = former.Size(moved.whole);
    uint64_t first = 0;
    while (first < size && first < moved.shard.count &&
           !moved.shard.Has(former.InWhole(first))) {
      ++first;
    }
    if (first >= size || first >= moved.shard.count) continue;
    if (in_former.size() != size) {
      in_former = RankByEvictionKey(seed, static_cast<uint32_t>(size));
    }
    for (uint64_t i = first; i < size; ++i) {
      const uint64_t in_whole = former.InWhole(i);
      if (!moved.shard.Has(in_whole)) continue;
      ranks[moved.shard.InShard(in_whole)] = in_former[i];
    }
  }
  return ranks;
}

}  // namespace

int64_t MostSamples() {
  return std::min(static_cast<int64_t>(kMaxSamples),
                  ReadMemory().limit / kBytesPerSample);
}

uint64_t EvictionKey(uint64_t seed, uint32_t index) {
  const uint64_t word = Mix(DeriveKey(seed, Purpose::kEviction) ^ index);
  return (word & 0xffffffff00000000ULL) | index;
}

void EpochSchedule::Arrange(const ScheduleOptions& options) {
  const uint64_t seed = options.order_seed.value_or(options.seed);
  RandomStream random(DeriveKey(seed, Purpose::kOrder, epoch_));
  if (options.shuffle == Shuffle::kCacheAware) {
    ShuffleRange(order_.begin(), order_.begin() + num_fresh_, random);
    ShuffleRange(order_.begin() + num_fresh_, order_.end(), random);
    RandomStream phase(DeriveKey(seed, Purpose::kPhase, epoch_));
    phase_ = phase.Below(num_samples());
    return;
  }
  std::vector<uint32_t> shuffled(num_samples());
  std::iota(shuffled.begin(), shuffled.end(), 0);
  ShuffleRange(shuffled.begin(), shuffled.end(), random);
  fresh_at_.resize(num_samples());
  for (uint32_t i = 0; i < num_samples(); ++i) {
    fresh_at_[i] = shuffled[i] < num_fresh_;
    shuffled[i] = order_[shuffled[i]];
  }
  order_ = std::move(shuffled);
}

EpochSchedule EpochSchedule::AllFresh(const ScheduleOptions& options,
                                      uint32_t num_samples, uint64_t epoch) {
  EpochSchedule schedule;
  schedule.epoch_ = epoch;
  schedule.order_.resize(num_samples);
  std::iota(schedule.order_.begin(), schedule.order_.end(), 0);
  schedule.num_fresh_ = num_samples;
  schedule.Arrange(options);
  return schedule;
}

Slot EpochSchedule::At(uint32_t position) const {
  if (!fresh_at_.empty()) return {order_[position], fresh_at_[position]};
  // The k-th place is fresh when k * F / N + phase / N passes a whole number at
  // it, so every window of W places holds W * F / N of them, rounded up or
  // down.
  const uint64_t numerator =
      static_cast<uint64_t>(position) * num_fresh_ + phase_;
  const uint64_t rank = numerator / num_samples();
  const uint64_t remainder = numerator - rank * num_samples();
  if (remainder + num_fresh_ >= num_samples()) {
    return {order_[rank], true};
  }
  return {order_[num_fresh_ + position - rank], false};
}

uint64_t EpochSchedule::Generation(uint32_t index) const {
  if (schedule_ == nullptr || !schedule_->Kept(index)) return epoch_;
  return schedule_->origin() + schedule_->Evictions(index, now_);
}

bool EpochSchedule::Kept(uint32_t index) const {
  return schedule_ != nullptr && schedule_->Kept(index);
}

bool EpochSchedule::Reused(uint32_t index) const {
  return Kept(index) && schedule_->Evictions(index, now_) ==
                            schedule_->Evictions(index, next_);
}

Schedule::Schedule(const ScheduleOptions& options, uint32_t num_samples,
                   uint32_t capacity, uint64_t origin)
    : options_(options),
      num_samples_(num_samples),
      capacity_(std::min(capacity, num_samples)),
      origin_(origin) {}

Schedule::Schedule(const ScheduleOptions& options, const MovedShard& moved,
                   uint64_t origin)
    : options_(options),
      num_samples_(static_cast<uint32_t>(moved.shard.Size(moved.whole))),
      capacity_(num_samples_),
      origin_(origin),
      moved_(moved) {}

void Schedule::Sort() const {
  std::call_once(sorted_->once, [this] {
    sorted_->positions = moved_.has_value()
                             ? RanksInFormerShards(options_.seed, *moved_)
                             : RankByEvictionKey(options_.seed, num_samples_);
    sorted_->done.store(true, std::memory_order_release);
  });
}

EvictionHands Schedule::HandsAt(uint64_t epoch) const {
  if (!moved_.has_value()) return {HandAt(epoch, capacity_), {}};
  const uint64_t shorter = moved_->whole / moved_->former;
  return {HandAt(epoch, shorter + 1), HandAt(epoch, shorter)};
}

EpochSchedule Schedule::Epoch(uint64_t epoch) const {
  EpochSchedule schedule;
  schedule.epoch_ = epoch;
  schedule.schedule_ = this;
  schedule.now_ = HandsAt(epoch);
  schedule.next_ = HandsAt(epoch + 1);
  schedule.order_.resize(num_samples());
  if (epoch == origin_) {
    std::iota(schedule.order_.begin(), schedule.order_.end(), 0);
    schedule.num_fresh_ = num_samples();
  } else {
    const EvictionHands before = HandsAt(epoch - 1);
    auto fresh = schedule.order_.begin();
    auto cached = schedule.order_.end();
    for (uint32_t i = 0; i < num_samples(); ++i) {
      const bool evicted =
          Kept(i) && Evictions(i, before) != Evictions(i, schedule.now_);
      schedule.num_evicted_ += evicted;
      *(evicted || !Kept(i) ? fresh++ : --cached) = i;
    }
    std::reverse(cached, schedule.order_.end());
    schedule.num_fresh_ =
        static_cast<uint32_t>(fresh - schedule.order_.begin());
  }
  schedule.Arrange(options_);
  // Sorts, if that is needed: who asks later may have a lock.
  if (num_samples_ > 0) schedule.Reused(0);
  return schedule;
}

}  // namespace refurbish_tf
