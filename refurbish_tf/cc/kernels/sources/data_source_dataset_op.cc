// The elements of a Python source, read by index.
//
// With one reader, the thread that requests an element reads it, together with
// later elements that are known to be wanted. If a batch fails, its elements
// are read again one by one.
//
// TensorFlow knows the Python function by a name and a weak reference. The
// dataset in Python, or the graph of the function that built the dataset, keeps
// the function alive. `tf.numpy_function` would keep it alive, and with it the
// source, until the process ends.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/sources/indexed_dataset.h"

namespace refurbish_tf {
namespace {

constexpr char kReadOne[] = "read_one";
constexpr char kReadMany[] = "read_many";

// Far more than are ever read at once.
constexpr int64_t kMostBatchReads = 1 << 16;

// Sets `elements` to what a function returned. It returned tensors for `most`
// elements, of which `elements` are the first.
absl::Status Distribute(const std::vector<Tensor>& returned,
                        size_t num_components, size_t most,
                        absl::Span<IndexedElement> elements) {
  const TensorShape shape({static_cast<int64_t>(elements.size())});
  if (returned.size() < 2 + most * num_components ||
      returned[0].shape() != shape || returned[1].shape() != shape) {
    return Internal(
        "rtf.sources.data_source: the function that reads returned too few "
        "tensors, or codes and messages whose shape is not the indices'.");
  }
  auto components = returned.begin() + 2;
  for (size_t i = 0; i < elements.size(); ++i, components += num_components) {
    const auto code =
        static_cast<absl::StatusCode>(returned[0].vec<int32_t>()(i));
    elements[i].status =
        absl::Status(code, absl::string_view(returned[1].vec<tstring>()(i)));
    if (code != absl::StatusCode::kOk) continue;
    elements[i].tensors.assign(components, components + num_components);
  }
  return absl::OkStatus();
}

// Rewords TensorFlow's error for a Python function that it cannot find. The
// function lives only as long as its dataset.
absl::Status Explained(const absl::Status& status) {
  if (!absl::StrContains(status.message(), "Could not find callback")) {
    return status;
  }
  return FailedPrecondition(
      "The Python source of rtf.sources.data_source was not found: its dataset "
      "was deleted in Python, or this is another process. Keep the dataset in "
      "a variable as long as it is read. For a tf.data service or a saved "
      "graph, use files instead: rtf.sources.tfrecord.");
}

class SourceReader : public IndexedReader {
 public:
  explicit SourceReader(const IndexedDataset* dataset)
      : IndexedReader(dataset),
        num_components_(dataset->output_dtypes().size()),
        reads_(dataset->reads()) {}

  absl::Status Instantiate(IteratorContext* ctx, CapturedFunction& read_one,
                           CapturedFunction& read_many) {
    TF_RETURN_IF_ERROR(read_one.Instantiate(ctx, &read_one_));
    return read_many.Instantiate(ctx, &read_many_);
  }

  void Read(FunctionContexts* contexts,
            absl::Span<IndexedElement> elements) override {
    // If reading all of them fails, each is read alone.
    if (elements.size() > 1 &&
        Run(contexts, read_many_.get(), elements, reads_.most_at_once).ok()) {
      return;
    }
    for (IndexedElement& each : elements) {
      // Any error becomes the error of this element.
      const absl::Status ran = Run(contexts, read_one_.get(), {&each, 1}, 1);
      if (!ran.ok()) each.status = ran;
    }
  }

  // Python checks the length of the source when it is asked for this index.
  absl::Status AtEnd(FunctionContexts* contexts) override {
    IndexedElement end;
    end.index = reads_.num_elements;
    TF_RETURN_IF_ERROR(Run(contexts, read_one_.get(), {&end, 1}, 1));
    return end.status;
  }

 private:
  // `function` returns tensors for `most` elements; the first are `elements`.
  absl::Status Run(FunctionContexts* contexts,
                   InstantiatedCapturedFunction* function,
                   absl::Span<IndexedElement> elements, int64_t most) {
    if (contexts->usual.cancellation_manager()->IsCancelled()) {
      return absl::CancelledError("Iteration was cancelled.");
    }
    std::vector<int64_t> indices;
    for (const IndexedElement& each : elements) indices.push_back(each.index);
    std::vector<Tensor> returned;
    TF_RETURN_IF_ERROR(Explained(
        function->Run(&contexts->runs_inline, {Vector(indices)}, &returned)));
    return Distribute(returned, num_components_, most, elements);
  }

  const size_t num_components_;
  const IndexedDataset::Reads reads_;
  std::unique_ptr<InstantiatedCapturedFunction> read_one_, read_many_;
};

class DataSourceDataset : public IndexedDataset {
 public:
  DataSourceDataset(OpKernelContext* ctx, int64_t num_elements,
                    int64_t num_readers,
                    std::unique_ptr<CapturedFunction> read_one,
                    std::unique_ptr<CapturedFunction> read_many,
                    int64_t batch_reads, DataTypeVector types,
                    std::vector<PartialTensorShape> shapes)
      : IndexedDataset(
            ctx, "DataSource", "rtf.sources.data_source", std::move(types),
            std::move(shapes),
            // With one reader, the thread that requests an element reads it.
            {num_elements, num_readers == 1 ? 0 : num_readers, batch_reads}),
        read_one_(std::move(read_one)),
        read_many_(std::move(read_many)) {}

