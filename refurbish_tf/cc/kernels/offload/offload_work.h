// The work of an offload stage: some images of a batch at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "refurbish_tf/cc/batches/batch_memory.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/offload/offload_options.h"
#include "refurbish_tf/cc/offload/offload_stage.h"
#include "refurbish_tf/cc/offload/table_limit.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// A batch in progress. Several workers write into it, each its own rows.
struct OffloadBatch {
  DeviceFractionRule::Batch fraction;
  // How many rows were fetched.
  int64_t num_rows = 0;
  // How many of them have policy layers left to the accelerator.
  int64_t num_unfinished = 0;
  std::vector<Tensor> components;
  uint8_t* images = nullptr;
  int32_t* draws = nullptr;
  // Set when the last row is fetched: the input's checkpoint, and how many
  // elements it has yielded.
  std::unique_ptr<MemoryCheckpoint> checkpoint;
  int64_t position = 0;
  // The first error of its rows, which the consumer gets instead of the batch.
  absl::Status status;
};

struct OffloadPiece : OrderedWorkers::Piece {
  std::shared_ptr<OffloadBatch> batch;
  // Rows [begin, end), and the elements that they are made from.
  int64_t begin = 0, end = 0;
  std::vector<std::vector<Tensor>> elements;
  // The error of the element that follows the rows.
  absl::Status next_status;
  absl::Status status;  // The error of the rows.
};

// Allocates the components of a batch of elements with the shapes of `element`.
absl::Status MakeBatch(const OffloadOptions& options, BatchMemory* memory,
                       const std::vector<Tensor>& element, OffloadBatch* batch);
// Runs the policy layers left to the accelerator, and shortens the components
// to the rows that there are.
absl::Status CompleteShortBatch(const OffloadOptions& options,
                                OffloadBatch* batch);

class OffloadWork : public InputWork<OffloadPiece> {
 public:
  // `batch`: a batch to continue, some of whose rows are made, or null.
  // `position`: how many elements were read. The pointers and `options` must
  // outlive this object.
  OffloadWork(IteratorBase* input, IteratorContext* input_ctx,
              const OffloadOptions& options, OffloadStage* stage,
              OffloadStage::Iteration iteration,
              std::shared_ptr<OffloadBatch> batch, int64_t position,
              std::shared_ptr<BatchMemory> memory);

  // Called while the workers are settled, or after the end.
  int64_t position() const { return position_; }

  // How many pieces a batch can have.
  int64_t pieces_per_batch() const {
    return (options_.batches.size + rows_per_piece_ - 1) / rows_per_piece_;
  }

  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;

 private:
  // Checks an element by itself, and against the rows of the current batch.
  absl::Status Check(const std::vector<Tensor>& element) const;
  // Adds an element to the current batch, as its next row.
  absl::Status AddRow(std::vector<Tensor> element, OffloadPiece* piece);
  absl::Status MakeRows(const OffloadPiece& piece) const;

  const OffloadOptions& options_;
  OffloadStage& stage_;
  const OffloadStage::Iteration iteration_;
  const std::shared_ptr<BatchMemory> memory_;
  const int64_t rows_per_piece_;
  // Changed only by `Fetch`.
  TableLimit table_limit_;
  std::shared_ptr<OffloadBatch> current_;
  int64_t position_;
};

}  // namespace refurbish_tf
