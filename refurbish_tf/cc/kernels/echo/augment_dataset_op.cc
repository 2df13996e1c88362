// `augment_fn` of `echo`: applies a function to each element, on the stage's
// own workers.
//
// A checkpoint waits for the calls in progress (`OrderedWorkers::Settle`) and
// holds the results that are ready. A symbolic checkpoint is the input's, from
// when the element handed out last had been read; the results come in order
// then.
#include <atomic>
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
class ElementWork : public OrderedWorkers::Work {
 public:
  // `ctx` is the input's. All arguments must outlive this object.
  ElementWork(IteratorBase* input, IteratorContext* ctx,
              InstantiatedInlineFunction* function, FunctionContexts* contexts)
      : input_(*input),
        ctx_(*ctx),
        function_(*function),
        contexts_(*contexts) {}

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    if (input_ended_) return OrderedWorkers::Claimed::kEnd;
    *piece = std::make_unique<ElementPiece>();
    return OrderedWorkers::Claimed::kFetch;
  }

  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& element = static_cast<ElementPiece&>(*piece);
    bool end = input_ended_;
    if (!end) {
      element.result.status =
          input_.GetNext(&ctx_, &element.result.element, &end);
    }
    if (end && element.result.status.ok()) {
      input_ended_ = true;
      return OrderedWorkers::Outcome::kDropped;
    }
    // After the merge the context's own checkpoint can take the next element.
    element.checkpoint.emplace(ctx_.id_registry());
    element.checkpoint->Merge(ctx_.checkpoint());
    return element.result.status.ok() ? OrderedWorkers::Outcome::kRun
                                      : OrderedWorkers::Outcome::kDone;
  }

  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override {
    Result& result = static_cast<ElementPiece&>(*piece).result;
    std::vector<Tensor> arguments = std::move(result.element);
    result.status = Printable(
        function_.Run(&contexts_, std::move(arguments), &result.element));
    if (result.status.ok()) OwnBuffers(&result.element);
    return OrderedWorkers::Outcome::kDone;
  }

  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    return SampleBytes(static_cast<const ElementPiece&>(piece).result.element);
  }

 private:
  IteratorBase& input_;
  IteratorContext& ctx_;
  InstantiatedInlineFunction& function_;
  FunctionContexts& contexts_;
  std::atomic<bool> input_ended_{false};
};

class AugmentDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit AugmentDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    NameAttrList function;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kFunction, &function));
    OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(ctx, std::move(function),
                                                       &metadata_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &output_types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &output_shapes_));
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

// Lock order: `mu_` before the workers' locks.
class AugmentDatasetOp::Dataset::Iterator : public DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

  // The input is destroyed first: it has registered callbacks with the
  // cancellation manager of `workers_`.
  ~Iterator() override {
    workers_.Cancel();
    workers_.Stop();
    input_.reset();
  }

  bool SymbolicCheckpointCompatible() const override { return true; }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
    IteratorContext input_ctx = InputContext(ctx);
    TF_RETURN_IF_ERROR(
        dataset()->input_->MakeIterator(&input_ctx, this, prefix(), &input_));
    ctx->MergeCheckpoint(input_ctx.checkpoint());
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
    if (workers_.get() == nullptr) Run(ctx);
    std::unique_ptr<OrderedWorkers::Piece> piece;
    int64_t waited_nanos;
    RecordStop(ctx);
    const OrderedWorkers::Next next =
        workers_.get()->GetNext(&piece, &waited_nanos);
    RecordStart(ctx);
    switch (next) {
      case OrderedWorkers::Next::kCancelled:
      case OrderedWorkers::Next::kStuck:
        return OrderedWorkers::ErrorOf(next);
      case OrderedWorkers::Next::kEnd:
        ctx->MergeCheckpoint(input_ctx_->checkpoint());
        *end_of_sequence = true;
        return absl::OkStatus();
      case OrderedWorkers::Next::kPiece:
        break;
    }
    auto& element = static_cast<ElementPiece&>(*piece);
    ctx->MergeCheckpoint(&*element.checkpoint);
    *out_tensors = std::move(element.result.element);
    return element.result.status;
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeAsyncKnownRatioNode(std::move(args), /*ratio=*/1, {});
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    // A symbolic checkpoint is only the input's; elements read ahead are read
    // again.
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    std::vector<const OrderedWorkers::Piece*> ready;
    if (workers_.get() != nullptr && !workers_.get()->Settle(&ready)) {
      return absl::CancelledError("Iteration was cancelled.");
    }
    absl::Status status = SaveSettled(ctx, writer, ready);
    if (workers_.get() != nullptr) workers_.get()->Resume();
    return status;
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
  IteratorContext InputContext(IteratorContext* ctx) {
    IteratorContext::Params params(ctx);
    params.cancellation_manager = workers_.cancellation_manager();
    return IteratorContext(std::move(params));
  }

  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    input_ctx_.emplace(InputContext(ctx));
    OrderedWorkers::Options options = WorkerOptions(
        ctx, kAutotuneCalls, "default", {dataset()->function_.get()});
    contexts_.emplace(ctx, workers_.cancellation_manager(), options.max_calls);
    work_.emplace(input_.get(), &*input_ctx_, function_.get(), &*contexts_);
    // A symbolic checkpoint says only up to which element the input was read.
    if (ctx->symbolic_checkpoint()) options.in_order = true;
    workers_.Start(options, &*work_, &contexts_->usual, nullptr);
  }

  // Only while the workers are settled.
  absl::Status SaveSettled(SerializationContext* ctx,
                           IteratorStateWriter* writer,
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

  absl::Mutex mu_;
  // Not guarded by `mu_`: the workers read it, too, one at a time and never
  // while they are settled.
  std::unique_ptr<IteratorBase> input_;
  std::unique_ptr<InstantiatedInlineFunction> function_ ABSL_GUARDED_BY(mu_);
  // Results from a checkpoint, which are handed out first.
  std::deque<Result> restored_ ABSL_GUARDED_BY(mu_);
  // Set when the first element is requested.
  std::optional<IteratorContext> input_ctx_;
  std::optional<FunctionContexts> contexts_ ABSL_GUARDED_BY(mu_);
  std::optional<ElementWork> work_ ABSL_GUARDED_BY(mu_);
  // They use all of the above. Started and stopped with `mu_` held.
  IteratorWorkers workers_;
};

std::unique_ptr<IteratorBase> AugmentDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{
      this, IteratorPrefix(prefix)});
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