  absl::Status CheckExternalState() const override {
    return FailedPrecondition(
        "rtf.sources.data_source reads an object of this Python process.");
  }

  absl::Status MakeReader(
      IteratorContext* ctx,
      std::unique_ptr<IndexedReader>* reader) const override {
    auto made = std::make_unique<SourceReader>(this);
    TF_RETURN_IF_ERROR(made->Instantiate(ctx, *read_one_, *read_many_));
    *reader = std::move(made);
    return absl::OkStatus();
  }

  using IndexedDataset::Get;
  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    // Not kept: the caller's function library, which it belongs to, may vanish.
    std::unique_ptr<InstantiatedCapturedFunction> function;
    TF_RETURN_IF_ERROR(read_one_->Instantiate(
        InstantiateCapturedFunctionParams(ctx), &function));
    std::vector<Tensor> returned;
    TF_RETURN_IF_ERROR(
        Explained(function->RunInstantiated({Vector({index})}, &returned)));
    IndexedElement element;
    TF_RETURN_IF_ERROR(
        Distribute(returned, output_dtypes().size(), 1, {&element, 1}));
    out_tensors->assign(element.tensors.begin(), element.tensors.end());
    return element.status;
  }

 protected:
  absl::Status AddFunctions(SerializationContext* ctx,
                            Builder* b) const override {
    // A rewritten graph stays in this process, where the source is found.
    if (!ctx->is_graph_rewrite()) {
      return FailedPrecondition(
          "rtf.sources.data_source reads an object of this Python process, so "
          "its dataset cannot be sent to another one, such as a tf.data "
          "service, or saved as a graph. Use files instead: "
          "rtf.sources.tfrecord.");
    }
    for (const auto* function : {read_one_.get(), read_many_.get()}) {
      TF_RETURN_IF_ERROR(
          b->AddFunction(ctx, function->func().name(), *function->lib_def()));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<CapturedFunction> read_one_, read_many_;
};

class DataSourceDatasetOp : public DatasetOpKernel {
 public:
  explicit DataSourceDatasetOp(OpKernelConstruction* ctx)
      : DatasetOpKernel(ctx) {
    // The calling thread runs them: Python runs one thread at a time anyway.
    FunctionMetadata::Params params;
    params.use_inter_op_parallelism = false;
    OP_REQUIRES_OK(ctx,
                   FunctionMetadata::Create(ctx, kReadOne, params, &read_one_));
    OP_REQUIRES_OK(
        ctx, FunctionMetadata::Create(ctx, kReadMany, params, &read_many_));
    OP_REQUIRES_OK(ctx,
                   GetAttrs(ctx, "batch_reads", &batch_reads_, "output_types",
                            &types_, "output_shapes", &shapes_));
    const auto check = [&](const char* name, const FunctionMetadata& function,
                           int64_t num_elements) {
      DataTypeVector types = {tensorflow::DT_INT32, DT_STRING};
      for (int64_t i = 0; i < num_elements; ++i) {
        types.insert(types.end(), types_.begin(), types_.end());
      }
      OP_REQUIRES_OK(ctx, CheckResultTypes(ctx, name, function.func().name(),
                                           types, types.size()));
    };
    OP_REQUIRES(
        ctx, shapes_.size() == types_.size() && batch_reads_ <= kMostBatchReads,
        InvalidArgument(
            "There must be a shape for each type, and batch_reads must "
            "be at most ",
            kMostBatchReads, ", got ", batch_reads_, "."));
    check(kReadOne, *read_one_, 1);
    check(kReadMany, *read_many_, batch_reads_);
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    int64_t num_elements, num_readers;
    OP_REQUIRES_OK(ctx, GetScalars(ctx, "num_elements", &num_elements));
    OP_REQUIRES_OK(ctx, GetNumReads(ctx, &num_readers));
    OP_REQUIRES(ctx, num_elements >= 0,
                InvalidArgument("num_elements must be at least 0, got ",
                                num_elements, "."));
    std::unique_ptr<CapturedFunction> read_one, read_many;
    OP_REQUIRES_OK(ctx, CapturedFunction::Create(
                            ctx, read_one_, std::vector<Tensor>(), &read_one));
    OP_REQUIRES_OK(
        ctx, CapturedFunction::Create(ctx, read_many_, std::vector<Tensor>(),
                                      &read_many));
    *output = new DataSourceDataset(ctx, num_elements, num_readers,
                                    std::move(read_one), std::move(read_many),
                                    batch_reads_, types_, shapes_);
  }

 private:
  std::shared_ptr<FunctionMetadata> read_one_, read_many_;
  int64_t batch_reads_;
  DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REFURBISH_TF_KERNEL("DataSourceDataset", DataSourceDatasetOp);

}  // namespace
}  // namespace refurbish_tf
