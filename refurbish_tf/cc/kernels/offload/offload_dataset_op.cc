// The ops of offload stages.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/offload/offload_dataset.h"

namespace refurbish_tf {

namespace {

template <class... Parts>
absl::Status Refused(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("OffloadDataset: ", parts...));
}

// Checks what does not depend on the input: a loaded graph may say anything.
absl::Status CheckAttributes(const OffloadArguments& arguments) {
  const OffloadOptions& options = arguments.options;
  const auto& all = DeviceFractionRule::kEighths;
  if (arguments.eighths != DeviceFractionRule::kAutotuned &&
      std::find(all.begin(), all.end(), arguments.eighths) == all.end()) {
    return Refused("eighths must be 0, 1, 2, 4, 8 or -1, got ",
                   arguments.eighths, ".");
  }
  if (options.batch_size % options.num_parts != 0) {
    return Refused("batch_size must be a multiple of num_parts, got ",
                   options.batch_size, " and ", options.num_parts, ".");
  }
  if (options.tables > options.group) {
    return Refused("tables must be at most group, got ", options.tables,
                   " and ", options.group, ".");
  }
  TF_ASSIGN_OR_RETURN(const ImageSpec made,
                      options.layers.Behind({options.size, kOffloadPixel}));
  if (!(made.size == options.size)) {
    return Refused("its layers must not change the size of an image.");
  }
  if (options.frames > 0 && !options.policy_layers.links().empty()) {
    return Refused("the layers of clips must have no policies.");
  }
  TensorShape images, draws;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
      options.ShapeWith({options.size.width, 3}), &images));
  TF_RETURN_IF_ERROR(images.InsertDimWithStatus(0, options.batch_size));
  return TensorShape::BuildTensorShape(
      {options.batch_size, options.num_columns()}, &draws);
}

// Checks the components against the input, and sets the output shapes: the op's
// attribute adds only the layers' fingerprint.
absl::Status CheckComponents(const DatasetBase& input,
                             OffloadOptions* options) {
  const DataTypeVector& types = input.output_dtypes();
  const int64_t num_inputs = types.size();
  if (options->image >= num_inputs ||
      types[options->image] != tensorflow::DT_UINT8) {
    return Refused("component ", options->image,
                   " of the input must be an image of uint8.");
  }
  if (options->seeded &&
      (types.back() != tensorflow::DT_INT32 ||
       !input.output_shapes().back().IsCompatibleWith({2}))) {
    return Refused(
        "the last component of the input must be a seed, int32 [2].");
  }
  const std::vector<int64_t>& components = options->components;
  if (components.size() != options->types.size() ||
      components.size() != options->shapes.size()) {
    return Refused(
        "components, output_types and output_shapes must be as many.");
  }
  for (const int64_t once : {OffloadOptions::kImages, OffloadOptions::kDraws}) {
    if (std::count(components.begin(), components.end(), once) != 1) {
      return Refused("components must have ", once, " once.");
    }
  }
  const PartialTensorShape batch(
      {options->drop_remainder ? options->batch_size : -1});
  for (size_t i = 0; i < components.size(); ++i) {
    const int64_t from = components[i];
    PartialTensorShape& shape = options->shapes[i];
    DataType type = tensorflow::DT_INT32;
    PartialTensorShape row;
    if (from == OffloadOptions::kImages) {
      type = tensorflow::DT_UINT8;
      row = PartialTensorShape(options->ShapeWith({options->size.width * 3}));
    } else if (from == OffloadOptions::kDraws) {
      row = PartialTensorShape({options->num_columns()});
    } else if (from == OffloadOptions::kLayers) {
      row = PartialTensorShape({0, shape.dims() == 3 ? shape.dim_size(2) : -1});
    } else if (from >= 0 && from < num_inputs) {
      type = types[from];
      row = input.output_shapes()[from];
    } else {
      return Refused("components must be from -3 to ", num_inputs - 1, ", got ",
                     from, ".");
    }
    PartialTensorShape made;
    TF_RETURN_IF_ERROR(batch.ConcatenateWithStatus(row, &made));
    if (options->types[i] != type || !shape.IsCompatibleWith(made) ||
        (from < 0 && !row.IsFullyDefined())) {
      return Refused("output ", i, " must be ", DataTypeString(type),
                     made.DebugString(), ", got ",
                     DataTypeString(options->types[i]), shape.DebugString(),
                     ".");
    }
    shape = made;
  }
  return absl::OkStatus();
}

class OffloadDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit OffloadDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    OffloadOptions& options = attrs_.options;
    absl::Status status;
    const auto get = [&](const char* name, auto& value) {
      status.Update(ctx->GetAttr(name, &value));
    };
    OffloadArguments::ForEachAttribute(attrs_, get);
    get("output_types", options.types);
    get("output_shapes", options.shapes);
    OP_REQUIRES_OK(ctx, status);
    OP_REQUIRES_VALUE(options.layers, ctx, LayerChain::Parse(attrs_.layers));
    options.policy_layers = options.layers.UpToLastPolicy();
    OP_REQUIRES_OK(ctx, CheckAttributes(attrs_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    OffloadArguments arguments = attrs_;
    OP_REQUIRES_OK(ctx, GetScalars(ctx, "stage", &arguments.stage, "seed",
                                   &arguments.seed));
    OP_REQUIRES_OK(ctx, CheckComponents(*input, &arguments.options));
    *output = MakeOffloadDataset(ctx, input, std::move(arguments));
  }

 private:
  OffloadArguments attrs_;
};

absl::Status SaveOffloadState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage,
                      FindStage<OffloadStage>(ctx, "offload"));
  SetNamedRows(ctx, {stage->Save()});
  return absl::OkStatus();
}

// A backup may hold damaged values.
absl::Status RestoreOffloadState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage,
                      FindStage<OffloadStage>(ctx, "offload"));
  const Tensor& state = ctx->input(1);
  if (state.shape() != TensorShape({2})) {
    return DamagedCheckpoint("offload", "its state has shape ",
                             state.shape().DebugString(),
                             ", but must have [2]");
  }
  const auto values = state.vec<int64_t>();
  if (values(1) < 0 || values(1) > OffloadStage::kMostEpochs) {
    return DamagedCheckpoint("offload", "its next epoch is ", values(1));
  }
  TF_RETURN_IF_ERROR(stage->CheckSeed(values(0)));
  stage->Restore(values(0), values(1));
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("OffloadDataset", OffloadDatasetOp);
REFURBISH_TF_KERNEL("OffloadCounts", FunctionOp<SetCounts<OffloadStage>>);
REFURBISH_TF_KERNEL("OffloadState", FunctionOp<SaveOffloadState>);
REFURBISH_TF_KERNEL("OffloadRestore", FunctionOp<RestoreOffloadState>);

}  // namespace
}  // namespace refurbish_tf
