// The workers of a dataset iterator.
#ifndef REFURBISH_TF_CC_KERNELS_ITERATOR_WORKERS_H_
#define REFURBISH_TF_CC_KERNELS_ITERATOR_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/cancellation.h"

namespace refurbish_tf {

// Of `num_parallel_calls`: the size of the pool of threads.
inline constexpr int64_t kAutotuneCalls = -1;

// OK for a number of calls that may be asked for.
absl::Status CheckParallelCalls(int64_t num_parallel_calls);

// For workers that run `functions`, in the order that `deterministic` ("true",
// "false" or "default", the option of the pipeline) asks for.
OrderedWorkers::Options WorkerOptions(
    IteratorContext* ctx, int64_t num_parallel_calls,
    const std::string& deterministic,
    const std::vector<const InlineFunction*>& functions);

// They are cancelled with the iterator. All but `Cancel` is for one thread at a
// time.
class IteratorWorkers {
 public:
  IteratorWorkers() = default;
  ~IteratorWorkers();
  IteratorWorkers(const IteratorWorkers&) = delete;
  IteratorWorkers& operator=(const IteratorWorkers&) = delete;

  absl::Status Initialize(IteratorContext* ctx);

  // That of what runs on the workers and of the iterator's input.
  CancellationManager* cancellation_manager() { return &cancellation_manager_; }

  // `on_cancel` is called with the workers' own cancellation. What is given must
  // last until `Stop`.
  void Start(const OrderedWorkers::Options& options, OrderedWorkers::Work* work,
             IteratorContext* ctx, std::function<void()> on_cancel)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null unless started.
  OrderedWorkers* get() { return workers_.get(); }
  // Waits for the calls that are under way.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  CancellationManager cancellation_manager_;
  std::function<void()> deregister_fn_;
  std::unique_ptr<OrderedWorkers> workers_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // While they are started.
  std::function<void()> cancel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_ITERATOR_WORKERS_H_
