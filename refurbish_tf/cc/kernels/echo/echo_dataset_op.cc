// Data echoing with a fixed factor: yields each element of the input several
// times, without copying it.
// With a whole factor e, element p of the output is element p / e of the input,
// so elements can be read by index. With a symbolic checkpoint between two
// repetitions, the input resumes before the repeated element: the input's
// symbolic checkpoint is held back until the last repetition.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/op_lists.h"
#include "refurbish_tf/cc/plan/echo.h"
#include "tensorflow/core/util/overflow.h"

namespace refurbish_tf {
namespace {

constexpr char kLeft[] = "left";
constexpr char kElement[] = "element";

// Far beyond any position that is reached: adding to it cannot overflow.
constexpr int64_t kMaxPosition = int64_t{1} << 62;

// Fails if an index mapper cannot request an element of `dataset` twice:
// `RandomIndexingCompatible` only promises each element once, in any order.
absl::Status CheckYieldsAnyNumberOfTimes(const DatasetBase* dataset) {
  if (HasTrait(dataset->type_string(), kCounts)) {
    return FailedPrecondition(
        "echo does not support random access after ", dataset->type_string(),
        ", which counts the elements it yields: echo asks for each of them "
        "several times. Move that stage after echo, with e times the number.");
  }
  std::vector<const DatasetBase*> inputs;
  TF_RETURN_IF_ERROR(dataset->InputDatasets(&inputs));
  for (const DatasetBase* input : inputs) {
    TF_RETURN_IF_ERROR(CheckYieldsAnyNumberOfTimes(input));
  }
  return absl::OkStatus();
}

class EchoDataset : public UnaryDataset {
 public:
  EchoDataset(OpKernelContext* ctx, const DatasetBase* input, double factor,
              int64_t seed)
      : UnaryDataset(ctx, input, "Echo"),
        factor_(factor),
        schedule_(static_cast<uint64_t>(seed), factor) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    if (cardinality <= 0) return cardinality;  // Empty, unknown or infinite.
    if (!schedule_.is_whole()) return kUnknownCardinality;
    const int64_t repeated = tensorflow::MultiplyWithoutOverflow(
        cardinality, schedule_.Repetitions(0));
    // The product is negative if it does not fit into int64.
    return repeated < 0 ? kUnknownCardinality : repeated;
  }

  // Both overloads are needed: an input may implement only the first.
  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetFromInput(ctx, index, out_tensors);
  }

  absl::Status Get(AnyContext ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetFromInput(ctx, index, out_tensors);
  }

  absl::Status RandomIndexingCompatible() const override {
    TF_RETURN_IF_ERROR(CheckIsWhole());
    TF_RETURN_IF_ERROR(input_->RandomIndexingCompatible());
    return CheckYieldsAnyNumberOfTimes(input_);
  }

 private:
  friend class EchoIterator;

  absl::Status CheckIsWhole() const {
    if (schedule_.is_whole()) return absl::OkStatus();
    return FailedPrecondition(
        "e=", factor_,
        " does not support random access: how often echo repeats an element is "
        "random. Use a whole number as e.");
  }

  template <typename Context>
  absl::Status GetFromInput(Context ctx, int64_t index,
                            std::vector<Tensor>* out_tensors) const {
    TF_RETURN_IF_ERROR(CheckIsWhole());
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    return input_->Get(ctx, index / schedule_.Repetitions(0), out_tensors);
  }

  const double factor_;
  const EchoSchedule schedule_;
};

class EchoIterator : public DatasetIterator<EchoDataset> {
 public:
  using DatasetIterator<EchoDataset>::DatasetIterator;

