// Reading what a stage saved in a checkpoint. Whatever is found there, the
// answer is a value or an error that says what is wrong: the process lives on.
#ifndef REFURBISH_TF_CC_KERNELS_CHECKPOINT_H_
#define REFURBISH_TF_CC_KERNELS_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

// The key of how many elements were yielded or read.
inline constexpr char kPosition[] = "position";

// An element that was read ahead, or the error that came in its place.
struct Result {
  absl::Status status;
  std::vector<Tensor> element;
};

absl::Status SaveElement(IteratorStateWriter* writer, absl::string_view prefix,
                         absl::string_view key,
                         const std::vector<Tensor>& element);
absl::Status SaveResult(IteratorStateWriter* writer, absl::string_view prefix,
                        absl::string_view key, const Result& result);

// Changes a value only when it returns OK.
class CheckpointReader {
 public:
  // `prefix` is that of the iterator. All arguments must outlive the reader.
  CheckpointReader(absl::string_view stage, absl::string_view prefix,
                   IteratorContext* ctx, const IteratorStateReader* reader)
      : stage_(stage), prefix_(prefix), ctx_(ctx), reader_(reader) {}

  // Of any type and shape.
  absl::Status Read(absl::string_view key, Tensor* value) const;

  // A number or a string (tstring). `ReadScalar` of tf.data's own reader ends
  // the process when it meets anything but one element, and takes the bytes of
  // any other type for those of `T`.
  template <class T>
  absl::Status ReadScalar(absl::string_view key, T* value) const {
    Tensor tensor;
    TF_RETURN_IF_ERROR(
        ReadScalar(key, tensorflow::DataTypeToEnum<T>::v(), &tensor));
    *value = tensor.scalar<T>()();
    return absl::OkStatus();
  }

  // A whole number of at least `least` and at most `most`.
  absl::Status ReadNumber(absl::string_view key, int64_t least, int64_t most,
                          int64_t* value) const;

  // What `SaveElement` saved: `key`_0, `key`_1 and so on.
  absl::Status ReadElement(absl::string_view key, const DataTypeVector& dtypes,
                           const std::vector<PartialTensorShape>& shapes,
                           std::vector<Tensor>* element) const;

  // What `SaveResult` saved.
  absl::Status ReadResult(absl::string_view key, const DataTypeVector& dtypes,
                          const std::vector<PartialTensorShape>& shapes,
                          Result* result) const;

 private:
  absl::Status ReadScalar(absl::string_view key, tensorflow::DataType dtype,
                          Tensor* value) const;

  const absl::string_view stage_;
  const absl::string_view prefix_;
  IteratorContext* const ctx_;
  const IteratorStateReader* const reader_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_CHECKPOINT_H_
