// What a worker of a refurbish stage does for one place of an epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/refurbish/source_reader.h"
#include "refurbish_tf/cc/refurbish/epoch.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// A function of a stage, ready to run, and what it takes after the components
// of its element, in this order.
struct StageFunction {
  std::unique_ptr<InstantiatedInlineFunction> function;
  bool with_seed = false;
  // The generation for the partial function, the epoch for the final one.
  bool with_time = false;
};

struct SamplePiece : OrderedWorkers::Piece {
  Place place;
  bool fresh = false;
  // False if, after an error, it is unknown which sample the source yielded.
  // Then the result is not stored.
  bool index_known = true;
  // The sample, as far as it has been processed, or its error.
  std::vector<Tensor> tensors;
  absl::Status status;
  // The seed for the function that was called last.
  Tensor seed;
  // The row of a batch that the result goes to, if there are batches.
  BatchRows::Row row;
};

// For each place of an epoch: gets the sample from the store or the source,
// prepares it and puts it into the store if it is fresh, and finishes it.
class SampleWork : public OrderedWorkers::Work {
 public:
  struct Functions {
    StageFunction partial;
    // The function may be null. Then what it would take after the sample is
    // yielded after the sample.
    StageFunction final;
    // The types and shapes of what the partial function returns.
    SampleTypes sample_types;
  };

  // `rows`: the rows of batches, or null if samples are yielded.
  SampleWork(const Functions* functions, FunctionContexts* contexts,
             Stage* stage, std::shared_ptr<Epoch> epoch, SourceReader* source,
             BatchRows* rows)
      : functions_(*functions),
        contexts_(*contexts),
        stage_(*stage),
        epoch_(std::move(epoch)),
        source_(*source),
        rows_(rows) {}

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override;
  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override;
  // Whether only native layers are called, and nothing is waited for.
  bool IsShort(const OrderedWorkers::Piece& piece) const override;

  // An error found at the source's end before it was read again. Returned once.
  absl::Status LateError() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  OrderedWorkers::Outcome Dropped();
  absl::Status Prepare(SamplePiece* piece);
  // Calls a function with the piece's tensors and what else it takes. `time`,
  // the generation or the epoch, determines the seed.
  absl::Status Call(const StageFunction& of, Purpose purpose, uint64_t time,
                    SamplePiece* piece);
  // Appends what the function takes after the components to the tensors.
  void AppendOthers(const StageFunction& of, Purpose purpose, uint64_t time,
                    SamplePiece* piece) const;
  void AppendFinal(SamplePiece* piece) const;
  // Runs the final augmentation, and writes into the row if there are batches.
  absl::Status Finish(SamplePiece* piece);
  absl::Status CallFinal(SamplePiece* piece);
  absl::Status FinishIntoRow(SamplePiece* piece);
  absl::Status CheckShapes(const SamplePiece& piece) const;
  // Adds the index of the sample, and its file if known, to an error.
  absl::Status WithSample(const absl::Status& status, const char* what,
                          uint32_t index, const char* of);

  const Functions& functions_;
  FunctionContexts& contexts_;
  Stage& stage_;
  const std::shared_ptr<Epoch> epoch_;
  SourceReader& source_;
  BatchRows* const rows_;
  // For `Claim`: the next places, and how many of them were claimed.
  std::vector<Place> places_;
  size_t num_claimed_ = 0;
  absl::Mutex mu_;
  absl::Status late_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
