// `augment_fn` of `echo`: applies a function to each element, on the stage's
// own workers.
//
// A checkpoint waits for the calls in progress (`OrderedWorkers::Settle`) and
// holds the results that are ready. A symbolic checkpoint is the input's, from
// when the element handed out last had been read; the results come in order
// then.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/unary_dataset.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {
namespace {

constexpr char kAugmentType[] = "Augment";
constexpr char kFunction[] = "f";
constexpr char kArguments[] = "other_arguments";
constexpr char kArgumentTypes[] = "Targuments";
constexpr char kNumReady[] = "num_ready";
constexpr char kReady[] = "ready";

// Far more results than are ever ready at once.
constexpr int64_t kMaxReady = 1 << 20;

struct ElementPiece : OrderedWorkers::Piece {
  Result result;
  // The input's, from the previous element up to this one.
  std::optional<MemoryCheckpoint> checkpoint;
};

// Reads an element of the input, then calls the function.
class ElementWork : public InputWork<ElementPiece> {
 public:
  ElementWork(IteratorBase* input, IteratorContext* ctx,
              std::unique_ptr<InstantiatedInlineFunction> function,
              int max_calls)
      : InputWork(input, ctx),
        function_(std::move(function)),
        contexts_(ctx, ctx->cancellation_manager(), max_calls) {}

  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& element = static_cast<ElementPiece&>(*piece);
    if (!Read(&element.result)) return OrderedWorkers::Outcome::kDropped;
    element.checkpoint.emplace(DrainChanges());
    return element.result.status.ok() ? OrderedWorkers::Outcome::kRun
                                      : OrderedWorkers::Outcome::kDone;
  }

  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override {
    Result& result = static_cast<ElementPiece&>(*piece).result;
    std::vector<Tensor> arguments = std::move(result.element);
    result.status = Printable(
        function_->Run(&contexts_, std::move(arguments), &result.element));
    if (result.status.ok()) OwnBuffers(&result.element);
    return OrderedWorkers::Outcome::kDone;
  }

  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    return SampleBytes(static_cast<const ElementPiece&>(piece).result.element);
  }

 private:
  const std::unique_ptr<InstantiatedInlineFunction> function_;
  FunctionContexts contexts_;
};

class AugmentDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit AugmentDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    NameAttrList function;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kFunction, &function));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &output_types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &output_shapes_));
    OP_REQUIRES_OK(ctx, CheckResultTypes(ctx, kFunction, function.name(),
                                         output_types_, output_shapes_.size()));
    OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(ctx, std::move(function),
                                                       &metadata_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override;

 private:
  class Dataset;

  std::shared_ptr<const InlineFunctionMetadata> metadata_;
  DataTypeVector output_types_;
  std::vector<PartialTensorShape> output_shapes_;
};

class AugmentDatasetOp::Dataset : public UnaryDataset {
 public:
  Dataset(OpKernelContext* ctx, const DatasetBase* input,
          std::unique_ptr<InlineFunction> function, DataTypeVector output_types,
          std::vector<PartialTensorShape> output_shapes)
      : UnaryDataset(ctx, input, kAugmentType),
        function_(std::move(function)),
        output_types_(std::move(output_types)),
        output_shapes_(std::move(output_shapes)) {}

  const DataTypeVector& output_dtypes() const override { return output_types_; }

  const std::vector<PartialTensorShape>& output_shapes() const override {
    return output_shapes_;
  }

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    return input_->Cardinality(options);
  }

  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    std::vector<Tensor> arguments;
    TF_RETURN_IF_ERROR(input_->Get(ctx, index, &arguments));
    InstantiatedCapturedFunction* function;
    {
      absl::MutexLock lock(&mu_);
      if (by_index_ == nullptr) {
        TF_RETURN_IF_ERROR(function_->as_traced().Instantiate(
            InstantiateCapturedFunctionParams(ctx), &by_index_));
      }
      function = by_index_.get();
    }
    return function->RunInstantiated(arguments, out_tensors);
  }

  absl::Status RandomIndexingCompatible() const override {
    return input_->RandomIndexingCompatible();
  }

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;

  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    Node* input = nullptr;
    TF_RETURN_IF_ERROR(b->AddInputDataset(ctx, input_, &input));
    std::vector<Node*> arguments;
    DataTypeVector argument_types;
    TF_RETURN_IF_ERROR(
        function_->AddToGraph(ctx, b, &arguments, &argument_types));
    AttrValue function, types;
    b->BuildAttrValue(function_->as_traced().func(), &function);
    b->BuildAttrValue(argument_types, &types);
    return b->AddDataset(this, {{0, input}}, {{1, arguments}},
                         {{kFunction, function}, {kArgumentTypes, types}},
                         output);
  }

 private:
  class Iterator;

  const std::unique_ptr<InlineFunction> function_;
  const DataTypeVector output_types_;
  const std::vector<PartialTensorShape> output_shapes_;

  // For `Get`.
  mutable absl::Mutex mu_;
  mutable std::unique_ptr<InstantiatedCapturedFunction> by_index_
      ABSL_GUARDED_BY(mu_);
};

