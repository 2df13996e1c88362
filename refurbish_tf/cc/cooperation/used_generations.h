// How often a job has used samples of a store that other jobs use as well.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// On a shared store, a job may find and use a newer generation of a sample than
// its schedule wants. It may use each generation at most r times, so it may
// need the next one earlier than its schedule says. This counts, for each
// sample, the job's uses of the newest generation that it has used.
//
// Thread-safe.
class UsedGenerations {
 public:
  explicit UsedGenerations(double reuse_factor)
      : most_uses_(std::min(std::ceil(reuse_factor), 65'535.0)) {}

  // Which generations of a sample may be used if the schedule wants
  // `generation`.
  GenerationRange Wanted(uint32_t index, Generation generation) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    const Uses uses = Find(index);
    if (uses.count == 0 || uses.generation < generation) return {generation};
    return {uses.generation + (uses.count >= most_uses_)};
  }
  // Counts a use. False if that generation is used up, or a newer one was used.
  bool Use(uint32_t index, Generation used) { return Add(index, used, 1); }

  // The same for samples that are not kept: each of their generations is used
  // once. `NextUnused`: the least generation that may be used. `UseOnce`:
  // counts the use of a generation.
  Generation NextUnused(uint32_t index) const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    const Uses uses = Find(index);
    return uses.count == 0 ? 0 : uses.generation + 1;
  }
  bool UseOnce(uint32_t index, Generation used) {
    return Add(index, used, most_uses_);
  }

  void Clear() ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    uses_.clear();
  }

  // Reserves memory for this many samples, which `bytes()` includes.
  void MakeRoomFor(uint32_t num_samples) ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    uses_.reserve(num_samples);
  }
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return uses_.capacity() * sizeof(Uses);
  }

 private:
  struct __attribute__((packed)) Uses {
    Generation generation = 0;
    uint16_t count = 0;  // 0 if the sample was not used.
  };

  Uses Find(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return index < uses_.size() ? uses_[index] : Uses();
  }
  // Counts `count` uses. False if that would be too many.
  bool Add(uint32_t index, Generation used, uint16_t count)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    if (index >= uses_.size()) uses_.resize(index + 1);
    Uses& uses = uses_[index];
    if (uses.count == 0 || used > uses.generation) uses = {used, 0};
    if (used < uses.generation || uses.count + count > most_uses_) return false;
    uses.count += count;
    return true;
  }

  const uint16_t most_uses_;
  mutable std::mutex mu_;
  // By sample, up to the last one that was used.
  std::vector<Uses> uses_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
