// The batches that workers make, each result in its row. They do not know which
// samples these are.
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

// Copies a value into a row of a component. Its rows must have the value's type
// and shape.
absl::Status CopyToRow(const Tensor& value, int64_t row, Tensor* component);
// Keeps only the first rows.
void Shorten(int64_t num_rows, std::vector<Tensor>* components);

// The batches that a dataset yields in place of its elements.
struct Batches {
  int64_t size = 0;  // 0: it yields elements.
  bool drop_remainder = false;

  // Fails if there are batches, but these cannot be their shapes.
  absl::Status Check(const std::vector<PartialTensorShape>& shapes) const;
  // The number of batches. A negative number, which means unknown or infinite,
  // is returned unchanged.
  int64_t Cardinality(int64_t num_elements) const;
};

// Workers take rows and write into them; the consumer gathers rows into
// batches. In order, a row is taken when its result is claimed, so rows are in
// the order of results. If a result fails or is dropped, the rows after it are
// copied to where they belong, until a batch begins that is shorter by as many
// rows. Out of order, a row is taken when its result is known.
//
// Lock order: that of the workers, then `mu_`.
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
    // How many rows it will have, and how many were taken.
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
  // Thread-safe. Says that `num_rows` rows that were taken have no result.
  void Skip(int64_t num_rows) { num_skipped_ += num_rows; }
  // The error of a row without a batch.
  absl::Status NoMemory() const ABSL_LOCKS_EXCLUDED(mu_);
  // `CheckRow` fails unless component `number` of a row has this type and
  // shape; `Check`, unless a row has those of the result.
  absl::Status CheckRow(int number, DataType type,
                        const TensorShape& shape) const;
  absl::Status Check(const std::vector<Tensor>& result) const;
  // Thread-safe. Copies a result that was checked into a row.
  static absl::Status Write(const std::vector<Tensor>& result, const Row& row);
  // Takes a row for a result and writes it there.
  absl::Status Add(const std::vector<Tensor>& result, Row* row)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What was written into a row. It shares the row's memory.
  static std::vector<Tensor> Read(const Row& row);

  // The following methods are for the consumer.

  // Gathers the next result: the first in order whose row was not gathered yet.
  // Out of order, `index` is kept with it. `*whole`: whether its batch is
  // complete. If the result is an error, or one occurs here, it is returned,
  // and what was gathered of its batch is dropped.
  absl::Status Gather(absl::Status result, const Row& row, uint32_t index,
                      bool* whole) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the batch that is complete, or the remainder at the end; false if
  // there is nothing to yield. `*gathered`: see `Gather`.
  bool TakeBatch(std::vector<Tensor>* components,
                 std::vector<uint32_t>* gathered) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status NewBatch(int64_t rows, Batch* batch) const;
  absl::Status Append(const Row& row, uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);
  void Drop(const Row& row) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the batches before this one from `open_`: they are gathered.
  void Forget(const Batch* batch) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::shared_ptr<BatchMemory> memory_;
  std::atomic<int64_t> num_skipped_{0};

  mutable std::mutex mu_;
  // In the order in which they were begun. Rows are taken from the last.
  std::deque<std::unique_ptr<Batch>> open_ ABSL_GUARDED_BY(mu_);
  int64_t num_taken_ ABSL_GUARDED_BY(mu_) = 0;
  // Kept because others may get a batch before a worker returns the error.
  absl::Status no_memory_ ABSL_GUARDED_BY(mu_);
  // Until the consumer has seen it: trying in vain may take seconds.
  bool out_of_memory_ ABSL_GUARDED_BY(mu_) = false;

  // For the consumer: the batch whose first rows were gathered, in order, and
  // how many. Either that of the rows, or `own_`, to which they were copied.
  Batch* gathering_ = nullptr;
  int64_t num_rows_ = 0;
  std::unique_ptr<Batch> own_;
};

}  // namespace refurbish_tf
