// The work of `tfrecord`'s workers: to decide which record is next, and to read
// it.
#ifndef REFURBISH_TF_CC_KERNELS_SOURCES_RECORD_WORK_H_
#define REFURBISH_TF_CC_KERNELS_SOURCES_RECORD_WORK_H_

#include <atomic>
#include <cstdint>
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

class RecordWork : public OrderedWorkers::Work {
 public:
  RecordWork(std::shared_ptr<const RecordIndex> index, int64_t since)
      : index_(std::move(index)), since_(since) {}

  // Whether `Decide` may wait.
  virtual bool may_wait() const { return true; }

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override;
  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override;

 protected:
  int64_t num_records() const { return index_->num_records(); }
  // Sets the index of the next record, or an error. Returns false at the end.
  virtual bool Decide(RecordPiece* piece) = 0;

 private:
  const std::shared_ptr<const RecordIndex> index_;
  const int64_t since_;
  std::atomic<bool> ended_{false};
};

// Every `step`-th record from `first` on.
class RecordsInOrder : public RecordWork {
 public:
  RecordsInOrder(std::shared_ptr<const RecordIndex> index, int64_t since,
                 int64_t first, int64_t step)
      : RecordWork(std::move(index), since), next_(first), step_(step) {}

  bool may_wait() const override { return false; }
  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override;

 protected:
  bool Decide(RecordPiece* piece) override;

 private:
  int64_t next_;
  const int64_t step_;
};

// The records that an index mapper asks for, from its `num_requests`-th answer
// on.
class RequestedRecords : public RecordWork {
 public:
  RequestedRecords(std::shared_ptr<const RecordIndex> index, int64_t since,
                   IndexMapperFn mapper, int64_t num_requests)
      : RecordWork(std::move(index), since),
        mapper_(std::move(mapper)),
        num_requests_(num_requests) {}

 protected:
  bool Decide(RecordPiece* piece) override;

 private:
  const IndexMapperFn mapper_;
  int64_t num_requests_;
};

// The records that a tf.data service hands out.
class SplitRecords : public RecordWork {
 public:
  SplitRecords(std::shared_ptr<const RecordIndex> index, int64_t since,
               std::shared_ptr<SplitProvider> splits)
      : RecordWork(std::move(index), since), splits_(std::move(splits)) {}

 protected:
  bool Decide(RecordPiece* piece) override;

 private:
  const std::shared_ptr<SplitProvider> splits_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_SOURCES_RECORD_WORK_H_
