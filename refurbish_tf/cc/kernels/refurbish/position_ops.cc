// Ops that return the position of a refurbish stage, or the position in an
// iterator's checkpoint, and that set a stage to a position.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/refurbish/position_checkpoint.h"
#include "refurbish_tf/cc/kernels/stages_upstream.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "tensorflow/core/data/serialization_utils.h"

namespace refurbish_tf {
namespace {

NamedNumbers NumbersOf(EpochPosition position) {
  NamedNumbers numbers;
  ForEachField(&position, [&](const char* name, const auto* value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(*value)>>) {
      numbers.push_back({name, static_cast<int64_t>(*value)});
    }
  });
  return numbers;
}

// For `positions.py`: one row of named numbers; r; and a bit for each sample
// that was yielded.
void SetPosition(OpKernelContext* ctx, const EpochPosition& position) {
  SetNamedRows(ctx, {NumbersOf(position)});
  ctx->set_output(2, Tensor(position.reuse_factor));
  YieldedSamples yielded;
  yielded.Resume(position);
  ctx->set_output(3, yielded.bits());
}

absl::Status StagePosition(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  SetPosition(ctx, stage->Save());
  return absl::OkStatus();
}

absl::Status SavedPosition(OpKernelContext* ctx) {
  const std::string stage = ctx->input(0).scalar<tstring>()();
  const Tensor& checkpoint = ctx->input(1);
  std::vector<const tensorflow::VariantTensorData*> parts;
  for (int64_t i = 0; i < checkpoint.NumElements(); ++i) {
    const auto* part = checkpoint.flat<tensorflow::Variant>()(i)
                           .get<tensorflow::data::IteratorStateVariant>();
    if (part == nullptr || part->GetData() == nullptr) {
      return DamagedCheckpoint("refurbish", "it is not that of an iterator");
    }
    parts.push_back(part->GetData());
  }
  const tensorflow::data::VariantTensorDataReader reader(parts);
  EpochPosition position;
  int64_t num_found = 0;
  for (const auto* part : parts) {
    // tf.data writes the prefix of the iterator, then its keys.
    const std::vector<std::string> names =
        absl::StrSplit(part->metadata_string(), "@@");
    const CheckpointReader saved("refurbish", names[0], nullptr, &reader);
    tstring of;
    if (!reader.Contains(names[0], kSavedStage) ||
        !saved.ReadScalar(kSavedStage, &of).ok() || std::string(of) != stage) {
      continue;
    }
    EpochPosition found;
    TF_RETURN_IF_ERROR(ReadPosition(saved, &found));
    TF_RETURN_IF_ERROR(CheckSaved(found, kUnknownSamples));
    if (!found.begun) continue;
    position = std::move(found);
    ++num_found;
  }
  SetPosition(ctx, position);
  int64_t next_epoch = -1;
  if (reader.Contains(kNextEpochs, stage)) {
    TF_RETURN_IF_ERROR(
        CheckpointReader("refurbish", kNextEpochs, nullptr, &reader)
            .ReadScalar(stage, &next_epoch));
  }
  ctx->set_output(4, Tensor(num_found));
  ctx->set_output(5, Tensor(next_epoch));
  return absl::OkStatus();
}

// The position is checked, because it may come from a damaged file.
absl::Status SetStagePosition(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  const Tensor& numbers = ctx->input(1);
  const Tensor& reuse_factor = ctx->input(2);
  EpochPosition position;
  position.yielded = ctx->input(3);
  position.lost_shards = ctx->input(4);
  const int64_t size = NumbersOf(position).size();
  if (numbers.shape() != TensorShape({size})) {
    return DamagedCheckpoint("refurbish", "its state has shape ",
                             numbers.shape().DebugString(), ", but must have [",
                             size, "]");
  }
  if (reuse_factor.dims() != 0) {
    return DamagedCheckpoint("refurbish", "its reuse_factor has shape ",
                             reuse_factor.shape().DebugString(),
                             ", but must be a scalar");
  }
  const auto values = numbers.vec<int64_t>();
  int64_t next = 0;
  ForEachField(&position, [&](const char*, auto* value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(*value)>>) {
      *value = values(next++);
    }
  });
  position.reuse_factor = reuse_factor.scalar<double>()();
  return stage->Restore(position);
}

absl::Status KeepStagePosition(OpKernelContext* ctx) {
  int64_t next_epoch;
  TF_RETURN_IF_ERROR(GetScalars(ctx, "next_epoch", &next_epoch));
  TF_ASSIGN_OR_RETURN(const auto stage, FindStage<Stage>(ctx, "refurbish"));
  stage->KeepPosition(next_epoch);
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("RefurbishPosition", FunctionOp<StagePosition>);
REFURBISH_TF_KERNEL("RefurbishSavedPosition", FunctionOp<SavedPosition>);
REFURBISH_TF_KERNEL("RefurbishSetPosition", FunctionOp<SetStagePosition>);
REFURBISH_TF_KERNEL("RefurbishKeepPosition", FunctionOp<KeepStagePosition>);

}  // namespace
}  // namespace refurbish_tf
