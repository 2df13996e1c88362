// Data echoing with an adaptive factor, `echo(e=AUTOTUNE)`: repeats the newest
// element of the input while no newer one is ready.
//
// A fresh element that is ready is always yielded first. Otherwise the newest
// one is repeated; after `max_e` yields the iterator waits for the next. A
// thread of the iterator reads the input ahead.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/element_iterator.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/util/determinism.h"

namespace refurbish_tf {
namespace {

constexpr ResultsKey kBuffered = {"num_buffered", "buffered"};

// How many elements are read ahead. One is enough for the throughput; a second
// one spares the reading thread a wait when elements come in bursts.
constexpr size_t kBufferSize = 2;

// What an iterator has yielded, and how long it waited for fresh elements.
struct EchoCounters : Counters {
  Count fresh{this, "fresh"};
  Count repeated{this, "repeated"};
  Count fresh_wait_nanos{this, "fresh_wait_nanos"};
};

using EchoStage = CountsOfIterators<EchoCounters>;

class AdaptiveEchoDataset : public UnaryDataset {
 public:
  AdaptiveEchoDataset(OpKernelContext* ctx, const DatasetBase* input,
                      const std::string& stage, int64_t max_factor)
      : UnaryDataset(ctx, input, "AdaptiveEcho"),
        max_factor_(max_factor),
        stage_(Registry<EchoStage>::Global().GetOrCreate(
            stage, [] { return std::make_shared<EchoStage>(); })) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    return cardinality <= 0 ? cardinality : kUnknownCardinality;
  }

 private:
  friend class AdaptiveEchoIterator;

  const int64_t max_factor_;
  const std::shared_ptr<EchoStage> stage_;
};

class AdaptiveEchoIterator
    : public ElementIterator<AdaptiveEchoDataset, ElementWork> {
 public:
  explicit AdaptiveEchoIterator(const Params& params)
      : ElementIterator(params, "echo", kBuffered) {}

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    const auto refused = [](const char* setting, const char* remedy) {
      return InvalidArgument(
          "e=AUTOTUNE repeats elements depending on timing, but ", setting,
          " asks for the same stream each time. Give echo a number as e, or ",
          remedy, ".");
    };
    if (ctx->options() != nullptr &&
        ctx->options()->optional_deterministic_case() ==
            tensorflow::data::Options::kDeterministic &&
        ctx->options()->deterministic()) {
      return refused("the option deterministic=True",
                     "leave the option at its default");
    }
    // Op determinism may have been enabled after the stage was built.
    if (tensorflow::OpDeterminismRequired()) {
      return refused(
          "tf.config.experimental.enable_op_determinism() or the environment "
          "variable TF_DETERMINISTIC_OPS",
          "turn op determinism off");
    }
    return ElementIterator::Initialize(ctx);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (counters_ == nullptr) counters_ = dataset()->stage_->Begin();
    *end_of_sequence = false;
    if (num_yields_ > 0 && num_yields_ < dataset()->max_factor_ &&
        !IsNextReady(ctx)) {
      ++num_yields_;
      ++counters_->repeated;
    } else {
      std::vector<Tensor> element;
      int64_t waited_nanos = 0;
      absl::Status status =
          NextElement(ctx, &element, end_of_sequence, &waited_nanos);
      counters_->fresh_wait_nanos += waited_nanos;
      TF_RETURN_IF_ERROR(status);
      newest_ = std::move(element);
      if (*end_of_sequence) return absl::OkStatus();
      num_yields_ = 1;
      ++counters_->fresh;
    }
    *out_tensors = newest_;
    return absl::OkStatus();
  }

 protected:
  void Run(IteratorContext* ctx) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MakeWork(ctx);
    OrderedWorkers::Options options;
    options.consumer_helps = false;
    options.max_pieces = kBufferSize;
    options.wake_part = 1;
    Start(options);
  }

 private:
  // Null until the first element is requested.
  std::shared_ptr<EchoCounters> counters_ ABSL_GUARDED_BY(mu_);
  std::vector<Tensor> newest_ ABSL_GUARDED_BY(mu_);
  int64_t num_yields_ ABSL_GUARDED_BY(mu_) = 0;  // Yields of `newest_`.
};

absl::StatusOr<DatasetBase*> MakeAdaptiveEcho(OpKernelContext* ctx,
                                              DatasetBase* input) {
  std::string stage;
  int64_t max_factor;
  TF_RETURN_IF_ERROR(
      GetScalars(ctx, "stage", &stage, "max_echoing_factor", &max_factor));
  if (max_factor >= 1) {
    return new IteratedBy<AdaptiveEchoDataset, AdaptiveEchoIterator>(
        ctx, input, stage, max_factor);
  }
  return InvalidArgument("max_e must be a whole number of at least 1, got ",
                         max_factor, ".");
}

REFURBISH_TF_KERNEL("AdaptiveEchoDataset", UnaryDatasetOp<MakeAdaptiveEcho>);
REFURBISH_TF_KERNEL("EchoCounts", FunctionOp<SetCounts<EchoStage>>);

}  // namespace
}  // namespace refurbish_tf
