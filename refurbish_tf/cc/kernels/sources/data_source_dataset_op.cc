// The elements of a Python source, read by index.
//
// The thread that asks for an element reads it, together with those after it
// that are known to be wanted, in batches that double in size. An index mapper
// may wait and there is no other thread to ask it, so it is asked under
// `AskingAhead`, which turns a wait into an error. A batch that fails is read
// again element by element, as these are asked for.
//
// TensorFlow knows the Python function by a name and a weak reference. The
// dataset in Python, or the graph of the function that built it, holds the
// function; `tf.numpy_function` would hold it, and the source, as long as the
// process lives.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/stage/ask_ahead.h"

namespace refurbish_tf {
namespace {

constexpr char kDataSourceType[] = "DataSource";
constexpr char kReadOne[] = "read_one";
constexpr char kReadMany[] = "read_many";
constexpr char kBatchReads[] = "batch_reads";

// How many positions an index mapper is asked about for each element wanted:
// some positions may belong to other sources, as in `concatenate`.
constexpr int64_t kMostAskedForEach = 4;

// Far more than are ever read at once.
constexpr int64_t kMostBatchReads = 1 << 16;

// An element that is to be handed out, and may have been read.
struct Wanted {
  int64_t position;  // In the order in which elements are handed out.
  int64_t index;     // In the source.
  bool read = false;
  absl::Status status = absl::OkStatus();
  std::vector<Tensor> tensors = {};
};

// The `i`-th element of what a function returned.
absl::Status ElementOf(const std::vector<Tensor>& returned, size_t i,
                       size_t num_components, std::vector<Tensor>* element) {
  const auto code =
      static_cast<absl::StatusCode>(returned[0].vec<int32_t>()(i));
  if (code != absl::StatusCode::kOk) {
    return absl::Status(code, absl::string_view(returned[1].vec<tstring>()(i)));
  }
  const auto first = returned.begin() + 2 + i * num_components;
  element->assign(first, first + num_components);
  return absl::OkStatus();
}

absl::Status CheckReturned(const std::vector<Tensor>& returned,
                           int64_t num_indices, size_t num_tensors) {
  if (returned.size() >= 2 + num_tensors && returned[0].dims() == 1 &&
      returned[1].dims() == 1 && returned[0].NumElements() == num_indices &&
      returned[1].NumElements() == num_indices) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      "rtf.sources.data_source: the function that reads returned too few "
      "tensors, or codes and messages of another shape than the indices.");
}

// Rewords TensorFlow's error for a Python function that it does not find: a
// source lives only as long as its dataset.
absl::Status Explained(const absl::Status& status) {
  if (!absl::StrContains(status.message(), "Could not find callback")) {
    return status;
  }
  return absl::FailedPreconditionError(
      "The Python source of rtf.sources.data_source was not found: its dataset "
      "was deleted in Python, or this is another process. Keep the dataset in "
      "a variable as long as it is read. For a tf.data service or a saved "
      "graph, use files instead: rtf.sources.tfrecord.");
}

Tensor Indices(const std::deque<Wanted>& wanted) {
  std::vector<int64_t> indices;
  for (const Wanted& each : wanted) indices.push_back(each.index);
  return Vector(indices);
}

class DataSourceDataset : public NamedDataset {
 public:
  DataSourceDataset(OpKernelContext* ctx, int64_t num_elements,
                    std::unique_ptr<CapturedFunction> read_one,
                    std::unique_ptr<CapturedFunction> read_many,
                    int64_t batch_reads, DataTypeVector types,
                    std::vector<PartialTensorShape> shapes)
      : NamedDataset(ctx, kDataSourceType, std::move(types), std::move(shapes)),
        num_elements_(num_elements),
        read_one_(std::move(read_one)),
        read_many_(std::move(read_many)),
        batch_reads_(batch_reads) {}

  int64_t CardinalityInternal(CardinalityOptions) const override {
    return num_elements_;
  }
  absl::Status RandomIndexingCompatible() const override {
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override {
    return absl::FailedPreconditionError(
        "rtf.sources.data_source reads an object of this Python process.");
  }

  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    // Not kept: it belongs to the caller's function library, which may go.
    std::unique_ptr<InstantiatedCapturedFunction> function;
    TF_RETURN_IF_ERROR(read_one_->Instantiate(
        InstantiateCapturedFunctionParams(ctx), &function));
    std::vector<Tensor> returned;
    TF_RETURN_IF_ERROR(
        Explained(function->RunInstantiated({Vector({index})}, &returned)));
    TF_RETURN_IF_ERROR(CheckReturned(returned, 1, num_components()));
    return ElementOf(returned, 0, num_components(), out_tensors);
  }

