// Ops that describe, count, save and restore stages, found by their names, and
// tell how long pipelines were waited for.
#include <atomic>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/refurbish/saved_epoch.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/lib/random/random.h"

namespace refurbish_tf {
namespace {

absl::Status MakeStageName(OpKernelContext* ctx) {
  // The graph that carries the name may go to another process that names stages
  // of its own, such as a worker of a tf.data service.
  static const uint64_t process = tensorflow::random::New64();
  static std::atomic<uint64_t> counter{0};
  ctx->set_output(0, Tensor(tstring(absl::StrCat(
                         "refurbish-", absl::Hex(process), "-", counter++))));
  return absl::OkStatus();
}

absl::Status DescribeStage(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  SetNamedRows(ctx, {stage->Describe()});
  return absl::OkStatus();
}

absl::Status FindGeneration(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  if (ctx->input(1).dims() > 0 || ctx->input(2).dims() > 0) {
    return absl::InvalidArgumentError("`index` and `epoch` must be scalars.");
  }
  TF_ASSIGN_OR_RETURN(const int64_t generation,
                      stage->GenerationOf(ctx->input(1).scalar<int64_t>()(),
                                          ctx->input(2).scalar<int64_t>()()));
  ctx->set_output(0, Tensor(generation));
  return absl::OkStatus();
}

NamedNumbers NumbersOf(SavedEpoch saved) {
  NamedNumbers numbers;
  ForEachNumberOfStage(&saved, [&](const char* name, const auto* number) {
    numbers.push_back({name, static_cast<int64_t>(*number)});
  });
  return numbers;
}

absl::Status SaveState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  const SavedEpoch saved = stage->Save();
  SetNamedRows(ctx, {NumbersOf(saved)});
  ctx->set_output(2, Tensor(saved.reuse_factor));
  return absl::OkStatus();
}

// What is found in a backup may be damaged.
absl::Status RestoreState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  const Tensor& state = ctx->input(1);
  const Tensor& reuse_factor = ctx->input(2);
  SavedEpoch saved;
  const int64_t size = NumbersOf(saved).size();
  if (state.shape() != TensorShape({size})) {
    return DamagedCheckpoint("refurbish", "its state has shape ",
                             state.shape().DebugString(), ", but must have [",
                             size, "]");
  }
  if (reuse_factor.dims() != 0) {
    return DamagedCheckpoint("refurbish", "its reuse_factor has shape ",
                             reuse_factor.shape().DebugString(),
                             ", but must be a scalar");
  }
  const auto values = state.vec<int64_t>();
  int64_t next = 0;
  ForEachNumberOfStage(
      &saved, [&](const char*, auto* number) { *number = values(next++); });
  saved.reuse_factor = reuse_factor.scalar<double>()();
  return stage->Restore(saved).status();
}

// TensorFlow measures how long each call takes that fetches an element from the
// end of a pipeline, also within a graph, as in the training step of Keras.
// This reads that metric.
absl::Status InputWait(OpKernelContext* ctx) {
  constexpr char kMetric[] = "/tensorflow/data/getnext_duration";
  tensorflow::monitoring::CollectionRegistry::CollectMetricsOptions options;
  options.collect_metric_descriptors = false;
  const auto metrics =
      tensorflow::monitoring::CollectionRegistry::Default()->CollectMetrics(
          options);
  double seconds = 0;
  const auto found = metrics->point_set_map.find(kMetric);
  if (found != metrics->point_set_map.end()) {
    for (const auto& point : found->second->points) {
      seconds += 1e-6 * point->histogram_value.sum();
    }
  }
  ctx->set_output(0, Tensor(seconds));
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("StageName", FunctionOp<MakeStageName>);
REFURBISH_TF_KERNEL("RefurbishCounts", FunctionOp<SetCounts<Stage>>);
REFURBISH_TF_KERNEL("RefurbishDescription", FunctionOp<DescribeStage>);
REFURBISH_TF_KERNEL("RefurbishGeneration", FunctionOp<FindGeneration>);
REFURBISH_TF_KERNEL("RefurbishState", FunctionOp<SaveState>);
REFURBISH_TF_KERNEL("RefurbishRestore", FunctionOp<RestoreState>);
REFURBISH_TF_KERNEL("InputWait", FunctionOp<InputWait>);

}  // namespace
}  // namespace refurbish_tf
