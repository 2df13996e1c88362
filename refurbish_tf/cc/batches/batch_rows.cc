#include "refurbish_tf/cc/batches/batch_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"
#include "tensorflow/core/util/batch_util.h"

namespace refurbish_tf {

absl::Status CopyToRow(const Tensor& value, int64_t row, Tensor* component) {
  if (!tensorflow::DataTypeCanUseMemcpy(value.dtype())) {
    return tensorflow::batch_util::CopyElementToSlice(value, component, row);
  }
  const size_t bytes = value.TotalBytes();
  if (bytes > 0) {
    std::memcpy(static_cast<char*>(component->data()) + row * bytes,
                value.data(), bytes);
  }
  return absl::OkStatus();
}

absl::Status Batches::Check(
    const std::vector<PartialTensorShape>& shapes) const {
  if (size < 0) {
    return InvalidArgument("batch_size must be at least 1, got ", size, ".");
  }
  if (size == 0) return absl::OkStatus();
  for (PartialTensorShape row : shapes) {
    const bool is_batch = row.dims() > 0;
    if (is_batch) row.RemoveDim(0);
    if (!is_batch || !row.IsFullyDefined()) {
      return InvalidArgument(
          "The components of a batch must have rows of known shapes.");
    }
  }
  return absl::OkStatus();
}

BatchRows::Row BatchRows::Take() {
  std::lock_guard<std::mutex> lock(mu_);
  if (open_.empty() || open_.back()->num_taken == open_.back()->capacity) {
    if (out_of_memory_) return {};
    auto batch = std::make_unique<Batch>();
    const int64_t rows = std::min(options_.batch_size, options_.most_rows);
    if (absl::Status made = NewBatch(rows, batch.get()); !made.ok()) {
      no_memory_ = std::move(made);
      out_of_memory_ = true;
      return {};
    }
    // Empty rows have moved the starts of gathered batches. End this batch
    // where a gathered batch ends.
    const int64_t size = options_.batch_size;
    const int64_t begun = (num_taken_ - num_skipped_) % size;
    batch->capacity = options_.in_order ? size - (begun + size) % size : size;
    // `rows` may be less. If some rows then stay empty, more rows are taken
    // than there are results, and another batch follows.
    batch->capacity = std::min(batch->capacity, rows);
    open_.push_back(std::move(batch));
  }
  ++num_taken_;
  Batch* const batch = open_.back().get();
  return {batch, batch->num_taken++};
}

absl::Status BatchRows::NewBatch(int64_t rows, Batch* batch) const {
  batch->capacity = rows;
  batch->components.resize(options_.types.size());
  for (size_t i = 0; i < options_.types.size(); ++i) {
    TensorShape shape({rows});
    TF_RETURN_IF_ERROR(shape.AppendShapeWithStatus(options_.shapes[i]));
    TF_RETURN_IF_ERROR(
        memory_->Make(options_.types[i], shape, &batch->components[i]));
  }
  return absl::OkStatus();
}

absl::Status BatchRows::CheckRow(int number, DataType type,
                                 const TensorShape& shape) const {
  if (type == options_.types[number] && shape == options_.shapes[number]) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "component ", number, " is ", DataTypeString(type), shape.DebugString(),
      ", but a row of its batch is ", DataTypeString(options_.types[number]),
      options_.shapes[number].DebugString(),
      ". Make it match element_spec, or leave the shape of that component "
      "unknown.");
}

absl::Status BatchRows::Check(const std::vector<Tensor>& result) const {
  for (size_t i = 0; i < result.size(); ++i) {
    TF_RETURN_IF_ERROR(CheckRow(i, result[i].dtype(), result[i].shape()));
  }
  return absl::OkStatus();
}

absl::Status BatchRows::Write(const std::vector<Tensor>& result,
                              const Row& row) {
  for (size_t i = 0; i < row.batch->components.size(); ++i) {
    TF_RETURN_IF_ERROR(
        CopyToRow(result[i], row.number, &row.batch->components[i]));
  }
  return absl::OkStatus();
}

std::vector<Tensor> BatchRows::Read(const Row& row) {
  std::vector<Tensor> result;
  for (const Tensor& component : row.batch->components) {
    result.push_back(component.SubSlice(row.number));
  }
  return result;
}

absl::Status BatchRows::Gather(absl::Status result, const Row& row,
                               uint32_t index, bool* whole) {
  if (result.ok()) result = Append(row, index);
  if (!result.ok()) Drop(row);
  *whole = num_rows_ == options_.batch_size;
  return result;
}

absl::Status BatchRows::Append(const Row& row, uint32_t index) {
  if (!options_.in_order) {
    gathering_ = row.batch;
    row.batch->gathered.push_back(index);
    num_rows_ = row.batch->gathered.size();
    return absl::OkStatus();
  }
  if (own_ == nullptr && row.number == num_rows_ &&
      (num_rows_ == 0 || row.batch == gathering_)) {
    gathering_ = row.batch;
  } else {
    if (own_ == nullptr || num_rows_ == own_->capacity) {
      const Batch* const from = own_ == nullptr ? gathering_ : own_.get();
      auto own = std::make_unique<Batch>();
      TF_RETURN_IF_ERROR(
          NewBatch(std::min(options_.batch_size,
                            std::max(options_.most_rows, 2 * num_rows_)),
                   own.get()));
      for (size_t i = 0; num_rows_ > 0 && i < own->components.size(); ++i) {
        TF_RETURN_IF_ERROR(tensorflow::batch_util::CopyContiguousSlices(
            from->components[i], 0, 0, num_rows_, &own->components[i]));
      }
      own_ = std::move(own);
    }
    for (size_t i = 0; i < own_->components.size(); ++i) {
      TF_RETURN_IF_ERROR(tensorflow::batch_util::CopyContiguousSlices(
          row.batch->components[i], row.number, num_rows_, 1,
          &own_->components[i]));
    }
  }
  if (row.number == 0) Forget(row.batch);
  ++num_rows_;
  return absl::OkStatus();
}

void BatchRows::Drop(const Row& row) {
  if (row.batch == nullptr) {
    std::lock_guard<std::mutex> lock(mu_);
    out_of_memory_ = false;
  }
  if (!options_.in_order) return;
  Skip(num_rows_ + (row.batch != nullptr));
  num_rows_ = 0;
  own_ = nullptr;
}

bool BatchRows::TakeBatch(std::vector<Tensor>* components,
                          std::vector<uint32_t>* gathered) {
  if (!options_.in_order && num_rows_ < options_.batch_size) {
    // At the end, only the last batch still has rows.
    std::lock_guard<std::mutex> lock(mu_);
    gathering_ = open_.empty() ? nullptr : open_.back().get();
    num_rows_ = gathering_ == nullptr ? 0 : gathering_->gathered.size();
  }
  if (num_rows_ == 0) return false;
  const bool whole = num_rows_ == options_.batch_size;
  Batch* const batch = own_ != nullptr ? own_.get() : gathering_;
  *components = std::move(batch->components);
  *gathered = std::move(batch->gathered);
  if (!whole) Shorten(num_rows_, components);
  if (!options_.in_order) {
    std::lock_guard<std::mutex> lock(mu_);
    open_.erase(std::find_if(
        open_.begin(), open_.end(),
        [batch](const auto& each) { return each.get() == batch; }));
  }
  num_rows_ = 0;
  own_ = nullptr;
  if (whole || !options_.drop_remainder) return true;
  components->clear();
  return false;
}

}  // namespace refurbish_tf
