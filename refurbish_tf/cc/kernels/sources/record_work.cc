#include "refurbish_tf/cc/kernels/sources/record_work.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"

namespace refurbish_tf {

absl::Status ReadTensor(const RecordIndex& index, int64_t record, int64_t since,
                        Tensor* tensor) {
  Tensor read(DT_STRING, TensorShape({}));
  tstring& text = read.scalar<tstring>()();
  const absl::Status status = ReadRecord(&OpenFiles::Global(), index.At(record),
                                         since, [&text](size_t length) {
                                           text.resize_uninitialized(length);
                                           return text.mdata();
                                         });
  if (!status.ok()) return Printable(status);
  *tensor = std::move(read);
  return absl::OkStatus();
}

OrderedWorkers::Claimed RecordWork::Claim(
    std::unique_ptr<OrderedWorkers::Piece>* piece) {
  if (ended_) return OrderedWorkers::Claimed::kEnd;
  auto record = std::make_unique<RecordPiece>();
  if (!may_wait_ && !next_(record.get())) return OrderedWorkers::Claimed::kEnd;
  *piece = std::move(record);
  return may_wait_ ? OrderedWorkers::Claimed::kFetch
                   : OrderedWorkers::Claimed::kRun;
}

OrderedWorkers::Outcome RecordWork::Fetch(OrderedWorkers::Piece* piece) {
  auto& record = static_cast<RecordPiece&>(*piece);
  if (ended_ || !next_(&record)) {
    ended_ = true;
    return OrderedWorkers::Outcome::kDropped;
  }
  return record.status.ok() ? OrderedWorkers::Outcome::kRun
                            : OrderedWorkers::Outcome::kDone;
}

OrderedWorkers::Outcome RecordWork::Run(OrderedWorkers::Piece* piece) {
  auto& record = static_cast<RecordPiece&>(*piece);
  record.status = ReadTensor(*index_, record.index, since_, &record.tensor);
  return OrderedWorkers::Outcome::kDone;
}

int64_t RecordWork::Bytes(const OrderedWorkers::Piece& piece) const {
  const auto& record = static_cast<const RecordPiece&>(piece);
  return record.status.ok() && record.index >= 0
             ? index_->At(record.index).span.length
             : 0;
}

NextRecord RecordsInOrder(int64_t num_records, int64_t first, int64_t step) {
  return [=, next = first](RecordPiece* piece) mutable {
    if (next >= num_records) return false;
    piece->index = next;
    next += step;
    return true;
  };
}

NextRecord RequestedRecords(int64_t num_records, IndexMapperFn mapper,
                            int64_t num_requests) {
  return [=](RecordPiece* piece) mutable {
    absl::StatusOr<size_t> index;
    // NotFound: the position belongs to another source in `concatenate`.
    do {
      index = mapper(static_cast<size_t>(num_requests++));
    } while (absl::IsNotFound(index.status()));
    piece->num_requests = num_requests;
    if (absl::IsOutOfRange(index.status())) return false;
    piece->status = index.status();
    if (!index.ok()) return true;
    if (*index >= static_cast<size_t>(num_records)) return false;
    piece->index = static_cast<int64_t>(*index);
    return true;
  };
}

NextRecord SplitRecords(int64_t num_records,
                        std::shared_ptr<SplitProvider> splits) {
  return [=](RecordPiece* piece) {
    Tensor split;
    bool end = false;
    piece->status = splits->GetNext(&split, &end);
    if (!piece->status.ok()) return true;
    if (end) return false;
    piece->index = split.scalar<int64_t>()();
    if (piece->index < 0 || piece->index >= num_records) {
      piece->status = absl::DataLossError(absl::StrCat(
          "The tf.data service handed out record ", piece->index,
          ", but the files have ", num_records,
          " records here. All processes must read the same files."));
      piece->index = -1;
    }
    return true;
  };
}

}  // namespace refurbish_tf