class AugmentDatasetOp::Dataset::Iterator
    : public InputIterator<Dataset, ElementWork> {
 public:
  explicit Iterator(const Params& params) : InputIterator(params) {}

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    TF_RETURN_IF_ERROR(InputIterator::Initialize(ctx));
    absl::MutexLock lock(&mu_);
    return dataset()->function_->Instantiate(ctx, &function_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (!restored_.empty()) {
      Result result = std::move(restored_.front());
      restored_.pop_front();
      *out_tensors = std::move(result.element);
      return result.status;
    }
    if (!IsRunning()) Run(ctx);
    std::unique_ptr<ElementPiece> piece;
    int64_t waited_nanos;
    TF_RETURN_IF_ERROR(NextPiece(ctx, &piece, &waited_nanos));
    if (piece == nullptr) {
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    ctx->MergeCheckpoint(&*piece->checkpoint);
    *out_tensors = std::move(piece->result.element);
    return piece->result.status;
  }

 protected:
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    // A symbolic checkpoint is only the input's; elements read ahead are read
    // again.
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    return WhileSettled(
        [&](const auto& ready) { return SaveSettled(ctx, writer, ready); });
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (ctx->symbolic_checkpoint()) return RestoreInput(ctx, reader, input_);
    // Everything is checked before anything is changed.
    const CheckpointReader saved("echo", prefix(), ctx, reader);
    int64_t num_ready = 0;
    TF_RETURN_IF_ERROR(saved.ReadNumber(kNumReady, 0, kMaxReady, &num_ready));
    std::deque<Result> restored;
    for (int64_t i = 0; i < num_ready; ++i) {
      TF_RETURN_IF_ERROR(saved.ReadResult(
          absl::StrCat(kReady, "_", i), dataset()->output_dtypes(),
          dataset()->output_shapes(), &restored.emplace_back()));
    }
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    restored_ = std::move(restored);
    return absl::OkStatus();
  }

 private:
  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    OrderedWorkers::Options options = WorkerOptions(
        ctx, kAutotuneCalls, "default", {dataset()->function_.get()});
    // A symbolic checkpoint says only up to which element the input was read.
    if (ctx->symbolic_checkpoint()) options.in_order = true;
    MakeWork(ctx, std::move(function_), options.max_calls);
    Start(options);
  }

  // Only while the workers are settled.
  absl::Status SaveSettled(
      SerializationContext* ctx, IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    int64_t num_ready = 0;
    const auto save = [&](const Result& result) {
      return SaveResult(writer, prefix(),
                        absl::StrCat(kReady, "_", num_ready++), result);
    };
    for (const Result& result : restored_) TF_RETURN_IF_ERROR(save(result));
    for (const OrderedWorkers::Piece* piece : ready) {
      TF_RETURN_IF_ERROR(save(static_cast<const ElementPiece*>(piece)->result));
    }
    return writer->WriteScalar(prefix(), kNumReady, num_ready);
  }

  // Null once the workers have it.
  std::unique_ptr<InstantiatedInlineFunction> function_ ABSL_GUARDED_BY(mu_);
  // Results from a checkpoint, which are handed out first.
  std::deque<Result> restored_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<IteratorBase> AugmentDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(
      Iterator::Params{this, IteratorPrefix(prefix)});
}

void AugmentDatasetOp::MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                                   DatasetBase** output) {
  std::unique_ptr<InlineFunction> function;
  OP_REQUIRES_OK(ctx,
                 InlineFunction::Create(ctx, metadata_, kArguments, &function));
  *output = new Dataset(ctx, input, std::move(function), output_types_,
                        output_shapes_);
}

REGISTER_KERNEL_BUILDER(Name("RefurbishTf>AugmentDataset").Device(DEVICE_CPU),
                        AugmentDatasetOp);

}  // namespace
}  // namespace refurbish_tf
