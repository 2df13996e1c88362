// Kernels that are plain functions, and helpers for their outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

template <absl::Status (*kFunction)(OpKernelContext*)>
class FunctionOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    // The first input, if any, names a stage or a store, or is a dataset.
    OP_REQUIRES(ctx, ctx->num_inputs() == 0 || ctx->input(0).dims() == 0,
                InvalidArgument("The first input of ", type_string(),
                                " must be a scalar."));
    OP_REQUIRES_OK(ctx, kFunction(ctx));
  }
};

inline Tensor Vector(const std::vector<int64_t>& values) {
  Tensor tensor(DT_INT64, TensorShape({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.vec<int64_t>().data());
  return tensor;
}

// Outputs rows of numbers with the same names, for `native.rows` in Python: the
// names (string [columns]) and the numbers (int64 [rows, columns]).
inline void SetNamedRows(OpKernelContext* ctx,
                         const std::vector<NamedNumbers>& rows) {
  const int64_t num_rows = rows.size();
  const int64_t num_columns = rows.empty() ? 0 : rows[0].size();
  Tensor names(tensorflow::DT_STRING, TensorShape({num_columns}));
  Tensor numbers(tensorflow::DT_INT64, TensorShape({num_rows, num_columns}));
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < num_columns; ++column) {
      const auto& [name, number] = rows[row][column];
      names.vec<tstring>()(column) = name;
      numbers.matrix<int64_t>()(row, column) = number;
    }
  }
  ctx->set_output(0, names);
  ctx->set_output(1, numbers);
}

// The stage that the first input names. Errors call it a `kind` stage.
template <class Stage>
absl::StatusOr<std::shared_ptr<Stage>> FindStage(OpKernelContext* ctx,
                                                 const char* kind) {
  auto stage =
      Registry<Stage>::Global().Find(ctx->input(0).scalar<tstring>()());
  if (stage != nullptr) return stage;
  return FailedPrecondition("This process no longer has the ", kind,
                            " stage: its dataset was deleted.");
}

// Outputs the counts of the stage that the first input names, one row per
// epoch; no rows if the stage is gone.
template <class Stage>
absl::Status SetCounts(OpKernelContext* ctx) {
  std::vector<NamedNumbers> epochs;
  const std::string name = ctx->input(0).scalar<tstring>()();
  if (const auto stage = Registry<Stage>::Global().Find(name)) {
    for (const auto& counts : stage->Counts()) epochs.push_back(counts->Read());
  }
  SetNamedRows(ctx, epochs);
  return absl::OkStatus();
}

}  // namespace refurbish_tf
