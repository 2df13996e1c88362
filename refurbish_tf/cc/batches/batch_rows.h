// Batches whose rows are written by workers, for any dataset.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "refurbish_tf/cc/batches/batch_memory.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"

namespace refurbish_tf {

// Copies a value into a row of `component`, whose rows must have the value's
// type and shape.
absl::Status CopyToRow(const Tensor& value, int64_t row, Tensor* component);
// Keeps only the first `num_rows` rows of each component.
inline void Shorten(int64_t num_rows, std::vector<Tensor>* components) {
  for (Tensor& component : *components) {
    component = component.Slice(0, num_rows);
  }
}

// The batches that a dataset yields in place of its elements.
struct Batches {
  int64_t size = 0;  // 0: the dataset yields elements.
  bool drop_remainder = false;

  // Fails if `size` is negative, or if batches cannot have these shapes because
  // a row's shape is not fully known.
  absl::Status Check(const std::vector<PartialTensorShape>& shapes) const;
  // The number of batches. A negative number, which means unknown or infinite,
  // is returned unchanged.
  int64_t Cardinality(int64_t num_elements) const {
    if (size == 0 || num_elements < 0) return num_elements;
    return num_elements / size + (!drop_remainder && num_elements % size > 0);
  }
};

// Workers take rows and write results into them; the consumer gathers rows into
// batches. If results come in order, a row is taken when its result is claimed,
// so the rows are in the order of the results. If a result fails or is dropped,
// its row stays empty, and the consumer copies the rows after it forward. The
// next batch that is begun has only as many rows as were left empty, so the
// batches after it need no copies. If results come out of order, a row is taken
// only when its result is known.
//
// Lock order: the lock of OrderedWorkers, then `mu_`.
class BatchRows {
 public:
  struct Options {
    int64_t batch_size = 0;
    // How many results there can be: a new batch gets memory for no more rows.
    int64_t most_rows = 0;
    bool drop_remainder = false;
    bool in_order = true;
    // The type and the shape of each component of a row.
    DataTypeVector types;
    std::vector<TensorShape> shapes;
  };
  struct Batch {
    std::vector<Tensor> components;
    // How many rows the batch will have, and how many were taken.
    int64_t capacity = 0, num_taken = 0;
    // Out of order: the indices of the results that were gathered.
    std::vector<uint32_t> gathered;
  };
  struct Row {
    Batch* batch = nullptr;
    int64_t number = 0;
  };

  BatchRows(Options options, std::shared_ptr<BatchMemory> memory)
      : options_(std::move(options)), memory_(std::move(memory)) {}

  const Options& options() const { return options_; }
  // Thread-safe. The row has no batch if there is no memory for one.
  Row Take() ABSL_LOCKS_EXCLUDED(mu_);
  // Thread-safe. Notes that `num_rows` rows that were taken get no result.
  void Skip(int64_t num_rows) { num_skipped_ += num_rows; }
  // The error of a row without a batch.
  absl::Status NoMemory() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return no_memory_;
  }
  // `CheckRow` fails unless component `number` of a row has this type and this
  // shape. `Check` does the same for each component of a result.
  absl::Status CheckRow(int number, DataType type,
                        const TensorShape& shape) const;
  absl::Status Check(const std::vector<Tensor>& result) const;
  // Thread-safe. Copies a result into a row. Call `Check` before.
  static absl::Status Write(const std::vector<Tensor>& result, const Row& row);
  // Checks a result, takes a row for it, and writes it there.
  absl::Status Add(const std::vector<Tensor>& result, Row* row)
      ABSL_LOCKS_EXCLUDED(mu_) {
    TF_RETURN_IF_ERROR(Check(result));
    *row = Take();
    return row->batch == nullptr ? NoMemory() : Write(result, *row);
  }
  // The result that was written into a row. It shares the row's memory.
  static std::vector<Tensor> Read(const Row& row);

  // The following methods are for the consumer.

  // Gathers the next result, which is in `row`. With `in_order`, it must be the
  // first that was not gathered yet; otherwise, `index` is kept with it.
  // `*whole`: whether its batch is complete. If `result` is an error, or one
  // occurs here, returns it and, with `in_order`, drops the rows that were
  // gathered for the batch.
  absl::Status Gather(absl::Status result, const Row& row, uint32_t index,
                      bool* whole) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the complete batch, or the remainder at the end. False if there is
  // nothing to yield. `*gathered`: the indices kept by `Gather`.
  bool TakeBatch(std::vector<Tensor>* components,
                 std::vector<uint32_t>* gathered) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status NewBatch(int64_t rows, Batch* batch) const;
  absl::Status Append(const Row& row, uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);
  void Drop(const Row& row) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the batches before this one from `open_`: all are gathered.
  void Forget(const Batch* batch) ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    while (open_.front().get() != batch) open_.pop_front();
  }

  const Options options_;
  const std::shared_ptr<BatchMemory> memory_;
  std::atomic<int64_t> num_skipped_{0};

  mutable std::mutex mu_;
  // The batches in the order in which they were begun. `Take` uses the last.
  std::deque<std::unique_ptr<Batch>> open_ ABSL_GUARDED_BY(mu_);
  int64_t num_taken_ ABSL_GUARDED_BY(mu_) = 0;
  // Not reset when another worker gets a batch, because the worker whose row
  // has no batch still returns this error.
  absl::Status no_memory_ ABSL_GUARDED_BY(mu_);
  // While set, `Take` does not try to get memory, because a failing try may
  // take seconds. `Gather` resets it when the consumer sees the error.
  bool out_of_memory_ ABSL_GUARDED_BY(mu_) = false;

  // Used by the consumer: the batch that is being gathered, and how many rows
  // were gathered. If rows had to be copied, they are in `own_` instead.
  Batch* gathering_ = nullptr;
  int64_t num_rows_ = 0;
  std::unique_ptr<Batch> own_;
};

}  // namespace refurbish_tf
