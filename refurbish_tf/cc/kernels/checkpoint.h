// Saves and reads elements and numbers in an iterator's checkpoint. Whatever a
// checkpoint holds, reading it returns a value or an error that says what is
// wrong; it never aborts the process.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The key of the number of elements yielded or read so far.
inline constexpr char kPosition[] = "position";

// An element, or the error that is returned in its place.
struct Result {
  absl::Status status;
  std::vector<Tensor> element;
};

// The keys of a saved list of results: `number` is the key of its length, and
// `each` is the prefix of the keys of the single results.
struct ResultsKey {
  const char* number;
  const char* each;
};

absl::Status SaveElement(IteratorStateWriter* writer, absl::string_view prefix,
                         absl::string_view key,
                         const std::vector<Tensor>& element);
absl::Status SaveResults(IteratorStateWriter* writer, absl::string_view prefix,
                         ResultsKey key, const std::deque<Result>& results);

// Each method changes its output only if it returns OK.
class CheckpointReader {
 public:
  // `prefix` is the prefix of the iterator. All arguments must outlive the
  // reader. `ctx` may be null if no element contains a dataset.
  CheckpointReader(absl::string_view stage, absl::string_view prefix,
                   IteratorContext* ctx, const IteratorStateReader* reader)
      : stage_(stage),
        prefix_(prefix),
        flr_(ctx == nullptr ? nullptr : ctx->flr()),
        reader_(reader) {}

  absl::Status Read(absl::string_view key, Tensor* value) const;

  // Reads a number or a string (tstring). tf.data's own `ReadScalar` aborts the
  // process unless the tensor has exactly one element, and reinterprets the
  // bytes of any other type as a `T`.
  template <class T>
  absl::Status ReadScalar(absl::string_view key, T* value) const {
    Tensor tensor;
    TF_RETURN_IF_ERROR(
        ReadScalar(key, tensorflow::DataTypeToEnum<T>::v(), &tensor));
    *value = tensor.scalar<T>()();
    return absl::OkStatus();
  }

  // Reads a whole number from `least` to `most`.
  absl::Status ReadNumber(absl::string_view key, int64_t least, int64_t most,
                          int64_t* value) const;

  // Reads what `SaveElement` saved: `key`_0, `key`_1 and so on.
  absl::Status ReadElement(absl::string_view key, const DataTypeVector& dtypes,
                           const std::vector<PartialTensorShape>& shapes,
                           std::vector<Tensor>* element) const;

  absl::Status ReadResults(ResultsKey key, const DataTypeVector& dtypes,
                           const std::vector<PartialTensorShape>& shapes,
                           std::deque<Result>* results) const;

 private:
  absl::Status ReadScalar(absl::string_view key, DataType dtype,
                          Tensor* value) const;

  const absl::string_view stage_;
  const absl::string_view prefix_;
  tensorflow::FunctionLibraryRuntime* const flr_;
  const IteratorStateReader* const reader_;
};

}  // namespace refurbish_tf
