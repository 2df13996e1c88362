// Common parts of our datasets and their ops: base classes, reading arguments,
// and writing graphs.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/graph/graph.h"

namespace refurbish_tf {

// Reads attributes of an op: pairs of a name and where the value goes.
inline absl::Status GetAttrs(OpKernelConstruction*) { return absl::OkStatus(); }
template <class T, class... More>
absl::Status GetAttrs(OpKernelConstruction* ctx, const char* name, T* value,
                      More... more) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, value));
  return GetAttrs(ctx, more...);
}

// Reads scalars among an op's inputs: pairs of a name and where the value goes.
inline absl::Status GetScalars(OpKernelContext*) { return absl::OkStatus(); }
template <class T, class... More>
absl::Status GetScalars(OpKernelContext* ctx, const char* name, T* value,
                        More... more) {
  std::conditional_t<std::is_same_v<T, std::string>, tstring, T> read{};
  TF_RETURN_IF_ERROR(ParseScalarArgument(ctx, name, &read));
  *value = std::move(read);
  return GetScalars(ctx, more...);
}

// Writes the op of a dataset to a graph: its inputs in their order, and its
// attributes. All but `Write` keep an error for `Write` to return.
class OpWriter {
 public:
  using Builder = DatasetBase::DatasetGraphDefBuilder;

  OpWriter(SerializationContext* ctx, Builder* builder)
      : ctx_(ctx), builder_(*builder) {}

  OpWriter& Input(const DatasetBase* dataset) {
    return Add([&](Node** node) {
      return builder_.AddInputDataset(ctx_, dataset, node);
    });
  }
  template <class T>
  OpWriter& Scalar(const T& value) {
    using Written =
        std::conditional_t<std::is_same_v<T, std::string>, tstring, T>;
    return Add(
        [&](Node** node) { return builder_.AddScalar(Written(value), node); });
  }
  template <class T>
  OpWriter& Vector(const std::vector<T>& values) {
    return Add([&](Node** node) { return builder_.AddVector(values, node); });
  }
  // A tensor that may be large: a rewrite does not copy it.
  OpWriter& Value(const Tensor& value) {
    return Add([&](Node** node) {
      if (!ctx_->is_graph_rewrite()) return builder_.AddTensor(value, node);
      TF_RETURN_IF_ERROR(builder_.AddPlaceholder(value, node));
      ctx_->input_list()->emplace_back((*node)->name(), value);
      return absl::OkStatus();
    });
  }
  // `nodes` must live until `Write`.
  OpWriter& List(const std::vector<Node*>& nodes) {
    lists_.push_back({inputs_.size() + lists_.size(), nodes});
    return *this;
  }
  template <class T>
  OpWriter& Attr(const char* name, const T& value) {
    attrs_.push_back({name, builder_.BuildAttrValue(value)});
    return *this;
  }
  absl::Status Write(const DatasetBase* dataset, Node** output) {
    TF_RETURN_IF_ERROR(status_);
    return builder_.AddDataset(dataset, inputs_, lists_, attrs_, output);
  }

 private:
  template <class MakeNode>
  OpWriter& Add(const MakeNode& make_node) {
    Node* node = nullptr;
    if (status_.ok()) status_ = make_node(&node);
    inputs_.push_back({inputs_.size() + lists_.size(), node});
    return *this;
  }

  SerializationContext* const ctx_;
  Builder& builder_;
  absl::Status status_;
  std::vector<std::pair<size_t, Node*>> inputs_;
  std::vector<std::pair<size_t, absl::Span<Node* const>>> lists_;
  std::vector<std::pair<absl::string_view, AttrValue>> attrs_;
};

// A dataset without inputs, unless overridden.
class NamedDataset : public DatasetBase {
 public:
  NamedDataset(OpKernelContext* ctx, std::string type, DataTypeVector dtypes,
               std::vector<PartialTensorShape> shapes)
      : DatasetBase(DatasetContext(ctx)),
        type_(std::move(type)),
        dtypes_(std::move(dtypes)),
        shapes_(std::move(shapes)) {}

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
  // The name of the file whose whole content is the element, if any.
  virtual std::string FileOf(int64_t /*index*/) const { return ""; }

 protected:
  // Writes the arguments of its op, in order.
  virtual void WriteArguments(OpWriter* /*op*/) const {}
  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    OpWriter op(ctx, b);
    WriteArguments(&op);
    return op.Write(this, output);
  }
  // The prefix of an iterator in checkpoints and in the profiler.
  std::string IteratorPrefix(const std::string& prefix) const {
    return name_utils::IteratorPrefix(type_, prefix);
  }

 private:
  const std::string type_;
  const DataTypeVector dtypes_;
  const std::vector<PartialTensorShape> shapes_;
};

// A dataset with one input, which determines its cardinality, types and shapes
// unless they are given. Only the input can prevent a checkpoint: a function of
// this dataset may draw random numbers, because the numbers that it would draw
// next are random anyway.
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

// A `Dataset` that is iterated by `Iterator`s.
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
