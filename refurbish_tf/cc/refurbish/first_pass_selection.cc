#include "refurbish_tf/cc/refurbish/first_pass_selection.h"

#include "refurbish_tf/cc/plan/kept_samples.h"

namespace refurbish_tf {
namespace {

// The lower half of a key is the index.
uint32_t IndexOf(uint64_t key) { return static_cast<uint32_t>(key); }

}  // namespace

void FirstPassSelection::Push(uint64_t key, int64_t bytes) {
  const uint32_t index = IndexOf(key);
  const int64_t before = BytesOf(index);
  if (index >= noted_.size()) noted_.resize(index + 1, kNone);
  const bool is_new = noted_[index] == kNone;
  noted_[index] = bytes;
  total_ += bytes - before;
  if (!is_new) return;
  keys_.push_back(key);
  std::push_heap(keys_.begin(), keys_.end());
}

void FirstPassSelection::Pop() {
  const uint32_t index = IndexOf(keys_[0]);
  total_ -= noted_[index];
  noted_[index] = kNone;
  std::pop_heap(keys_.begin(), keys_.end());
  keys_.pop_back();
}

void FirstPassSelection::Put(uint64_t seed, Generation generation,
                             uint32_t index, const Sample& sample,
                             const Shard& keys, SampleStore& sample_store,
                             int64_t room) {
  SampleMap<Sample>& store = sample_store.store();
  const uint64_t key = KeptKey(seed, index);
  absl::MutexLock lock(&mu_);
  if (key >= limit_) return;
  const uint64_t number = keys.InWhole(index);
  // While memory is short, a store in memory holds less than fits, so the bytes
  // of what fits are counted here. On disk they are counted only if shards
  // divide the room: otherwise, other jobs also put.
  const bool counts = !store.shared() || room < store.max_bytes();
  const int64_t bytes = counts ? sample_store.Bytes(sample) : 0;
  bool all_known = false;
  PutResult result;
  const auto fits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    result = store.Put(number, generation, sample);
    if (result == PutResult::kNewerKept) return true;
    return result != PutResult::kNoRoom &&
           total_ - BytesOf(index) + bytes <= room;
  };
  while (!fits()) {
    // The put has removed an older generation of this sample.
    if (!keys_.empty() && keys_[0] == key) Pop();
    const bool is_largest = keys_.empty() || keys_[0] < key;
    // The store may also have samples of other jobs or earlier runs. They
    // compete from the start: otherwise a sample of this run could be evicted
    // although one of theirs has a larger key.
    if (store.shared() && !all_known && (is_largest || !others_found_)) {
      others_found_ = all_known = true;
      for (const uint64_t other : store.Indices()) {
        const auto own = static_cast<uint32_t>(keys.InShard(other));
        if (keys.Has(other) && own != index && BytesOf(own) == 0) {
          Push(KeptKey(seed, own), 0);
        }
      }
      continue;
    }
    if (is_largest) {
      limit_ = key;
      if (result == PutResult::kStored) store.Remove(number, /*evict=*/true);
      return;
    }
    limit_ = keys_[0];
    Pop();
    store.Remove(keys.InWhole(IndexOf(limit_)), /*evict=*/true);
  }
  if (result == PutResult::kStored || result == PutResult::kMemoryShort) {
    Push(key, bytes);
  }
  bytes_ = keys_.size() * sizeof(keys_[0]) + noted_.size() * sizeof(noted_[0]);
}

void FirstPassSelection::Clear() {
  absl::MutexLock lock(&mu_);
  keys_.clear();
  noted_.clear();
  seen_.clear();
  num_seen_ = 0;
  total_ = 0;
  limit_ = std::numeric_limits<uint64_t>::max();
  others_found_ = false;
}

void FirstPassSelection::Free() {
  absl::MutexLock lock(&mu_);
  std::deque<uint64_t>().swap(keys_);
  std::deque<int64_t>().swap(noted_);
  std::vector<bool>().swap(seen_);
  total_ = 0;
  bytes_ = 0;
}

}  // namespace refurbish_tf
