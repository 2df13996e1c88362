// What there is to know of stages, found by their names, and of waiting for them.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/stage/saved_epoch.h"
#include "refurbish_tf/cc/stage/stage.h"
#include "tensorflow/core/framework/op_requires.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/lib/random/random.h"

namespace refurbish_tf {
namespace {

class StageNameOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    // The graph that carries the name may go to another process, as a worker of
    // a tf.data service, which names stages of its own.
    static const uint64_t process = tensorflow::random::New64();
    static std::atomic<uint64_t> counter{0};
    Tensor name(tensorflow::DT_STRING, TensorShape({}));
    name.scalar<tstring>()() =
        absl::StrCat("refurbish-", absl::Hex(process), "-", counter++);
    ctx->set_output(0, name);
  }
};

// The stage is gone when nothing of it has been made, or nothing is left.
std::shared_ptr<Stage> FindStage(OpKernelContext* ctx) {
  return Stage::Find(ctx->input(0).scalar<tstring>()());
}

class RefurbishCountsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    const std::shared_ptr<Stage> stage = FindStage(ctx);
    std::vector<EpochCounts> counts;
    if (stage != nullptr) counts = stage->Counts();
    Tensor output(tensorflow::DT_INT64,
                  TensorShape({static_cast<int64_t>(counts.size()), 7}));
    auto values = output.matrix<int64_t>();
    for (size_t i = 0; i < counts.size(); ++i) {
      values(i, 0) = counts[i].fresh;
      values(i, 1) = counts[i].cached;
      values(i, 2) = counts[i].evicted;
      values(i, 3) = counts[i].absent;
      values(i, 4) = counts[i].bytes;
      values(i, 5) = counts[i].fresh_wait_nanos;
      values(i, 6) = counts[i].store_wait_nanos;
    }
    ctx->set_output(0, output);
  }
};

class RefurbishDescriptionOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    const std::shared_ptr<Stage> stage = FindStage(ctx);
    StageDescription description;
    if (stage != nullptr) description = stage->Describe();
    Tensor output(tensorflow::DT_INT64, TensorShape({7}));
    auto values = output.vec<int64_t>();
    values(0) = description.num_samples;
    values(1) = description.num_kept;
    values(2) = description.random_access;
    values(3) = description.seed;
    values(4) = description.order_seed;
    values(5) = description.partial_inline;
    values(6) = description.final_inline;
    ctx->set_output(0, output);
  }
};

absl::Status NoStage() {
  return absl::FailedPreconditionError(
      "There is nothing left of this refurbish stage in this process.");
}

// What `Stage::Save` returns, as numbers.
constexpr int64_t kStateSize = 7;

class RefurbishStateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    const std::shared_ptr<Stage> stage = FindStage(ctx);
    OP_REQUIRES(ctx, stage != nullptr, NoStage());
    const SavedEpoch saved = stage->Save();
    Tensor output(tensorflow::DT_INT64, TensorShape({kStateSize}));
    auto values = output.vec<int64_t>();
    values(0) = saved.seed;
    values(1) = saved.order_seed;
    values(2) = saved.next_epoch;
    values(3) = saved.scheduled;
    values(4) = saved.num_samples;
    values(5) = saved.num_kept;
    values(6) = saved.origin;
    ctx->set_output(0, output);
    ctx->set_output(1, Tensor(saved.reuse_factor));
  }
};

// What is found in a backup may be damaged.
class RefurbishRestoreOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    const std::shared_ptr<Stage> stage = FindStage(ctx);
    OP_REQUIRES(ctx, stage != nullptr, NoStage());
    const Tensor& state = ctx->input(1);
    const Tensor& reuse_factor = ctx->input(2);
    OP_REQUIRES(ctx, state.shape() == TensorShape({kStateSize}),
                DamagedCheckpoint(absl::StrCat(
                    "its state has shape ", state.shape().DebugString(),
                    ", but must have [", kStateSize, "]")));
    OP_REQUIRES(ctx, reuse_factor.dims() == 0,
                DamagedCheckpoint(absl::StrCat(
                    "its reuse_factor has shape ",
                    reuse_factor.shape().DebugString(), ", but must be one")));
    const auto values = state.vec<int64_t>();
    SavedEpoch saved;
    saved.seed = values(0);
    saved.order_seed = values(1);
    saved.next_epoch = values(2);
    saved.scheduled = values(3) != 0;
    saved.num_samples = values(4);
    saved.num_kept = values(5);
    saved.origin = values(6);
    saved.reuse_factor = reuse_factor.scalar<double>()();
    OP_REQUIRES_OK(ctx, stage->Restore(saved).status());
  }
};

// TensorFlow measures how long each call takes that fetches an element from the
// end of a pipeline, wherever in a graph it is called from, as in the training
// step of Keras. It keeps this for those who monitor a process, and so do we
// read it.
class InputWaitOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    constexpr char kMetric[] = "/tensorflow/data/getnext_duration";
    tensorflow::monitoring::CollectionRegistry::CollectMetricsOptions options;
    options.collect_metric_descriptors = false;
    const auto metrics =
        tensorflow::monitoring::CollectionRegistry::Default()->CollectMetrics(
            options);
    Tensor output(0.0);
    double& seconds = output.scalar<double>()();
    const auto found = metrics->point_set_map.find(kMetric);
    if (found != metrics->point_set_map.end()) {
      for (const auto& point : found->second->points) {
        seconds += 1e-6 * point->histogram_value.sum();
      }
    }
    ctx->set_output(0, output);
  }
};

REGISTER_KERNEL_BUILDER(Name("RefurbishTf>StageName").Device(DEVICE_CPU),
                        StageNameOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>RefurbishCounts").Device(DEVICE_CPU),
                        RefurbishCountsOp);
REGISTER_KERNEL_BUILDER(
    Name("RefurbishTf>RefurbishDescription").Device(DEVICE_CPU),
    RefurbishDescriptionOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>RefurbishState").Device(DEVICE_CPU),
                        RefurbishStateOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>RefurbishRestore").Device(DEVICE_CPU),
                        RefurbishRestoreOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>InputWait").Device(DEVICE_CPU),
                        InputWaitOp);

}  // namespace
}  // namespace refurbish_tf
