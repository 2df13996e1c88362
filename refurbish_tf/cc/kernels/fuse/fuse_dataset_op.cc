// The ops of fuse stages.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/damaged_checkpoint.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/fuse/fuse_dataset.h"
#include "refurbish_tf/cc/kernels/fuse/fuse_iterator.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {

absl::Status FuseDataset::AsGraphDefInternal(SerializationContext* ctx,
                                             DatasetGraphDefBuilder* b,
                                             Node** output) const {
  const FuseOptions& options = arguments_.options;
  return OpWriter(ctx, b)
      .Input(input_)
      .Scalar(arguments_.stage)
      .Scalar(arguments_.seed)
      .Attr("layers", arguments_.layers)
      .Attr("shared_layers", arguments_.shared_layers)
      .Attr("batch_size", options.batch_size)
      .Attr("num_parts", options.num_parts)
      .Attr("eighths", arguments_.eighths)
      .Attr("group", options.group)
      .Attr("slots", options.slots)
      .Attr("drop_remainder", options.drop_remainder)
      .Attr("image", options.image)
      .Attr("image_height", options.size.height)
      .Attr("image_width", options.size.width)
      .Attr("seeded", options.seeded)
      .Attr("any_seed", arguments_.any_seed)
      .Attr("components", options.components)
      .Write(this, output);
}

namespace {

class FuseDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit FuseDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    FuseOptions& options = attrs_.options;
    for (const auto& [name, value] :
         {std::pair<const char*, int64_t*>{"batch_size", &options.batch_size},
          {"num_parts", &options.num_parts},
          {"eighths", &attrs_.eighths},
          {"group", &options.group},
          {"slots", &options.slots},
          {"image", &options.image},
          {"image_height", &options.size.height},
          {"image_width", &options.size.width}}) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr(name, value));
    }
    OP_REQUIRES_OK(ctx,
                   ctx->GetAttr("drop_remainder", &options.drop_remainder));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seeded", &options.seeded));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("any_seed", &attrs_.any_seed));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("components", &options.components));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &options.types));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &options.shapes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("layers", &attrs_.layers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_layers", &attrs_.shared_layers));
    for (auto [texts, run] :
         {std::pair{&attrs_.layers, &options.layers},
          std::pair{&attrs_.shared_layers, &options.shared_layers}}) {
      if (texts->empty()) continue;
      absl::StatusOr<LayerRun> parsed = LayerRun::Parse(*texts);
      OP_REQUIRES_OK(ctx, parsed.status());
      *run = *std::move(parsed);
    }
    OP_REQUIRES(ctx,
                options.batch_size % options.num_parts == 0 &&
                    attrs_.eighths <= 8 && options.layers.has_value() &&
                    options.components.size() == options.types.size(),
                absl::InvalidArgumentError(
                    "The arguments of fuse do not go together."));
    OP_REQUIRES_OK(ctx, options.layers->SizeBehind(options.size).status());
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    FuseArguments arguments = attrs_;
    OP_REQUIRES_OK(ctx, GetScalars(ctx, "stage", &arguments.stage, "seed",
                                   &arguments.seed));
    const FuseOptions& options = arguments.options;
    const int64_t num_inputs = input->output_dtypes().size();
    OP_REQUIRES(
        ctx,
        options.image < num_inputs &&
            input->output_dtypes()[options.image] == tensorflow::DT_UINT8 &&
            (!options.seeded ||
             input->output_dtypes().back() == tensorflow::DT_INT32),
        absl::InvalidArgumentError("The input of fuse has other components."));
    *output = new IteratedBy<FuseDataset, FuseIterator>(ctx, input,
                                                        std::move(arguments));
  }

 private:
  FuseArguments attrs_;
};

std::shared_ptr<FuseStage> FindFuseStage(OpKernelContext* ctx) {
  return Registry<FuseStage>::Global().Find(ctx->input(0).scalar<tstring>()());
}

absl::Status FuseCounts(OpKernelContext* ctx) {
  std::vector<NamedNumbers> epochs;
  if (const auto stage = FindFuseStage(ctx)) {
    for (const auto& counts : stage->Counts()) epochs.push_back(counts->Read());
  }
  SetNamedRows(ctx, epochs);
  return absl::OkStatus();
}

absl::Status FuseShares(OpKernelContext* ctx) {
  std::vector<std::pair<int64_t, int>> shares;
  if (const auto stage = FindFuseStage(ctx)) shares = stage->Shares();
  Tensor rows(DT_INT64, TensorShape({static_cast<int64_t>(shares.size()), 2}));
  for (size_t i = 0; i < shares.size(); ++i) {
    rows.matrix<int64_t>()(i, 0) = shares[i].first;
    rows.matrix<int64_t>()(i, 1) = shares[i].second;
  }
  ctx->set_output(0, rows);
  return absl::OkStatus();
}

absl::Status NoFuseStage() {
  return absl::FailedPreconditionError(
      "This process no longer has the fuse stage: its dataset was deleted.");
}

absl::Status SaveFuseState(OpKernelContext* ctx) {
  const std::shared_ptr<FuseStage> stage = FindFuseStage(ctx);
  if (stage == nullptr) return NoFuseStage();
  ctx->set_output(0, Vector(stage->Save()));
  return absl::OkStatus();
}

// What is found in a backup may be damaged.
absl::Status RestoreFuseState(OpKernelContext* ctx) {
  const std::shared_ptr<FuseStage> stage = FindFuseStage(ctx);
  if (stage == nullptr) return NoFuseStage();
  const Tensor& state = ctx->input(1);
  if (state.shape() != TensorShape({2})) {
    return DamagedCheckpoint("fuse", "its state has shape ",
                             state.shape().DebugString(),
                             ", but must have [2]");
  }
  const auto values = state.vec<int64_t>();
  if (values(1) < 0 || values(1) > FuseStage::kMostEpochs) {
    return DamagedCheckpoint("fuse", "its next epoch is ", values(1));
  }
  TF_RETURN_IF_ERROR(stage->CheckSeed(values(0)));
  stage->Restore(values(0), values(1));
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("FuseDataset", FuseDatasetOp);
REFURBISH_TF_KERNEL("FuseCounts", FunctionOp<FuseCounts>);
REFURBISH_TF_KERNEL("FuseShares", FunctionOp<FuseShares>);
REFURBISH_TF_KERNEL("FuseState", FunctionOp<SaveFuseState>);
REFURBISH_TF_KERNEL("FuseRestore", FunctionOp<RestoreFuseState>);

}  // namespace
}  // namespace refurbish_tf