  bool SymbolicCheckpointCompatible() const override { return true; }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return dataset()->input_->MakeIterator(ctx, this, prefix(), &input_impl_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (ctx->index_mapper() != nullptr) {
      return GetMapped(ctx, out_tensors, end_of_sequence);
    }
    if (left_ == 0) {
      TF_RETURN_IF_ERROR(ReadElement(ctx, end_of_sequence));
      if (*end_of_sequence) return absl::OkStatus();
      left_ = dataset()->schedule_.Repetitions(position_++);
    }
    --left_;
    if (left_ == 0) {
      *out_tensors = std::move(element_);
      Release(ctx);
    } else {
      *out_tensors = element_;
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    *num_skipped = 0;
    if (ctx->index_mapper() != nullptr) {
      return Unimplemented("echo does not support Skip with random access.");
    }
    const EchoSchedule& schedule = dataset()->schedule_;
    while (*num_skipped < num_to_skip) {
      const int64_t wanted = num_to_skip - *num_skipped;
      if (left_ > 0) {
        const int64_t skipped = std::min(left_, wanted);
        left_ -= skipped;
        *num_skipped += skipped;
        if (left_ == 0) Release(ctx);
        continue;
      }
      // How many elements of the input are skipped with all their repetitions.
      int64_t repetitions = 0;
      int elements = 0;
      for (int64_t next;; repetitions += next, ++elements) {
        next = schedule.Repetitions(position_ + elements);
        if (repetitions + next > wanted) break;
      }
      // Only `GetNext` updates a symbolic checkpoint, not `Skip`. So the last
      // of these elements, or the end, is read rather than skipped.
      if (elements > 0 && ctx->symbolic_checkpoint()) --elements;
      if (elements > 0) {
        int skipped = 0;
        absl::Status status =
            input_impl_->Skip(ctx, elements, end_of_sequence, &skipped);
        // The elements before an error were skipped.
        for (int i = 0; i < skipped; ++i) {
          *num_skipped += schedule.Repetitions(position_++);
        }
        TF_RETURN_IF_ERROR(status);
      }
      if (elements == 0 || (*end_of_sequence && ctx->symbolic_checkpoint())) {
        TF_RETURN_IF_ERROR(ReadElement(ctx, end_of_sequence));
        if (!*end_of_sequence) left_ = schedule.Repetitions(position_++);
      }
      if (*end_of_sequence) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeKnownRatioNode(std::move(args),
                                     /*ratio=*/1 / dataset()->factor_);
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPosition, position_));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kLeft, left_));
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    TF_RETURN_IF_ERROR(SaveElement(writer, prefix(), kElement, element_));
    return SaveInput(ctx, writer, input_impl_);
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (ctx->restored_element_count().has_value()) {
      // Under a global shuffle, each request to echo made one request to its
      // input, so both restore from the same count of elements.
      return RestoreInput(ctx, reader, input_impl_);
    }
    // Everything is checked before anything is changed.
    const CheckpointReader saved("echo", prefix(), ctx, reader);
    int64_t position = 0;
    TF_RETURN_IF_ERROR(saved.ReadNumber(kPosition, 0, kMaxPosition, &position));
    int64_t left = 0;
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kLeft, 0, std::numeric_limits<int64_t>::max(), &left));
    // Only the element before `position` can have repetitions left.
    if (left > 0 && (position == 0 ||
                     left >= dataset()->schedule_.Repetitions(position - 1))) {
      return InvalidArgument(
          "The checkpoint of echo has ", left, " repetitions left of element ",
          position - 1, ", more than e=", dataset()->factor_,
          " can leave: it was saved with another e or seed, or is damaged. "
          "Build the pipeline with the same e and seed, or restore the "
          "checkpoint without the iterator and start the epoch over.");
    }
    std::vector<Tensor> element;
    if (left > 0 && !ctx->symbolic_checkpoint()) {
      TF_RETURN_IF_ERROR(saved.ReadElement(kElement, dataset()->output_dtypes(),
                                           dataset()->output_shapes(),
                                           &element));
    }
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_impl_));
    element_ = std::move(element);
    if (left > 0 && ctx->symbolic_checkpoint()) {
      // The input is positioned before the element that is being repeated.
      bool end_of_sequence = false;
      TF_RETURN_IF_ERROR(ReadElement(ctx, &end_of_sequence));
      if (end_of_sequence) {
        return DataLoss(
            "The input of echo ends before the element that was being repeated "
            "when the checkpoint was saved, so it is another input. Use the "
            "same one, or restore the checkpoint without the iterator and start "
            "the epoch over.");
      }
    }
    position_ = position;
    left_ = left;
    return absl::OkStatus();
  }

 private:
  // Reads an element, and holds the input's symbolic checkpoint back.
  absl::Status ReadElement(IteratorContext* ctx, bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext input_ctx(*ctx);
    absl::Status status =
        input_impl_->GetNext(&input_ctx, &element_, end_of_sequence);
    if (!status.ok() || *end_of_sequence) {
      element_.clear();
      ctx->MergeCheckpoint(input_ctx.checkpoint());
      return status;
    }
    if (ctx->symbolic_checkpoint()) {
      held_back_ = std::make_unique<MemoryCheckpoint>(
          std::move(*input_ctx.checkpoint()));
    }
    return absl::OkStatus();
  }

  // Forgets the element, and passes on the checkpoint that was held back.
  void Release(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    element_.clear();
    if (held_back_ == nullptr) return;
    ctx->MergeCheckpoint(held_back_.get());
    held_back_.reset();
  }

  absl::Status GetMapped(IteratorContext* ctx, std::vector<Tensor>* out_tensors,
                         bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext::Params params(ctx);
    params.index_mapper = [parent = ctx->index_mapper(),
                           repetitions = dataset()->schedule_.Repetitions(0)](
                              size_t position) -> absl::StatusOr<size_t> {
      absl::StatusOr<size_t> index = parent(position);
      if (!index.ok()) return index;
      return *index / repetitions;
    };
    IteratorContext mapped(std::move(params));
    absl::Status status =
        input_impl_->GetNext(&mapped, out_tensors, end_of_sequence);
    ctx->MergeCheckpoint(mapped.checkpoint());
    return status;
  }

  absl::Mutex mu_;
  std::unique_ptr<IteratorBase> input_impl_ ABSL_GUARDED_BY(mu_);
  // The position of the input's next element.
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  // The element that is being repeated; empty when no repetition is left.
  std::vector<Tensor> element_ ABSL_GUARDED_BY(mu_);
  int64_t left_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<MemoryCheckpoint> held_back_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<DatasetBase*> MakeEcho(OpKernelContext* ctx,
                                      DatasetBase* input) {
  double factor;
  int64_t seed;
  TF_RETURN_IF_ERROR(GetScalars(ctx, "echoing_factor", &factor, "seed", &seed));
  if (factor >= 1 && factor < 2147483648.0) {
    return new IteratedBy<EchoDataset, EchoIterator>(ctx, input, factor, seed);
  }
  return InvalidArgument(
      "e, the echoing factor, must be a number of at least 1 and below 2**31, "
      "got ",
      factor, ".");
}

REFURBISH_TF_KERNEL("EchoDataset", UnaryDatasetOp<MakeEcho>);

}  // namespace
}  // namespace refurbish_tf
