// The work of `tfrecord`'s workers: to decide which record is next, and to read
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/sources/record_index.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

// Reads a record as a scalar of DT_STRING. `since` is as in `ReadRecord`.
absl::Status ReadTensor(const RecordIndex& index, int64_t record, int64_t since,
                        Tensor* tensor);

struct RecordPiece : OrderedWorkers::Piece {
  int64_t index = -1;  // Negative if an error left it unknown.
  // By a mapper: how often it had been asked when it returned this index.
  int64_t num_requests = 0;
  absl::Status status;
  Tensor tensor;
};

// Decides which record is next: sets its index, or an error. False at the end.
// Never called by two threads at once.
using NextRecord = std::function<bool(RecordPiece*)>;

// Every `step`-th record from `first` on. Never waits.
NextRecord RecordsInOrder(int64_t num_records, int64_t first, int64_t step);
// The records that an index mapper asks for, from its `num_requests`-th answer
// on.
NextRecord RequestedRecords(int64_t num_records, IndexMapperFn mapper,
                            int64_t num_requests);
// The records that a tf.data service hands out.
NextRecord SplitRecords(int64_t num_records,
                        std::shared_ptr<SplitProvider> splits);

class RecordWork : public OrderedWorkers::Work {
 public:
  // `may_wait`: whether `next` may wait.
  RecordWork(std::shared_ptr<const RecordIndex> index, int64_t since,
             NextRecord next, bool may_wait)
      : index_(std::move(index)),
        since_(since),
        next_(std::move(next)),
        may_wait_(may_wait) {}

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override;
  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override;

 private:
  const std::shared_ptr<const RecordIndex> index_;
  const int64_t since_;
  const NextRecord next_;
  const bool may_wait_;
  std::atomic<bool> ended_{false};
};

}  // namespace refurbish_tf
