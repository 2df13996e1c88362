// The iterator of a refurbish stage: runs an epoch of the stage on workers.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/refurbish/refurbish_dataset.h"
#include "refurbish_tf/cc/kernels/refurbish/sample_work.h"
#include "refurbish_tf/cc/kernels/refurbish/source_reader.h"

namespace refurbish_tf {

// Yields every sample of an epoch once.
//
// Lock order: `mu_`, then the locks of the workers.
class RefurbishIterator : public WorkersIterator<RefurbishDataset> {
 public:
  using WorkersIterator::WorkersIterator;
  ~RefurbishIterator() override;

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Saves only the position: not what is in progress, nor what the store holds,
  // nor the state of the source, which is read again for what is still to come.
  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What the workers of an epoch use. Each member outlives those after it.
  struct Running {
    std::unique_ptr<FunctionContexts> contexts;
    std::unique_ptr<SourceReader> source;
    std::unique_ptr<BatchRows> rows;
    std::unique_ptr<SampleWork> work;
  };

  void StartWorkers(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gets the next sample or batch, if there is one. `*last`: whether nothing
  // follows in this epoch.
  absl::Status ReadSample(IteratorContext* ctx, std::vector<Tensor>* element,
                          bool* has_element, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReadBatch(IteratorContext* ctx, std::vector<Tensor>* batch,
                         bool* has_batch, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gets the next piece, or null at the end. It still belongs to `pieces_`.
  absl::Status TakePiece(IteratorContext* ctx, SamplePiece** piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that a sample, or its error, is handed out, and returns the error.
  // `*last`: whether it is known to be the last one of the epoch.
  absl::Status HandOut(const SamplePiece& sample, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(const SamplePiece& sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch in the call that returns its last element.
  void EndWithElement() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch. Returns an error that was found only then.
  absl::Status End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Set by `Initialize`. The functions are null before.
  SampleWork::Functions functions_;

  // Null until an element is requested, and again after the end.
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);
  Running running_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Whether this iterator was made for a restore that has not happened yet.
  bool to_be_restored_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the error of a changed source was returned in place of an element.
  bool told_ ABSL_GUARDED_BY(mu_) = false;
  // The error found after the last element; returned once.
  absl::Status end_status_ ABSL_GUARDED_BY(mu_);

  // Pieces that were taken from the workers at once. Some are handed out
  // already; all are given back for reuse.
  std::vector<std::unique_ptr<OrderedWorkers::Piece>> pieces_
      ABSL_GUARDED_BY(mu_);
  size_t num_pieces_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_piece_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
