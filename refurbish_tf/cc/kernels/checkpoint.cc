#include "refurbish_tf/cc/kernels/checkpoint.h"

#include <utility>

#include "refurbish_tf/cc/base/printable.h"

namespace refurbish_tf {
namespace {

constexpr char kCode[] = "_code";
constexpr char kMessage[] = "_message";

// Far more results than are ever ready at once.
constexpr int64_t kMostResults = 1 << 20;

constexpr int64_t kMaxCode =
    static_cast<int64_t>(absl::StatusCode::kUnauthenticated);

std::string Found(absl::string_view key, const Tensor& tensor) {
  return absl::StrCat("its ", key, " is ", DataTypeString(tensor.dtype()),
                      tensor.shape().DebugString(), ", but must be ");
}

}  // namespace

absl::Status SaveElement(IteratorStateWriter* writer, absl::string_view prefix,
                         absl::string_view key,
                         const std::vector<Tensor>& element) {
  for (size_t i = 0; i < element.size(); ++i) {
    TF_RETURN_IF_ERROR(
        writer->WriteTensor(prefix, absl::StrCat(key, "_", i), element[i]));
  }
  return absl::OkStatus();
}

absl::Status SaveResults(IteratorStateWriter* writer, absl::string_view prefix,
                         ResultsKey key, const std::deque<Result>& results) {
  TF_RETURN_IF_ERROR(writer->WriteScalar(prefix, key.number,
                                         static_cast<int64_t>(results.size())));
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& [status, element] = results[i];
    const std::string each = absl::StrCat(key.each, "_", i);
    TF_RETURN_IF_ERROR(
        writer->WriteScalar(prefix, absl::StrCat(each, kCode),
                            static_cast<int64_t>(status.code())));
    TF_RETURN_IF_ERROR(
        status.ok() ? SaveElement(writer, prefix, each, element)
                    : writer->WriteScalar(prefix, absl::StrCat(each, kMessage),
                                          tstring(status.message())));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(absl::string_view key,
                                    Tensor* value) const {
  Tensor read;
  absl::Status status = reader_->ReadTensor(flr_, prefix_, key, &read);
  if (absl::IsNotFound(status)) {
    // The message of tf.data's reader names only the key.
    return NotFound(
        "The checkpoint has no ", key, " for the ", stage_, " stage at ",
        prefix_,
        ": it was saved by another pipeline, or is damaged. Build the pipeline "
        "that saved it, or restore it without the iterator and start the epoch "
        "over.");
  }
  TF_RETURN_IF_ERROR(status);
  *value = std::move(read);
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadScalar(absl::string_view key, DataType dtype,
                                          Tensor* value) const {
  TF_RETURN_IF_ERROR(Read(key, value));
  if (value->dtype() == dtype && value->dims() == 0) return absl::OkStatus();
  return DamagedCheckpoint(stage_, Found(key, *value), "a scalar of ",
                           DataTypeString(dtype));
}

absl::Status CheckpointReader::ReadNumber(absl::string_view key, int64_t least,
                                          int64_t most, int64_t* value) const {
  int64_t read = 0;
  TF_RETURN_IF_ERROR(ReadScalar(key, &read));
  if (read < least || read > most) {
    return DamagedCheckpoint(stage_, "its ", key, " is ", read,
                             ", but must be at least ", least, " and at most ",
                             most);
  }
  *value = read;
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadElement(
    absl::string_view key, const DataTypeVector& dtypes,
    const std::vector<PartialTensorShape>& shapes,
    std::vector<Tensor>* element) const {
  std::vector<Tensor> read(dtypes.size());
  for (size_t i = 0; i < read.size(); ++i) {
    const std::string component = absl::StrCat(key, "_", i);
    TF_RETURN_IF_ERROR(Read(component, &read[i]));
    if (read[i].dtype() != dtypes[i] ||
        !shapes[i].IsCompatibleWith(read[i].shape())) {
      return DamagedCheckpoint(stage_, Found(component, read[i]),
                               DataTypeString(dtypes[i]),
                               shapes[i].DebugString());
    }
  }
  *element = std::move(read);
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadResults(
    ResultsKey key, const DataTypeVector& dtypes,
    const std::vector<PartialTensorShape>& shapes,
    std::deque<Result>* results) const {
  int64_t number = 0;
  TF_RETURN_IF_ERROR(ReadNumber(key.number, 0, kMostResults, &number));
  std::deque<Result> read;
  for (int64_t i = 0; i < number; ++i) {
    auto& [status, element] = read.emplace_back();
    const std::string each = absl::StrCat(key.each, "_", i);
    int64_t code = 0;
    TF_RETURN_IF_ERROR(
        ReadNumber(absl::StrCat(each, kCode), 0, kMaxCode, &code));
    if (code == static_cast<int64_t>(absl::StatusCode::kOk)) {
      TF_RETURN_IF_ERROR(ReadElement(each, dtypes, shapes, &element));
    } else {
      tstring message;
      TF_RETURN_IF_ERROR(ReadScalar(absl::StrCat(each, kMessage), &message));
      status = absl::Status(static_cast<absl::StatusCode>(code),
                            absl::string_view(message));
    }
  }
  *results = std::move(read);
  return absl::OkStatus();
}

}  // namespace refurbish_tf
