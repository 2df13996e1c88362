#include "refurbish_tf/cc/stage/fitting_samples.h"

#include "refurbish_tf/cc/schedule/schedule.h"

namespace refurbish_tf {

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
    keys_.erase(key);
    const bool is_largest = keys_.empty() || *keys_.rbegin() < key;
    // Samples that others have put compete from the start. Otherwise one of our
    // own would be evicted before one of an earlier run that has a larger key.
    if (store.shared() && !all_known && (is_largest || !others_found_)) {
      others_found_ = all_known = true;
      for (const uint64_t other : store.Indices()) {
        if (!keys.Has(other)) continue;
        keys_.insert(
            EvictionKey(seed, static_cast<uint32_t>(keys.InShard(other))));
      }
      continue;
    }
    if (is_largest) {
      limit_ = key;
      return;
    }
    limit_ = *keys_.rbegin();
    keys_.erase(limit_);
    // The lower half of a key is the index.
    store.Evict(keys.InWhole(static_cast<uint32_t>(limit_)));
  }
  if (result == PutResult::kStored) keys_.insert(key);
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
  limit_ = std::numeric_limits<uint64_t>::max();
  others_found_ = false;
}

}  // namespace refurbish_tf
