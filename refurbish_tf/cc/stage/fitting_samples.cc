#include "refurbish_tf/cc/stage/fitting_samples.h"

#include <algorithm>

#include "refurbish_tf/cc/schedule/schedule.h"

namespace refurbish_tf {
namespace {

// The lower half of a key is the index.
uint32_t IndexOf(uint64_t key) { return static_cast<uint32_t>(key); }

}  // namespace

void FittingSamples::Push(uint64_t key) {
  const uint32_t index = IndexOf(key);
  if (index >= noted_.size()) noted_.resize(index + 1);
  if (noted_[index]) return;
  noted_[index] = true;
  keys_.push_back(key);
  std::push_heap(keys_.begin(), keys_.end());
}

void FittingSamples::Pop() {
  noted_[IndexOf(keys_[0])] = false;
  std::pop_heap(keys_.begin(), keys_.end());
  keys_.pop_back();
}

void FittingSamples::Put(uint64_t seed, Generation generation, uint32_t index,
                         const Sample& sample, const Shard& keys,
                         CacheStore<Sample>& store) {
  const uint64_t key = EvictionKey(seed, index);
  absl::MutexLock lock(&mu_);
  if (key >= limit_) return;
  bool all_known = false;
  PutResult result;
  while ((result = store.Put(keys.InWhole(index), generation, sample)) ==
         PutResult::kNoRoom) {
    // Its older generation was removed.
    if (!keys_.empty() && keys_[0] == key) Pop();
    const bool is_largest = keys_.empty() || keys_[0] < key;
    // Samples that others have put compete from the start. Otherwise one of our
    // own would be evicted before one of an earlier run that has a larger key.
    if (store.shared() && !all_known && (is_largest || !others_found_)) {
      others_found_ = all_known = true;
      for (const uint64_t other : store.Indices()) {
        if (!keys.Has(other)) continue;
        Push(EvictionKey(seed, static_cast<uint32_t>(keys.InShard(other))));
      }
      continue;
    }
    if (is_largest) {
      limit_ = key;
      return;
    }
    limit_ = keys_[0];
    Pop();
    store.Evict(keys.InWhole(IndexOf(limit_)));
  }
  if (result == PutResult::kStored) Push(key);
  bytes_ = keys_.capacity() * sizeof(keys_[0]) + noted_.size() / 8;
}

uint32_t FittingSamples::Count(uint64_t seed, int64_t num_samples) const {
  const uint64_t limit = limit_;
  uint32_t count = 0;
  for (int64_t i = 0; i < num_samples; ++i) {
    count += EvictionKey(seed, static_cast<uint32_t>(i)) < limit;
  }
  return count;
}

void FittingSamples::Clear() {
  absl::MutexLock lock(&mu_);
  keys_.clear();
  noted_.clear();
  limit_ = std::numeric_limits<uint64_t>::max();
  others_found_ = false;
}

void FittingSamples::Free() {
  absl::MutexLock lock(&mu_);
  std::vector<uint64_t>().swap(keys_);
  std::vector<bool>().swap(noted_);
  bytes_ = 0;
}

}  // namespace refurbish_tf
