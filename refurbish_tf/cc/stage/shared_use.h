// What a stage needs on a store that others use, too.
#ifndef REFURBISH_TF_CC_STAGE_SHARED_USE_H_
#define REFURBISH_TF_CC_STAGE_SHARED_USE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

// On a store that others use, too, a job may meet a sample of a newer generation
// than its schedule has come to, and uses it. So that it uses no partially
// augmented sample more than r times, it may then want the next one earlier than
// its schedule. This counts the uses of the newest generation of each sample that
// the job has come to.
//
// Thread-safe.
class UsedGenerations {
 public:
  explicit UsedGenerations(double reuse_factor)
      : most_uses_(std::min(std::ceil(reuse_factor), 4e9)) {}

  // What may be used of a sample of which the schedule wants `generation`.
  GenerationRange Wanted(uint32_t index, Generation generation) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a use, unless that generation was used up or passed meanwhile.
  bool Use(uint32_t index, Generation used) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts anew, from no use on.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Uses {
    Generation generation = 0;
    uint32_t count = 0;  // 0 for none.
  };
  const uint32_t most_uses_;
  mutable absl::Mutex mu_;
  // By sample, up to the last one that was used.
  std::vector<Uses> uses_ ABSL_GUARDED_BY(mu_);
};

// What a stage needs on a store that others use, too.
struct SharedUse {
  explicit SharedUse(double reuse_factor) : generations(reuse_factor) {}

  UsedGenerations generations;
  std::unique_ptr<SharedState::Job> job;
  // After a restore: before this epoch only what the schedule wants is used and
  // nothing newer, to yield what was yielded before.
  std::atomic<uint64_t> exact_before{0};
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_SHARED_USE_H_
