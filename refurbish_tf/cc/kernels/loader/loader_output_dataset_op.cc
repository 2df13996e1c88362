// The last dataset of a pipeline whose elements go to another framework.
//
// If `exclusive`, nobody else holds an element's memory: what the pipeline
// shares (slices, constants, elements of a cache, repetitions) is copied, so
// that the user may write into it.
//
// The user has been handed all but the last `num_ahead` elements, which are on
// their way to a device. A checkpoint describes what the user has:
// - With `buffer_size`, this iterator reads ahead, in place of a `prefetch`,
// and takes a snapshot of the input after each element. A snapshot holds
// nothing that was read ahead, and shares its tensors with the input. It is
// cheap if the input buffers nothing, which the caller must know.
// - Otherwise a checkpoint holds the elements that are on their way, and those
// that the input's `prefetch` and similar stages have buffered.
// - A symbolic checkpoint has the input's position before these elements.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/element_iterator.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/allocator.h"

namespace refurbish_tf {
namespace {

constexpr ResultsKey kOnTheirWay = {"num_on_their_way", "on_their_way"};

// Copies the tensors whose memory others also hold.
absl::Status MakeExclusive(IteratorContext* ctx, std::vector<Tensor>* element) {
  for (Tensor& tensor : *element) {
    if (tensor.RefCountIsOne() ||
        !tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
      continue;
    }
    Tensor copy(ctx->allocator({}), tensor.dtype(), tensor.shape());
    if (const size_t bytes = tensor.TotalBytes(); bytes > 0) {
      if (!copy.IsInitialized()) {
        return ResourceExhausted("No memory for a copy of a component of ",
                                 bytes, " bytes.");
      }
      std::memcpy(copy.data(), tensor.data(), bytes);
    }
    tensor = std::move(copy);
  }
  return absl::OkStatus();
}

// Reads the input, ahead of the consumer if `max_calls` is above 0.
class ReadWork : public ElementWork {
 public:
  ReadWork(IteratorBase* input, IteratorContext* ctx, bool exclusive)
      : ElementWork(input, ctx), exclusive_(exclusive) {}

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    Result& read = static_cast<ElementPiece&>(*piece).result;
    if (ElementWork::Fetch(piece) == Outcome::kDropped) {
      return Outcome::kDropped;
    }
    if (exclusive_ && read.status.ok()) {
      read.status = MakeExclusive(&ctx(), &read.element);
    }
    return Outcome::kDone;
  }

 private:
  const bool exclusive_;
};

struct LoaderOutputOptions {
  int64_t buffer_size;
  int64_t num_ahead;
  bool exclusive;
};

struct LoaderOutputDataset : public UnaryDataset {
  LoaderOutputDataset(OpKernelContext* ctx, const DatasetBase* input,
                      LoaderOutputOptions options)
      : UnaryDataset(ctx, input, "LoaderOutput"), loader_output(options) {}

  const LoaderOutputOptions loader_output;
};

class LoaderOutputIterator
    : public ElementIterator<LoaderOutputDataset, ReadWork> {
 public:
  explicit LoaderOutputIterator(const Params& params)
      : ElementIterator(params, "hand-over", kOnTheirWay) {}

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    std::unique_ptr<ElementPiece> piece;
    TF_RETURN_IF_ERROR(ReadPiece(ctx, &piece));
    *end_of_sequence = piece == nullptr;
    if (*end_of_sequence) {
      // At the end, the user has every element.
      LeaveLast(ctx, 0);
      if (ctx->symbolic_checkpoint()) HandOver(ctx, work_->Checkpoint());
      return absl::OkStatus();
    }
    auto& [status, element] = piece->result;
    // Copies only restored elements: the workers have copied all others.
    if (options().exclusive && status.ok()) {
      status = MakeExclusive(ctx, &element);
    }
    absl::Status yielded = status;
    if (piece->checkpoint == nullptr && options().num_ahead > 0) {
      *out_tensors = element;
    } else {
      *out_tensors = std::move(element);
    }
    on_their_way_.push_back(std::move(piece));
    LeaveLast(ctx, options().num_ahead);
    return yielded;
  }

 protected:
  void Run(IteratorContext* ctx) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MakeWork(ctx, options().exclusive);
    const bool ahead = options().buffer_size > 0 && !ctx->symbolic_checkpoint();
    if (ahead) TakeSnapshots();
    OrderedWorkers::Options workers;
    workers.max_calls = ahead;
    workers.max_pieces = options().buffer_size;
    Start(workers);
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(SaveReadInput(ctx, writer));
    std::deque<Result> results;
    for (const auto& piece : on_their_way_) {
      if (piece->checkpoint == nullptr) results.push_back(piece->result);
    }
    results.insert(results.end(), restored_.begin(), restored_.end());
    return SaveResults(writer, prefix(), kOnTheirWay, results);
  }

 private:
  const LoaderOutputOptions& options() const {
    return dataset()->loader_output;
  }

  // Notes that the user has all elements so far, except the last `number`.
  void LeaveLast(IteratorContext* ctx, size_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (on_their_way_.size() > number) {
      HandOver(ctx, std::move(on_their_way_.front()->checkpoint));
      on_their_way_.pop_front();
    }
  }

  // The last `num_ahead` elements. Those without a snapshot are saved.
  std::deque<std::unique_ptr<ElementPiece>> on_their_way_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<DatasetBase*> MakeLoaderOutput(OpKernelContext* ctx,
                                              DatasetBase* input) {
  const NodeDef& def = ctx->op_kernel().def();
  LoaderOutputOptions options;
  TF_RETURN_IF_ERROR(GetNodeAttr(def, "buffer_size", &options.buffer_size));
  TF_RETURN_IF_ERROR(GetNodeAttr(def, "num_ahead", &options.num_ahead));
  TF_RETURN_IF_ERROR(GetNodeAttr(def, "exclusive", &options.exclusive));
  if (options.num_ahead + options.exclusive <= 1) {
    return new IteratedBy<LoaderOutputDataset, LoaderOutputIterator>(ctx, input,
                                                                     options);
  }
  return InvalidArgument(
      "num_ahead must be 0 or 1, and 0 if exclusive, because the user does not "
      "own elements on their way to a device; got ",
      options.num_ahead, ".");
}

REFURBISH_TF_KERNEL("LoaderOutputDataset", UnaryDatasetOp<MakeLoaderOutput>);

}  // namespace
}  // namespace refurbish_tf
