// Which samples are kept under a limit before it is known how many of them fit.
#ifndef REFURBISH_TF_CC_STAGE_FITTING_SAMPLES_H_
#define REFURBISH_TF_CC_STAGE_FITTING_SAMPLES_H_

#include <cstdint>
#include <limits>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

// Those with the smallest eviction keys, as many as fit, in whatever order they
// come.
//
// `mu_` is held over puts: two that make room at once would make too much. Only who
// puts waits for it.
class FittingSamples {
 public:
  void Put(uint64_t seed, Generation generation, uint32_t index,
           const Sample& sample, CacheStore<Sample>& store)
      ABSL_LOCKS_EXCLUDED(mu_);

  // How many of the first `num_samples` fit.
  uint32_t Count(uint64_t seed, int64_t num_samples) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Begins anew.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::set<uint64_t> keys_ ABSL_GUARDED_BY(mu_);
  // Keys from here on did not fit.
  uint64_t limit_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<uint64_t>::max();
  // Whether `keys_` includes other jobs' samples.
  bool others_found_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_FITTING_SAMPLES_H_
