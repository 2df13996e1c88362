// Ops that name, describe and count stages, and one that reports how long
// consumers have waited for pipelines.
#include <atomic>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/lib/random/random.h"

namespace refurbish_tf {
namespace {

absl::Status MakeStageName(OpKernelContext* ctx) {
  // The name is unique across processes, because a graph that has it may go to
  // another process, such as a worker of a tf.data service.
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
  int64_t index, epoch;
  TF_RETURN_IF_ERROR(GetScalars(ctx, "index", &index, "epoch", &epoch));
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  TF_ASSIGN_OR_RETURN(const int64_t generation,
                      stage->GenerationOf(index, epoch));
  ctx->set_output(0, Tensor(generation));
  return absl::OkStatus();
}

// TensorFlow measures the duration of each call that fetches an element from
// the end of a pipeline, including calls within a graph, such as Keras'
// training step. This op reads that metric.
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
REFURBISH_TF_KERNEL("InputWait", FunctionOp<InputWait>);

}  // namespace
}  // namespace refurbish_tf
