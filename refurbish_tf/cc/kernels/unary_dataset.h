// The base class of our datasets that have one input.
#ifndef REFURBISH_TF_CC_KERNELS_UNARY_DATASET_H_
#define REFURBISH_TF_CC_KERNELS_UNARY_DATASET_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

// Unless overridden, the elements have the types and shapes of the input's.
// Only the input can prevent a checkpoint: a function of this dataset may draw
// random numbers, as those that it would draw next are random anyway.
class UnaryDataset : public DatasetBase {
 public:
  UnaryDataset(OpKernelContext* ctx, const DatasetBase* input, std::string type)
      : DatasetBase(DatasetContext(ctx)),
        input_(input),
        type_(std::move(type)) {
    input_->Ref();
  }
  ~UnaryDataset() override { input_->Unref(); }

  const DatasetBase* input() const { return input_; }

  const DataTypeVector& output_dtypes() const override {
    return input_->output_dtypes();
  }
  const std::vector<PartialTensorShape>& output_shapes() const override {
    return input_->output_shapes();
  }
  std::string DebugString() const override {
    return name_utils::DatasetDebugString(type_);
  }
  absl::Status InputDatasets(
      std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(input_);
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override {
    return input_->CheckExternalState();
  }

 protected:
  // The prefix of an iterator in checkpoints and in the profiler.
  std::string IteratorPrefix(const std::string& prefix) const {
    return name_utils::IteratorPrefix(type_, prefix);
  }

  const DatasetBase* const input_;

 private:
  const std::string type_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_UNARY_DATASET_H_
