// Which samples are kept under a limit while it is unknown how many of them
// fit.
//
// While the number of samples is unknown, or how many of varying size fit under
// `max_bytes`, every epoch prepares every sample. The schedule begins after the
// first whole pass. `KeptKey` decides which samples are kept, so the choice
// does not depend on the order in which they come.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"

namespace refurbish_tf {

// Keeps the samples with the smallest keys, as many as fit.
//
// `mu_` is held during a put, which may wait for a slow disk, because two puts
// at once would remove too many samples. Only other puts and a restore wait for
// it.
class FirstPassSelection {
 public:
  // `keys` maps samples to their numbers in the store. `room`: the bytes of the
  // store that these samples may take.
  void Put(uint64_t seed, Generation generation, uint32_t index,
           const Sample& sample, const Shard& keys, SampleStore& sample_store,
           int64_t room) ABSL_LOCKS_EXCLUDED(mu_);

  // How many of the first `num_samples` fit. Takes no lock.
  uint32_t Count(uint64_t seed, int64_t num_samples) const {
    return NumKeysBelow(seed, static_cast<uint32_t>(num_samples), limit_);
  }

  // Called when an iterator leaves an epoch before its end. `had`: whether it
  // has handed out a sample.
  template <class Had>
  void NoteSeen(uint32_t num_samples, const Had& had) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    seen_.resize(num_samples);
    for (uint32_t i = 0; i < num_samples; ++i) {
      if (seen_[i] || !had(i)) continue;
      seen_[i] = true;
      ++num_seen_;
    }
  }
  // How many different samples `NoteSeen` has noted, over all epochs.
  int64_t num_seen() const { return num_seen_; }

  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  // Frees memory. Called when a schedule has begun, after which nothing is put.
  void Free() ABSL_LOCKS_EXCLUDED(mu_);
  int64_t bytes() const { return bytes_; }

 private:
  void Push(uint64_t key, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the largest key.
  void Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr int64_t kNone = -1;
  // The bytes of a sample in `keys_`, otherwise 0.
  int64_t BytesOf(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return index < noted_.size() ? std::max<int64_t>(noted_[index], 0) : 0;
  }

  absl::Mutex mu_;
  // A heap of the keys of the samples that fit, the largest key first. Some of
  // them may have left the store, or were not kept because memory was short.
  std::deque<uint64_t> keys_ ABSL_GUARDED_BY(mu_);
  // By sample: its bytes in memory, or kNone if its key is not in `keys_`.
  std::deque<int64_t> noted_ ABSL_GUARDED_BY(mu_);
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<int64_t> bytes_{0};  // Of `keys_` and `noted_`.
  // This key and larger ones do not fit. Written with `mu_` held.
  std::atomic<uint64_t> limit_{std::numeric_limits<uint64_t>::max()};
  std::vector<bool> seen_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> num_seen_{0};
  // Whether `keys_` includes other jobs' samples.
  bool others_found_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refurbish_tf
