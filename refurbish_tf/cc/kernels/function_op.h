// Ops that are plain functions of their context, and their outputs of int64.
#ifndef REFURBISH_TF_CC_KERNELS_FUNCTION_OP_H_
#define REFURBISH_TF_CC_KERNELS_FUNCTION_OP_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {

template <absl::Status (*kFunction)(OpKernelContext*)>
class FunctionOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, kFunction(ctx));
  }
};

inline Tensor Vector(std::initializer_list<int64_t> values) {
  Tensor tensor(DT_INT64, TensorShape({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.vec<int64_t>().data());
  return tensor;
}

template <size_t kColumns>
Tensor Matrix(const std::vector<std::array<int64_t, kColumns>>& rows) {
  Tensor tensor(DT_INT64,
                TensorShape({static_cast<int64_t>(rows.size()), kColumns}));
  int64_t* to = tensor.flat<int64_t>().data();
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return tensor;
}

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_FUNCTION_OP_H_
