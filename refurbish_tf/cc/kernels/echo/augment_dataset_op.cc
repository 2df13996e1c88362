// `augment_fn` of `echo`: applies a function to each element, on the stage's
// own workers, which also make batches if `echo` has a batch size. With
// symbolic checkpoints the results come in order.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/batches/batch_memory.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/element_iterator.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {
namespace {

constexpr char kFunction[] = "f";
constexpr ResultsKey kReady = {"num_ready", "ready"};

class AugmentWork : public ElementWork {
 public:
  // `rows`: the rows of batches that results are written into, or null.
  AugmentWork(IteratorBase* input, IteratorContext* ctx,
              std::unique_ptr<InstantiatedInlineFunction> function,
              int max_calls, std::shared_ptr<BatchRows> rows)
      : ElementWork(input, ctx),
        function_(std::move(function)),
        contexts_(ctx, ctx->cancellation_manager(), max_calls),
        rows_(std::move(rows)) {}

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    const Outcome outcome = ElementWork::Fetch(piece);
    if (outcome == Outcome::kRun && rows_ != nullptr) {
      static_cast<ElementPiece&>(*piece).row = rows_->Take();
    }
    return outcome;
  }

  Outcome Run(OrderedWorkers::Piece* piece) override {
    auto& element = static_cast<ElementPiece&>(*piece);
    Result& result = element.result;
    std::vector<Tensor> arguments = std::move(result.element);
    result.element.clear();
    if (rows_ == nullptr) {
      result.status = Printable(
          function_->Run(&contexts_, std::move(arguments), &result.element));
      if (result.status.ok()) OwnBuffers(&result.element);
    } else if (element.row.batch == nullptr) {
      result.status = rows_->NoMemory();
    } else {
      result.status = Printable(function_->RunInto(
          &contexts_, std::move(arguments), *rows_, element.row));
    }
    return Outcome::kDone;
  }

  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    return SampleBytes(static_cast<const ElementPiece&>(piece).result.element);
  }

 private:
  const std::unique_ptr<InstantiatedInlineFunction> function_;
  FunctionContexts contexts_;
  const std::shared_ptr<BatchRows> rows_;
};

class AugmentDataset : public UnaryDataset {
 public:
  AugmentDataset(OpKernelContext* ctx, const DatasetBase* input,
                 std::unique_ptr<InlineFunction> function, Batches batches,
                 DataTypeVector types, std::vector<PartialTensorShape> shapes)
      : UnaryDataset(ctx, input, "Augment", std::move(types),
                     std::move(shapes)),
        function_(std::move(function)),
        batches_(batches) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    return batches_.Cardinality(input_->Cardinality(options));
  }

  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    if (batches_.size == 0) return GetElement(ctx, index, out_tensors);
    const int64_t begin = index * batches_.size;
    BatchRows::Options options = RowsOf(batches_, this);
    options.most_rows = std::min(
        batches_.size, input_->Cardinality(CardinalityOptions()) - begin);
    const int64_t end = begin + options.most_rows;
    BatchRows rows(std::move(options), std::make_shared<BatchMemory>(
                                           "echo", ctx->get_allocator({})));
    BatchRows::Row row;
    for (int64_t i = begin; i < end; ++i) {
      std::vector<Tensor> element;
      TF_RETURN_IF_ERROR(GetElement(ctx, i, &element));
      TF_RETURN_IF_ERROR(rows.Add(element, &row));
    }
    *out_tensors = std::move(row.batch->components);
    return absl::OkStatus();
  }

  absl::Status RandomIndexingCompatible() const override {
    if (batches_.size == 0) return input_->RandomIndexingCompatible();
    return FailedPrecondition(
        "A global shuffle cannot follow the batches of echo. Put it before "
        "echo, or pass shuffle_buffer_size to echo.");
  }

 protected:
  absl::Status AddFunctions(SerializationContext* ctx,
                            Builder* b) const override {
    return function_->AddToGraph(ctx, b);
  }

 private:
  friend class AugmentIterator;

  absl::Status GetElement(OpKernelContext* ctx, int64_t index,
                          std::vector<Tensor>* element) const {
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
    return function->RunInstantiated(arguments, element);
  }

  const std::unique_ptr<InlineFunction> function_;
  const Batches batches_;

  // Instantiated by the first `Get`, which runs the function without workers.
  mutable absl::Mutex mu_;
  mutable std::unique_ptr<InstantiatedCapturedFunction> by_index_
      ABSL_GUARDED_BY(mu_);
};

