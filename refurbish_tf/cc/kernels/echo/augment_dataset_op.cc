// `augment_fn` of `echo`: applies a function to each element, on the stage's
// own workers. With symbolic checkpoints the results come in order.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/element_iterator.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {
namespace {

constexpr char kAugmentType[] = "Augment";
constexpr char kFunction[] = "f";
constexpr char kArguments[] = "other_arguments";
constexpr char kArgumentTypes[] = "Targuments";
constexpr char kReady[] = "ready";

// Far more results than are ever ready at once.
constexpr int64_t kMaxReady = 1 << 20;

// Calls the function of each element.
class AugmentWork : public ElementWork {
 public:
  AugmentWork(IteratorBase* input, IteratorContext* ctx,
              std::unique_ptr<InstantiatedInlineFunction> function,
              int max_calls)
      : ElementWork(input, ctx),
        function_(std::move(function)),
        contexts_(ctx, ctx->cancellation_manager(), max_calls) {}

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

class AugmentDataset : public UnaryDataset {
 public:
  AugmentDataset(OpKernelContext* ctx, const DatasetBase* input,
                 std::unique_ptr<InlineFunction> function, DataTypeVector types,
                 std::vector<PartialTensorShape> shapes)
      : UnaryDataset(ctx, input, kAugmentType, std::move(types),
                     std::move(shapes)),
        function_(std::move(function)) {}

  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    std::vector<Tensor> arguments;
    TF_RETURN_IF_ERROR(input_->Get(ctx, index, &arguments));
    if (function_->metadata().calls_python()) CopyHeldByOthers(&arguments);
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
  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    std::vector<Node*> arguments;
    DataTypeVector types;
    TF_RETURN_IF_ERROR(function_->AddToGraph(ctx, b, &arguments, &types));
    return OpWriter(ctx, b)
        .Input(input_)
        .List(arguments)
        .Attr(kFunction, function_->as_traced().func())
        .Attr(kArgumentTypes, types)
        .Write(this, output);
  }

 private:
  friend class AugmentIterator;

  const std::unique_ptr<InlineFunction> function_;

  // For `Get`.
  mutable absl::Mutex mu_;
  mutable std::unique_ptr<InstantiatedCapturedFunction> by_index_
      ABSL_GUARDED_BY(mu_);
};

class AugmentIterator : public ElementIterator<AugmentDataset, AugmentWork> {
 public:
  explicit AugmentIterator(const Params& params)
      : ElementIterator(params, kReady, kMaxReady) {}

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    TF_RETURN_IF_ERROR(ElementIterator::Initialize(ctx));
    absl::MutexLock lock(&mu_);
    return dataset()->function_->Instantiate(ctx, &function_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    int64_t waited_nanos;
    return NextElement(ctx, out_tensors, end_of_sequence, &waited_nanos);
  }

 protected:
  void Run(IteratorContext* ctx) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    OrderedWorkers::Options options = WorkerOptions(
        ctx, kAutotuneCalls, "default", {dataset()->function_.get()});
    // A symbolic checkpoint says only up to which element the input was read.
    if (ctx->symbolic_checkpoint()) options.in_order = true;
    MakeWork(ctx, std::move(function_), options.max_calls);
    Start(options);
  }

 private:
  // Null once the workers have it.
  std::unique_ptr<InstantiatedInlineFunction> function_ ABSL_GUARDED_BY(mu_);
};

class AugmentDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit AugmentDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    NameAttrList function;
    OP_REQUIRES_OK(ctx, GetAttrs(ctx, kFunction, &function, "output_types",
                                 &types_, "output_shapes", &shapes_));
    OP_REQUIRES_OK(ctx, CheckResultTypes(ctx, kFunction, function.name(),
                                         types_, shapes_.size()));
    OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(ctx, std::move(function),
                                                       &metadata_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    std::unique_ptr<InlineFunction> function;
    OP_REQUIRES_OK(
        ctx, InlineFunction::Create(ctx, metadata_, kArguments, &function));
    *output = new IteratedBy<AugmentDataset, AugmentIterator>(
        ctx, input, std::move(function), types_, shapes_);
  }

 private:
  std::shared_ptr<const InlineFunctionMetadata> metadata_;
  DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REFURBISH_TF_KERNEL("AugmentDataset", AugmentDatasetOp);

}  // namespace
}  // namespace refurbish_tf
