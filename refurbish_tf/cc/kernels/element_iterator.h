// Iterators whose workers transform each element of the input.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// An element of the input and, once it has been transformed, the result.
struct ElementPiece : OrderedWorkers::Piece {
  Result result;
  // The row of a batch that holds the result, if `result` does not.
  BatchRows::Row row;
  // See `InputWork::Checkpoint`.
  std::unique_ptr<MemoryCheckpoint> checkpoint;
};

class ElementWork : public InputWork<ElementPiece> {
 public:
  using InputWork::InputWork;

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& element = static_cast<ElementPiece&>(*piece);
    if (!Read(&element.result)) return Outcome::kDropped;
    element.checkpoint = Checkpoint();
    return element.result.status.ok() ? Outcome::kRun : Outcome::kDone;
  }
};

// An iterator that yields the result of `Work`, a subclass of ElementWork, for
// each element of the input.
//
// A checkpoint waits for the calls in progress, and includes the results that
// are ready. A symbolic checkpoint instead has the position of the input after
// the last element handed out, so elements read ahead are read again.
template <class Dataset, class Work>
class ElementIterator : public InputIterator<Dataset, Work> {
 public:
  using Base = InputIterator<Dataset, Work>;
  using typename Base::Params;

 protected:
  using Base::mu_;

  // `stage` names the stage in errors, `key` the ready results in a checkpoint.
  ElementIterator(const Params& params, const char* stage, ResultsKey key)
      : Base(params), stage_(stage), key_(key) {}

  virtual std::vector<PartialTensorShape> ElementShapes() const {
    return this->dataset()->output_shapes();
  }
  // Must create `work_` and start the workers.
  virtual void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;

  // Whether `NextElement` would return without waiting.
  bool IsNextReady(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!restored_.empty()) return true;
    if (!this->IsRunning()) Run(ctx);
    return this->workers_.get()->IsNextReady();
  }

  absl::Status NextElement(IteratorContext* ctx, std::vector<Tensor>* element,
                           bool* end, int64_t* waited_nanos = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::unique_ptr<ElementPiece> piece;
    TF_RETURN_IF_ERROR(NextPiece(ctx, &piece, waited_nanos));
    *end = piece == nullptr;
    if (*end) return absl::OkStatus();
    *element = std::move(piece->result.element);
    return piece->result.status;
  }

  // Like `ReadPiece`, but also notes that the piece is handed out.
  absl::Status NextPiece(IteratorContext* ctx,
                         std::unique_ptr<ElementPiece>* piece,
                         int64_t* waited_nanos = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TF_RETURN_IF_ERROR(ReadPiece(ctx, piece, waited_nanos));
    this->HandOver(ctx, *piece == nullptr ? this->work_->Checkpoint()
                                          : std::move((*piece)->checkpoint));
    return absl::OkStatus();
  }

  // Gets the next piece, or null at the end. Pieces restored from a checkpoint
  // come first; they have neither a row nor a checkpoint.
  absl::Status ReadPiece(IteratorContext* ctx,
                         std::unique_ptr<ElementPiece>* piece,
                         int64_t* waited_nanos = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!restored_.empty()) {
      *piece = std::make_unique<ElementPiece>();
      (*piece)->result = std::move(restored_.front());
      restored_.pop_front();
      return absl::OkStatus();
    }
    if (!this->IsRunning()) Run(ctx);
    return Base::NextPiece(ctx, piece, waited_nanos);
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    return this->WhileSettled([&](const auto& ready) {
      TF_RETURN_IF_ERROR(this->SaveInput(ctx, writer, this->input_));
      std::deque<Result> results = restored_;
      for (const OrderedWorkers::Piece* piece : ready) {
        const auto& [result, row, checkpoint] =
            *static_cast<const ElementPiece*>(piece);
        results.push_back(result);
        if (row.batch != nullptr && result.status.ok()) {
          results.back().element = BatchRows::Read(row);
        }
      }
      return SaveResults(writer, this->prefix(), key_, results);
    });
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    // Everything is checked before anything is changed.
    std::deque<Result> restored;
    if (!ctx->symbolic_checkpoint()) {
      const CheckpointReader saved(stage_, this->prefix(), ctx, reader);
      TF_RETURN_IF_ERROR(saved.ReadResults(
          key_, this->dataset()->output_dtypes(), ElementShapes(), &restored));
    }
    TF_RETURN_IF_ERROR(this->RestoreInput(ctx, reader, this->input_));
    restored_ = std::move(restored);
    return absl::OkStatus();
  }

  // Results restored from a checkpoint, which are handed out first.
  std::deque<Result> restored_ ABSL_GUARDED_BY(mu_);

 private:
  const char* const stage_;
  const ResultsKey key_;
};

}  // namespace refurbish_tf