class AugmentIterator : public ElementIterator<AugmentDataset, AugmentWork> {
 public:
  explicit AugmentIterator(const Params& params)
      : ElementIterator(params, "echo", kReady) {}

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    TF_RETURN_IF_ERROR(ElementIterator::Initialize(ctx));
    absl::MutexLock lock(&mu_);
    options_ = WorkerOptions(ctx, kAutotuneCalls, "default",
                             {dataset()->function_.get()});
    // A symbolic checkpoint is an input position, so results must be in order.
    options_.in_order |= ctx->symbolic_checkpoint();
    if (dataset()->batches_.size > 0) {
      // Rows are always assigned in order: if results are not in order, the
      // consumer takes a row for each result when it arrives.
      rows_ = MakeRows(dataset()->batches_, dataset(),
                       dataset()->input()->Cardinality(CardinalityOptions()),
                       /*in_order=*/true, workers_.MemoryOfBatches("echo", ctx),
                       &options_);
    }
    return dataset()->function_->Instantiate(ctx, &function_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (rows_ != nullptr) return NextBatch(ctx, out_tensors, end_of_sequence);
    return NextElement(ctx, out_tensors, end_of_sequence);
  }

 protected:
  std::vector<PartialTensorShape> ElementShapes() const override {
    std::vector<PartialTensorShape> shapes = dataset()->output_shapes();
    if (dataset()->batches_.size > 0) {
      for (PartialTensorShape& shape : shapes) shape.RemoveDim(0);
    }
    return shapes;
  }

  void Run(IteratorContext* ctx) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // If results come out of order, the consumer writes them into the rows.
    MakeWork(ctx, std::move(function_), options_.max_calls,
             options_.in_order ? rows_ : nullptr);
    Start(options_);
  }

 private:
  absl::Status NextBatch(IteratorContext* ctx, std::vector<Tensor>* batch,
                         bool* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bool whole = false;
    while (!whole) {
      std::unique_ptr<ElementPiece> piece;
      TF_RETURN_IF_ERROR(NextPiece(ctx, &piece));
      if (piece == nullptr) break;
      absl::Status status = piece->result.status;
      if (status.ok() && piece->row.batch == nullptr) {
        status = rows_->Add(piece->result.element, &piece->row);
      }
      TF_RETURN_IF_ERROR(rows_->Gather(std::move(status), piece->row,
                                       /*index=*/0, &whole));
    }
    std::vector<uint32_t> gathered;
    *end = !rows_->TakeBatch(batch, &gathered);
    return absl::OkStatus();
  }

  OrderedWorkers::Options options_ ABSL_GUARDED_BY(mu_);
  // Null unless there are batches.
  std::shared_ptr<BatchRows> rows_ ABSL_GUARDED_BY(mu_);
  // Null once `Run` has given it to the workers.
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
    Batches batches;
    if (type_string() == "RefurbishTf>AugmentBatchDataset") {
      OP_REQUIRES_OK(
          ctx, GetScalars(ctx, "batch_size", &batches.size, "drop_remainder",
                          &batches.drop_remainder));
      OP_REQUIRES_OK(ctx, batches.Check(shapes_));
    }
    std::unique_ptr<InlineFunction> function;
    OP_REQUIRES_OK(ctx, InlineFunction::Create(ctx, metadata_,
                                               "other_arguments", &function));
    *output = new IteratedBy<AugmentDataset, AugmentIterator>(
        ctx, input, std::move(function), batches, types_, shapes_);
  }

 private:
  std::shared_ptr<const InlineFunctionMetadata> metadata_;
  DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REFURBISH_TF_KERNEL("AugmentDataset", AugmentDatasetOp);
REFURBISH_TF_KERNEL("AugmentBatchDataset", AugmentDatasetOp);

}  // namespace
}  // namespace refurbish_tf
