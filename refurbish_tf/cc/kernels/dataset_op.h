// Common parts of our datasets and their ops: base classes, and functions that
// read attributes and inputs.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/graph.h"

namespace refurbish_tf {

// Reads attributes of an op: pairs of a name and a pointer to the value.
inline absl::Status GetAttrs(OpKernelConstruction*) { return absl::OkStatus(); }
template <class T, class... More>
absl::Status GetAttrs(OpKernelConstruction* ctx, const char* name, T* value,
                      More... more) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, value));
  return GetAttrs(ctx, more...);
}

// Reads scalar inputs of an op: pairs of a name and a pointer to the value.
inline absl::Status GetScalars(OpKernelContext*) { return absl::OkStatus(); }
template <class T, class... More>
absl::Status GetScalars(OpKernelContext* ctx, const char* name, T* value,
                        More... more) {
  std::conditional_t<std::is_same_v<T, std::string>, tstring, T> read{};
  TF_RETURN_IF_ERROR(ParseScalarArgument(ctx, name, &read));
  *value = std::move(read);
  return GetScalars(ctx, more...);
}

// A dataset, by default without input datasets. It is written to a graph as the
// op that made it, with the same arguments and attributes.
class NamedDataset : public DatasetBase {
 public:
  NamedDataset(OpKernelContext* ctx, std::string type, DataTypeVector dtypes,
               std::vector<PartialTensorShape> shapes)
      : DatasetBase(DatasetContext(ctx)),
        type_(std::move(type)),
        dtypes_(std::move(dtypes)),
        shapes_(std::move(shapes)),
        op_(ctx->op_kernel().def()) {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      arguments_.push_back(ctx->input(i));
    }
  }

  const DataTypeVector& output_dtypes() const override { return dtypes_; }
  const std::vector<PartialTensorShape>& output_shapes() const override {
    return shapes_;
  }
  std::string DebugString() const override {
    return name_utils::DatasetDebugString(type_);
  }
  absl::Status InputDatasets(std::vector<const DatasetBase*>*) const override {
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override { return absl::OkStatus(); }
  // The file whose whole content is the element at this index, or empty.
  virtual std::string FileOf(int64_t /*index*/) const { return ""; }

 protected:
  using Builder = DatasetGraphDefBuilder;

  // Adds the functions that its op calls to a graph.
  virtual absl::Status AddFunctions(SerializationContext*, Builder*) const {
    return absl::OkStatus();
  }
  absl::Status AsGraphDefInternal(SerializationContext* ctx, Builder* b,
                                  Node** output) const override {
    TF_RETURN_IF_ERROR(AddFunctions(ctx, b));
    const tensorflow::OpDef* op;
    TF_RETURN_IF_ERROR(
        tensorflow::OpRegistry::Global()->LookUpOpDef(op_.op(), &op));
    std::vector<std::pair<size_t, Node*>> inputs;
    std::vector<std::vector<Node*>> captured(op->input_arg_size());
    std::vector<std::pair<size_t, absl::Span<Node* const>>> lists;
    auto argument = arguments_.begin();
    for (int i = 0; i < op->input_arg_size(); ++i) {
      const std::string& types = op->input_arg(i).type_list_attr();
      if (types.empty()) {
        TF_RETURN_IF_ERROR(AddArgument(
            ctx, b, *argument++, &inputs.emplace_back(i, nullptr).second));
        continue;
      }
      captured[i].resize(op_.attr().at(types).list().type_size());
      for (Node*& node : captured[i]) {
        TF_RETURN_IF_ERROR(AddCaptured(ctx, b, *argument++, &node));
      }
      lists.push_back({i, captured[i]});
    }
    std::vector<std::pair<absl::string_view, AttrValue>> attrs;
    for (const auto& [name, value] : op_.attr()) {
      // `AddDataset` sets the attributes about outputs and metadata. Attributes
      // that begin with "_" are internal to TensorFlow.
      if (name != "metadata" && !absl::StartsWith(name, "output_") &&
          !absl::StartsWith(name, "_")) {
        attrs.push_back({name, value});
      }
    }
    return b->AddDataset(this, inputs, lists, attrs, output);
  }
  std::string IteratorPrefix(const std::string& prefix) const {
    return name_utils::IteratorPrefix(type_, prefix);
  }

 private:
  static absl::Status AddArgument(SerializationContext* ctx, Builder* b,
                                  const Tensor& argument, Node** node) {
    if (argument.dtype() == tensorflow::DT_VARIANT) {
      DatasetBase* input;
      TF_RETURN_IF_ERROR(
          tensorflow::data::GetDatasetFromVariantTensor(argument, &input));
      return b->AddInputDataset(ctx, input, node);
    }
    return argument.dims() == 0 ? b->AddTensor(argument, node)
                                : AddCaptured(ctx, b, argument, node);
  }

  // For a graph rewrite, adds a placeholder in place of a tensor, which may be
  // large. Datasets are always added, because the rewrite must see them.
  static absl::Status AddCaptured(SerializationContext* ctx, Builder* b,
                                  const Tensor& captured, Node** node) {
    if (!ctx->is_graph_rewrite() ||
        captured.dtype() == tensorflow::DT_VARIANT) {
      return b->AddDatasetOrTensor(ctx, captured, node);
    }
    TF_RETURN_IF_ERROR(b->AddPlaceholder(captured, node));
    ctx->input_list()->emplace_back((*node)->name(), captured);
    return absl::OkStatus();
  }

  const std::string type_;
  const DataTypeVector dtypes_;
  const std::vector<PartialTensorShape> shapes_;
  const NodeDef op_;
  std::vector<Tensor> arguments_;
};

// A dataset with one input dataset, which also determines its cardinality, and
// its types and shapes unless they are given. `CheckExternalState` asks only
// the input: a function of this dataset may be stateful and still allow
// checkpoints, because at most it draws other random numbers after a restore.
class UnaryDataset : public NamedDataset {
 public:
  UnaryDataset(OpKernelContext* ctx, const DatasetBase* input, std::string type)
      : UnaryDataset(ctx, input, std::move(type), input->output_dtypes(),
                     input->output_shapes()) {}
  UnaryDataset(OpKernelContext* ctx, const DatasetBase* input, std::string type,
               DataTypeVector dtypes, std::vector<PartialTensorShape> shapes)
      : NamedDataset(ctx, std::move(type), std::move(dtypes),
                     std::move(shapes)),
        input_(input) {
    input_->Ref();
  }
  ~UnaryDataset() override { input_->Unref(); }

  const DatasetBase* input() const { return input_; }

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    return input_->Cardinality(options);
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
  const DatasetBase* const input_;
};

// The op of a dataset with one input, which `kMake` makes.
template <absl::StatusOr<DatasetBase*> (*kMake)(OpKernelContext*,
                                                DatasetBase* input)>
class UnaryDatasetOp : public UnaryDatasetOpKernel {
 public:
  using UnaryDatasetOpKernel::UnaryDatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    OP_REQUIRES_VALUE(*output, ctx, kMake(ctx, input));
  }
};

template <class Dataset, class Iterator>
class IteratedBy : public Dataset {
 public:
  using Dataset::Dataset;

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override {
    return std::make_unique<Iterator>(
        typename Iterator::Params{this, this->IteratorPrefix(prefix)});
  }
};

}  // namespace refurbish_tf