 protected:
  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    // A rewritten graph stays in this process, where the source is found.
    if (!ctx->is_graph_rewrite()) {
      return absl::FailedPreconditionError(
          "rtf.sources.data_source reads an object of this Python process, so "
          "its dataset cannot be sent to another one, as to a tf.data service, "
          "or saved as a graph. Use files instead: rtf.sources.tfrecord.");
    }
    // Neither function captures anything.
    std::vector<Node*> captured;
    DataTypeVector captured_types;
    for (const auto* function : {read_one_.get(), read_many_.get()}) {
      TF_RETURN_IF_ERROR(
          function->AddToGraph(ctx, b, &captured, &captured_types));
    }
    return OpWriter(ctx, b)
        .Scalar(num_elements_)
        .Attr(kReadOne, read_one_->func())
        .Attr(kReadMany, read_many_->func())
        .Attr(kBatchReads, batch_reads_)
        .Write(this, output);
  }

 private:
  friend class DataSourceIterator;

  size_t num_components() const { return output_dtypes().size(); }

  const int64_t num_elements_;
  const std::unique_ptr<CapturedFunction> read_one_, read_many_;
  const int64_t batch_reads_;
};

// `mu_` is held while Python runs, as in every iterator of tf.data while it
// reads its input: a request for the next element waits for this one. Lock
// order: `mu_` before the locks of an index mapper and those of Python.
class DataSourceIterator : public DatasetIterator<DataSourceDataset> {
 public:
  using DatasetIterator<DataSourceDataset>::DatasetIterator;

  bool SymbolicCheckpointCompatible() const override { return true; }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(dataset()->read_one_->Instantiate(ctx, &read_one_));
    return dataset()->read_many_->Instantiate(ctx, &read_many_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (wanted_.empty()) {
      TF_RETURN_IF_ERROR(Ask(ctx));
      if (wanted_.empty()) {
        *end_of_sequence = true;
        // `cached` may have read no element, which would tell another length.
        std::vector<Tensor> returned;
        TF_RETURN_IF_ERROR(Run(ctx, read_one_.get(),
                               {{0, dataset()->num_elements_}}, 1, &returned));
        return ElementOf(returned, 0, /*num_components=*/0, out_tensors);
      }
      if (wanted_.size() > 1) TF_RETURN_IF_ERROR(ReadAll(ctx));
    }
    Wanted& next = wanted_.front();
    if (!next.read) {
      std::vector<Tensor> returned;
      absl::Status ran =
          Run(ctx, read_one_.get(), {next}, /*most=*/1, &returned);
      if (absl::IsCancelled(ran)) return ran;
      // Any error counts as this element's: the reader goes on with the next
      // one.
      next.status = ran.ok()
                        ? ElementOf(returned, 0, dataset()->num_components(),
                                    &next.tensors)
                        : ran;
    } else {
      RecordBufferDequeue(ctx, next.tensors);
    }
    position_ = next.position + 1;
    *out_tensors = std::move(next.tensors);
    absl::Status status = std::move(next.status);
    wanted_.pop_front();
    return status;
  }

