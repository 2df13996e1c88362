#include "refurbish_tf/cc/plan/schedule.h"

#include <algorithm>

#include "refurbish_tf/cc/base/memory.h"

namespace refurbish_tf {
namespace {

Permutation EvictionOrder(uint64_t seed, uint32_t num_kept) {
  RandomStream random(DeriveKey(seed, Purpose::kEviction));
  return {random, num_kept};
}

}  // namespace

int64_t MostSamples(int64_t bytes_each) {
  return std::min(static_cast<int64_t>(kMaxSamples),
                  ReadMemory().limit / bytes_each);
}

void EpochSchedule::Arrange(const ScheduleOptions& options) {
  const uint64_t seed = options.order_seed.value_or(options.seed);
  RandomStream random(DeriveKey(seed, Purpose::kOrder, epoch_));
  is_uniform_ = options.shuffle == Shuffle::kUniform;
  if (is_uniform_) {
    orders_[0] = Permutation(random, num_samples_);
    return;
  }
  orders_[0] = Permutation(random, num_fresh_);
  orders_[1] = Permutation(random, num_samples_ - num_fresh_);
  RandomStream phase(DeriveKey(seed, Purpose::kPhase, epoch_));
  phase_ = phase.Below(num_samples_);
}

EpochSchedule EpochSchedule::AllFresh(const ScheduleOptions& options,
                                      uint32_t num_samples, uint64_t epoch) {
  EpochSchedule schedule;
  schedule.epoch_ = epoch;
  schedule.num_fresh_ = schedule.num_samples_ = num_samples;
  schedule.Arrange(options);
  return schedule;
}

Slot EpochSchedule::At(uint32_t position) const {
  bool fresh;
  uint32_t nth;  // Its number among the fresh or the cached samples.
  if (is_uniform_) {
    nth = orders_[0](position);
    fresh = nth < num_fresh_;
    if (!fresh) nth -= num_fresh_;
  } else {
    // With F fresh samples among N, place k is fresh if (k * F + phase) / N
    // passes a whole number before place k + 1. So every window of W places has
    // W * F / N fresh samples, rounded up or down.
    const uint64_t numerator =
        static_cast<uint64_t>(position) * num_fresh_ + phase_;
    const auto rank = static_cast<uint32_t>(numerator / num_samples_);
    const uint64_t remainder = numerator - uint64_t{rank} * num_samples_;
    fresh = remainder + num_fresh_ >= num_samples_;
    nth = fresh ? orders_[0](rank) : orders_[1](position - rank);
  }
  if (schedule_ == nullptr) return {nth, true, epoch_, false};
  // If all samples are fresh, `nth` is the index: the order of a first epoch
  // must not depend on how many samples are kept.
  Schedule::Member member = {nth, {}};
  if (num_fresh_ == num_samples_) {
    member.standing = schedule_->StandingOf(nth);
  } else {
    const uint32_t size = schedule_->CycleSize(0);
    const uint32_t count = fresh ? evicted_[0].count : size - evicted_[0].count;
    const int cycle = nth >= count;
    if (cycle == 1) nth -= count;
    const Evicted& evicted = evicted_[cycle];
    const uint64_t place =
        uint64_t{evicted.first} + (fresh ? 0 : evicted.count) + nth;
    member = schedule_->At(cycle, place % schedule_->CycleSize(cycle));
  }
  const uint64_t generation =
      schedule_->GenerationOf(member.standing, now_, epoch_);
  return {member.index, fresh, generation,
          generation ==
              schedule_->GenerationOf(member.standing, next_, epoch_ + 1)};
}

uint64_t EpochSchedule::Generation(uint32_t index) const {
  if (schedule_ == nullptr) return epoch_;
  return schedule_->GenerationOf(schedule_->StandingOf(index), now_, epoch_);
}

bool EpochSchedule::Kept(uint32_t index) const {
  return schedule_ != nullptr && schedule_->Kept(index);
}

bool EpochSchedule::Reused(uint32_t index) const {
  if (schedule_ == nullptr) return false;
  const Schedule::Standing standing = schedule_->StandingOf(index);
  return schedule_->GenerationOf(standing, now_, epoch_) ==
         schedule_->GenerationOf(standing, next_, epoch_ + 1);
}

OrderWalk::OrderWalk(const EpochSchedule& order, std::vector<bool> has_come)
    : order_(&order),
      has_come_(std::move(has_come)),
      position_(static_cast<uint32_t>(
          std::count(has_come_.begin(), has_come_.end(), true))) {}

Slot OrderWalk::Next() {
  Slot slot = order_->At(position_++);
  if (has_come_.empty() || !has_come_[slot.index]) return slot;
  // This place's sample has come already. For each sample that came early,
  // there is an earlier place whose sample has not come yet.
  do {
    slot = order_->At(passed_++);
  } while (has_come_[slot.index]);
  return slot;
}

Schedule::Schedule(const ScheduleOptions& options, uint32_t num_samples,
                   uint32_t capacity, uint64_t origin)
    : options_(options),
      num_samples_(num_samples),
      capacity_(std::min(capacity, num_samples)),
      origin_(origin),
      kept_(options.seed, num_samples_, capacity_),
      by_rank_(EvictionOrder(options.seed, capacity_)),
      ranks_{by_rank_.Inverse()} {}

Schedule::Schedule(const ScheduleOptions& options, const MovedShard& moved,
                   uint64_t origin)
    : options_(options),
      num_samples_(static_cast<uint32_t>(moved.shard.Size(moved.whole))),
      capacity_(num_samples_),
      origin_(origin),
      moved_(moved) {
  SortMembers();
}

void Schedule::SortMembers() {
  const auto shorter = static_cast<uint32_t>(moved_->whole / moved_->former);
  ranks_ = {EvictionOrder(options_.seed, shorter + 1).Inverse(),
            EvictionOrder(options_.seed, shorter).Inverse()};
  std::vector<uint64_t> by_rank[2];
  for (uint32_t i = 0; i < num_samples_; ++i) {
    const Standing standing = StandingOf(i);
    by_rank[standing.cycle].push_back(uint64_t{standing.rank} << 32 | i);
  }
  for (int cycle = 0; cycle < 2; ++cycle) {
    std::sort(by_rank[cycle].begin(), by_rank[cycle].end());
    members_[cycle].assign(by_rank[cycle].begin(), by_rank[cycle].end());
  }
}

Schedule::Hands Schedule::HandsAt(uint64_t epoch) const {
  const auto hand = [&](uint64_t length) {
    return HandAfter(options_.eviction, epoch - origin_, length,
                     options_.reuse_factor);
  };
  if (!moved_.has_value()) return {hand(capacity_)};
  const uint64_t shorter = moved_->whole / moved_->former;
  return {hand(shorter + 1), hand(shorter)};
}

Schedule::Standing Schedule::StandingOf(uint32_t index) const {
  if (moved_.has_value()) {
    const uint64_t in_whole = moved_->shard.InWhole(index);
    // The first former shards may have one sample more than the others.
    const int cycle =
        in_whole % moved_->former >= moved_->whole % moved_->former;
    return {cycle, ranks_[cycle](in_whole / moved_->former)};
  }
  if (capacity_ == 0) return {1, index};
  const uint32_t number = kept_.NumberOf(index);
  if (number < capacity_) return {0, ranks_[0](number)};
  return {1, number - capacity_};
}

Schedule::Member Schedule::At(int cycle, uint32_t place) const {
  if (moved_.has_value()) {
    const uint32_t index = members_[cycle][place];
    return {index, StandingOf(index)};
  }
  const uint32_t number = cycle == 0 ? by_rank_(place) : capacity_ + place;
  return {kept_.At(number), {cycle, place}};
}

uint32_t Schedule::NumBefore(int cycle, const EvictionHand& hand) const {
  if (!moved_.has_value()) return hand.position;
  const std::vector<uint32_t>& members = members_[cycle];
  return std::partition_point(members.begin(), members.end(),
                              [&](uint32_t index) {
                                return StandingOf(index).rank < hand.position;
                              }) -
         members.begin();
}

EpochSchedule Schedule::Epoch(uint64_t epoch) const {
  EpochSchedule schedule;
  schedule.epoch_ = epoch;
  schedule.num_samples_ = num_samples_;
  schedule.schedule_ = this;
  schedule.now_ = HandsAt(epoch);
  schedule.next_ = HandsAt(epoch + 1);
  if (epoch > origin_) {
    const Hands before = HandsAt(epoch - 1);
    for (int cycle = 0; cycle < 2; ++cycle) {
      EpochSchedule::Evicted& evicted = schedule.evicted_[cycle];
      if (KeepsCycle(cycle)) {
        const EvictionHand& now = schedule.now_[cycle];
        evicted.first = NumBefore(cycle, before[cycle]);
        evicted.count = NumBefore(cycle, now) - evicted.first;
        if (now.rounds > before[cycle].rounds) {
          evicted.count += CycleSize(cycle);
        }
        schedule.num_evicted_ += evicted.count;
      } else {
        evicted.count = CycleSize(cycle);
      }
      schedule.num_fresh_ += evicted.count;
    }
  } else {
    schedule.num_fresh_ = num_samples_;
  }
  schedule.Arrange(options_);
  return schedule;
}

}  // namespace refurbish_tf
