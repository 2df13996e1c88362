// The end of a pipeline whose elements go to another framework.
//
// If `exclusive`, nobody else holds an element's memory: what the pipeline
// shares (slices, constants, elements of a cache, repetitions) is copied, so
// that the user may write into it.
//
// The user has been handed all but the last `num_ahead` elements, which are on
// their way to a device. A checkpoint has what the user has:
// - With `buffer_size`, this reads ahead itself, in place of a `prefetch`, and
//   saves the input after each element. Such a snapshot holds nothing that was
//   read ahead, and shares its tensors with the input. It is cheap if the input
//   buffers nothing, which the caller must know.
// - Otherwise it holds the elements that are on their way, and what the input's
//   `prefetch` and the like have buffered.
// - A symbolic checkpoint is the input's, from before these elements were read.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/allocator.h"

namespace refurbish_tf {
namespace {

constexpr char kLoaderOutputType[] = "LoaderOutput";
constexpr char kReadAheadSize[] = "buffer_size";
constexpr char kNumAhead[] = "num_ahead";
constexpr char kExclusive[] = "exclusive";
constexpr char kOnTheirWay[] = "on_their_way";

absl::Status CopyTensor(IteratorContext* ctx, Tensor* tensor) {
  Tensor copy(ctx->allocator({}), tensor->dtype(), tensor->shape());
  if (tensor->TotalBytes() > 0) {
    if (!copy.IsInitialized()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("No memory for a copy of a component of ",
                       tensor->TotalBytes(), " bytes."));
    }
    std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  }
  *tensor = std::move(copy);
  return absl::OkStatus();
}

// Copies tensors that others hold as well.
absl::Status MakeExclusive(IteratorContext* ctx, std::vector<Tensor>* element) {
  for (Tensor& tensor : *element) {
    if (!tensor.RefCountIsOne() &&
        tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
      TF_RETURN_IF_ERROR(CopyTensor(ctx, &tensor));
    }
  }
  return absl::OkStatus();
}

template <class T>
void LeaveLast(int64_t number, std::deque<T>* queue) {
  while (static_cast<int64_t>(queue->size()) > number) queue->pop_front();
}

struct ReadPiece : OrderedWorkers::Piece {
  Result result;
  // The input's, after the element.
  std::optional<MemoryCheckpoint> snapshot;
};

// Reads the input ahead.
class ReadWork : public InputWork<ReadPiece> {
 public:
  ReadWork(IteratorBase* input, IteratorContext* ctx, bool exclusive)
      : InputWork(input, ctx), exclusive_(exclusive) {}

  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& read = static_cast<ReadPiece&>(*piece);
    if (!Read(&read.result)) return OrderedWorkers::Outcome::kDropped;
    if (exclusive_ && read.result.status.ok()) {
      read.result.status = MakeExclusive(&ctx(), &read.result.element);
    }
    read.snapshot.emplace(Snapshot());
    return OrderedWorkers::Outcome::kDone;
  }

 private:
  const bool exclusive_;
};

struct LoaderOutputOptions {
  int64_t buffer_size;
  int64_t num_ahead;
  bool exclusive;
};

class LoaderOutputDataset : public UnaryDataset {
 public:
  LoaderOutputDataset(OpKernelContext* ctx, const DatasetBase* input,
                      LoaderOutputOptions options)
      : UnaryDataset(ctx, input, kLoaderOutputType), options_(options) {}

  const LoaderOutputOptions& loader_output() const { return options_; }

 protected:
  void WriteArguments(OpWriter* op) const override {
    op->Input(input_)
        .Attr(kReadAheadSize, options_.buffer_size)
        .Attr(kNumAhead, options_.num_ahead)
        .Attr(kExclusive, options_.exclusive);
  }

 private:
  const LoaderOutputOptions options_;
};

