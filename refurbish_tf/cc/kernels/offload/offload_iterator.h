// The iterator of a offload stage: gathers what its workers make into batches.
//
// A checkpoint is of the batches that were handed out:
// - Behind a refurbish stage, whose checkpoint is small and cheap, it is the
//   input's after the last one; batches that are begun are made again.
// - A symbolic one is the input's, too.
// - Else it holds the batches that are begun.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/offload/offload_dataset.h"
#include "refurbish_tf/cc/kernels/offload/offload_work.h"

namespace refurbish_tf {

// Lock order: `mu_` before the workers' locks and the stage's.
class OffloadIterator : public InputIterator<OffloadDataset, OffloadWork> {
 public:
  using InputIterator::InputIterator;

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext* ctx, model::Node::Args args) const override;
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Batches = std::deque<std::shared_ptr<OffloadBatch>>;

  const OffloadOptions& options() const {
    return dataset()->arguments_.options;
  }
  OffloadStage& stage() const { return *dataset()->stage_; }

  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes pieces until a batch is whole. At the end `*batch` may be the rest.
  absl::Status Gather(IteratorContext* ctx, int64_t* waited_nanos,
                      std::shared_ptr<OffloadBatch>* batch, bool* end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandOut(IteratorContext* ctx, OffloadBatch* batch,
               std::vector<Tensor>* out_tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The input and the batches that are begun, while the workers rest.
  absl::Status SaveSettled(
      SerializationContext* ctx, IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReadBatches(IteratorContext* ctx, const CheckpointReader& saved,
                           Batches* batches,
                           std::deque<absl::Status>* errors) const;

  // Set when the first batch is requested, or by a checkpoint.
  std::optional<OffloadStage::Iteration> iteration_ ABSL_GUARDED_BY(mu_);
  // What a checkpoint held, which is handed out first.
  std::deque<std::shared_ptr<OffloadBatch>> restored_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::Status> restored_errors_ ABSL_GUARDED_BY(mu_);
  // The input behind the last batch that was handed out, if it is saved by
  // snapshots; and how many elements it had yielded, in symbolic checkpoints.
  std::shared_ptr<MemoryCheckpoint> saved_ ABSL_GUARDED_BY(mu_);
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  // The batch of which pieces were taken, and what went wrong with them.
  std::shared_ptr<OffloadBatch> filling_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  // When the last batch was handed out that the workers made.
  std::optional<std::chrono::steady_clock::time_point> last_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