 protected:
  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (ctx->index_mapper() != nullptr) {
      return DatasetIterator<DataSourceDataset>::SkipInternal(
          ctx, num_to_skip, end_of_sequence, num_skipped);
    }
    absl::MutexLock lock(&mu_);
    const int64_t left = dataset()->num_elements_ - position_;
    *num_skipped = std::min<int64_t>(num_to_skip, left);
    *end_of_sequence = *num_skipped < num_to_skip;
    position_ += *num_skipped;
    while (!wanted_.empty() && wanted_.front().position < position_) {
      if (wanted_.front().read) {
        RecordBufferDequeue(ctx, wanted_.front().tensors);
      }
      wanted_.pop_front();
    }
    return absl::OkStatus();
  }

  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeSourceNode(std::move(args));
  }

  // Elements read ahead are read again after a restore.
  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return writer->WriteScalar(prefix(), kPosition, position_);
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const CheckpointReader saved("data_source", prefix(), ctx, reader);
    // With an index mapper there may be more positions than elements, as some
    // belong to other sources.
    const int64_t most = ctx->restored_element_count().has_value()
                             ? int64_t{1} << 62
                             : dataset()->num_elements_;
    TF_RETURN_IF_ERROR(saved.ReadNumber(kPosition, 0, most, &position_));
    wanted_.clear();
    return absl::OkStatus();
  }

 private:
  // The index at a position; NotFound if it belongs to another source,
  // OutOfRange at the end.
  absl::StatusOr<size_t> IndexAt(IteratorContext* ctx, int64_t position) const {
    const int64_t num_elements = dataset()->num_elements_;
    absl::StatusOr<size_t> index = position;
    if (ctx->index_mapper() != nullptr) index = ctx->index_mapper()(position);
    if (index.ok() && static_cast<int64_t>(*index) >= num_elements) {
      return absl::OutOfRangeError("The end of the source.");
    }
    return index;
  }

  // Fills `wanted_` with the next element and those after it that are known by
  // now. Leaves it empty at the end.
  absl::Status Ask(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int64_t position = position_;
    absl::StatusOr<size_t> index = IndexAt(ctx, position);
    while (absl::IsNotFound(index.status())) {
      index = IndexAt(ctx, ++position);
    }
    if (absl::IsOutOfRange(index.status())) return absl::OkStatus();
    TF_RETURN_IF_ERROR(index.status());
    wanted_.push_back({position, static_cast<int64_t>(*index)});
    const AskingAhead does_not_wait;
    const int64_t last = position + kMostAskedForEach * next_batch_;
    while (static_cast<int64_t>(wanted_.size()) < next_batch_ &&
           ++position < last) {
      index = IndexAt(ctx, position);
      // Another error is returned when that element is asked for.
      if (index.ok()) {
        wanted_.push_back({position, static_cast<int64_t>(*index)});
      } else if (!absl::IsNotFound(index.status())) {
        break;
      }
    }
    // Begins small, so that the first element of a slow source comes soon.
    next_batch_ = std::min(2 * next_batch_, dataset()->batch_reads_);
    return absl::OkStatus();
  }

  absl::Status ReadAll(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<Tensor> returned;
    absl::Status ran =
        Run(ctx, read_many_.get(), wanted_, dataset()->batch_reads_, &returned);
    // After another error each is read alone, when its turn comes.
    if (!ran.ok()) return absl::IsCancelled(ran) ? ran : absl::OkStatus();
    for (size_t i = 0; i < wanted_.size(); ++i) {
      Wanted& wanted = wanted_[i];
      wanted.status =
          ElementOf(returned, i, dataset()->num_components(), &wanted.tensors);
      wanted.read = true;
      RecordBufferEnqueue(ctx, wanted.tensors);
    }
    return absl::OkStatus();
  }

  // `function` returns `most` elements, of which the first are those wanted.
  absl::Status Run(IteratorContext* ctx, InstantiatedCapturedFunction* function,
                   const std::deque<Wanted>& wanted, int64_t most,
                   std::vector<Tensor>* returned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ctx->cancellation_manager() != nullptr &&
        ctx->cancellation_manager()->IsCancelled()) {
      return absl::CancelledError("Iteration was cancelled.");
    }
    FunctionContexts contexts(ctx, ctx->cancellation_manager(),
                              /*num_calls=*/0);
    TF_RETURN_IF_ERROR(Explained(
        function->Run(&contexts.runs_inline, {Indices(wanted)}, returned)));
    return CheckReturned(*returned, wanted.size(),
                         most * dataset()->num_components());
  }

  absl::Mutex mu_;
  std::unique_ptr<InstantiatedCapturedFunction> read_one_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<InstantiatedCapturedFunction> read_many_ ABSL_GUARDED_BY(mu_);
  // The next position to hand out; `wanted_` begins there or later.
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Wanted> wanted_ ABSL_GUARDED_BY(mu_);
  int64_t next_batch_ ABSL_GUARDED_BY(mu_) = 1;
};

class DataSourceDatasetOp : public DatasetOpKernel {
 public:
  explicit DataSourceDatasetOp(OpKernelConstruction* ctx)
      : DatasetOpKernel(ctx) {
    // Python runs one thread at a time: the calling one is as good as another.
    FunctionMetadata::Params params;
    params.use_inter_op_parallelism = false;
    OP_REQUIRES_OK(ctx,
                   FunctionMetadata::Create(ctx, kReadOne, params, &read_one_));
    OP_REQUIRES_OK(
        ctx, FunctionMetadata::Create(ctx, kReadMany, params, &read_many_));
    OP_REQUIRES_OK(
        ctx, GetAttrs(ctx, kBatchReads, &batch_reads_, "output_types", &types_,
                      "output_shapes", &shapes_));
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
        absl::InvalidArgumentError(absl::StrCat(
            "There must be a shape for each type, and batch_reads must "
            "be at most ",
            kMostBatchReads, ", got ", batch_reads_, ".")));
    check(kReadOne, *read_one_, 1);
    check(kReadMany, *read_many_, batch_reads_);
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    int64_t num_elements;
    OP_REQUIRES_OK(ctx, GetScalars(ctx, "num_elements", &num_elements));
    OP_REQUIRES(
        ctx, num_elements >= 0,
        absl::InvalidArgumentError(absl::StrCat(
            "num_elements must be at least 0, got ", num_elements, ".")));
    std::unique_ptr<CapturedFunction> read_one, read_many;
    OP_REQUIRES_OK(ctx, CapturedFunction::Create(
                            ctx, read_one_, std::vector<Tensor>(), &read_one));
    OP_REQUIRES_OK(
        ctx, CapturedFunction::Create(ctx, read_many_, std::vector<Tensor>(),
                                      &read_many));
    *output = new IteratedBy<DataSourceDataset, DataSourceIterator>(
        ctx, num_elements, std::move(read_one), std::move(read_many),
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