class LoaderOutputIterator
    : public InputIterator<LoaderOutputDataset, ReadWork> {
 public:
  using InputIterator::InputIterator;

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (ctx->symbolic_checkpoint()) {
      return GetNextSymbolic(ctx, out_tensors, end_of_sequence);
    }
    Result next;
    if (!restored_.empty()) {
      next = std::move(restored_.front());
      restored_.pop_front();
    } else if (options().buffer_size > 0) {
      return GetNextRead(ctx, out_tensors, end_of_sequence);
    } else {
      IteratorContext input_ctx = InputContext(ctx);
      next.status = input_->GetNext(&input_ctx, &next.element, end_of_sequence);
      if (*end_of_sequence) {
        on_their_way_.clear();
        return next.status;
      }
    }
    if (options().exclusive && next.status.ok()) {
      next.status = MakeExclusive(ctx, &next.element);
    }
    if (options().num_ahead > 0) on_their_way_.push_back(next);
    LeaveLast(options().num_ahead, &on_their_way_);
    *out_tensors = std::move(next.element);
    return next.status;
  }

 protected:
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    std::vector<const Result*> results;
    if (IsRunning()) {
      TF_RETURN_IF_ERROR(snapshots_.front().GetStatus());
      TF_RETURN_IF_ERROR(snapshots_.front().Save(writer));
    } else {
      TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
      for (const auto* some : {&on_their_way_, &restored_}) {
        for (const Result& result : *some) results.push_back(&result);
      }
    }
    return SaveResults(writer, prefix(), kOnTheirWay, results);
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (ctx->symbolic_checkpoint()) return RestoreInput(ctx, reader, input_);
    // Everything is checked before anything is changed.
    const CheckpointReader saved("hand-over", prefix(), ctx, reader);
    std::deque<Result> restored;
    TF_RETURN_IF_ERROR(
        saved.ReadResults(kOnTheirWay, /*most=*/1, dataset()->output_dtypes(),
                          dataset()->output_shapes(), &restored));
    workers_.Stop();
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    restored_ = std::move(restored);
    on_their_way_.clear();
    return absl::OkStatus();
  }

 private:
  const LoaderOutputOptions& options() const {
    return dataset()->loader_output();
  }

  absl::Status GetNextSymbolic(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext input_ctx = InputContext(ctx);
    absl::Status status =
        input_->GetNext(&input_ctx, out_tensors, end_of_sequence);
    changes_.push_back(std::move(*input_ctx.checkpoint()));
    while (static_cast<int64_t>(changes_.size()) > options().num_ahead) {
      ctx->MergeCheckpoint(&changes_.front());
      changes_.pop_front();
    }
    if (options().exclusive && status.ok() && !*end_of_sequence) {
      status = MakeExclusive(ctx, out_tensors);
    }
    return status;
  }

  absl::Status GetNextRead(IteratorContext* ctx,
                           std::vector<Tensor>* out_tensors,
                           bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!IsRunning()) Run(ctx);
    std::unique_ptr<ReadPiece> read;
    int64_t waited_nanos;
    TF_RETURN_IF_ERROR(NextPiece(ctx, &read, &waited_nanos));
    if (read == nullptr) {
      // The user has all that was yielded.
      LeaveLast(1, &snapshots_);
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    snapshots_.push_back(*std::move(read->snapshot));
    LeaveLast(options().num_ahead + 1, &snapshots_);
    *out_tensors = std::move(read->result.element);
    return read->result.status;
  }

  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MakeWork(ctx, options().exclusive);
    snapshots_.clear();
    snapshots_.push_back(work_->Snapshot());
    OrderedWorkers::Options workers;
    workers.max_pieces = options().buffer_size;
    Start(workers);
  }

  // Elements from a checkpoint, which are yielded first.
  std::deque<Result> restored_ ABSL_GUARDED_BY(mu_);
  // The last `num_ahead` elements, if a checkpoint must hold them.
  std::deque<Result> on_their_way_ ABSL_GUARDED_BY(mu_);
  // With `buffer_size`: the input before the last `num_ahead` elements, and
  // after each of them.
  std::deque<MemoryCheckpoint> snapshots_ ABSL_GUARDED_BY(mu_);
  // The changes of the last `num_ahead` elements in a symbolic checkpoint.
  std::deque<MemoryCheckpoint> changes_ ABSL_GUARDED_BY(mu_);
};

class LoaderOutputDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit LoaderOutputDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(
        ctx, GetAttrs(ctx, kReadAheadSize, &options_.buffer_size, kNumAhead,
                      &options_.num_ahead, kExclusive, &options_.exclusive));
    OP_REQUIRES(ctx, options_.num_ahead + options_.exclusive <= 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "num_ahead must be 0 or 1, and 0 if exclusive, as what is "
                    "on its way to a device is not the user's; got ",
                    options_.num_ahead, ".")));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    *output = new IteratedBy<LoaderOutputDataset, LoaderOutputIterator>(
        ctx, input, options_);
  }

 private:
  LoaderOutputOptions options_;
};

REFURBISH_TF_KERNEL("LoaderOutputDataset", LoaderOutputDatasetOp);

}  // namespace
}  // namespace refurbish_tf
