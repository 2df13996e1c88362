// The memory of the batches of an iterator.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::DataTypeVector;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Reuses the memory of large components that were released. Otherwise, freed
// memory of this size would go back to the system, and getting it again page by
// page takes as long as writing it. Thread-safe. Must be held by a shared_ptr.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  // `stage` names the stage in errors. All batches use `allocator`.
  BatchMemory(const char* stage, tensorflow::Allocator* allocator)
      : stage_(stage), allocator_(allocator) {}
  ~BatchMemory();

  // Makes an uninitialized component with TensorFlow's alignment.
  absl::Status Make(DataType type, const TensorShape& shape, Tensor* tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the spare memory, and keeps none from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Buffer;
  // Null if no spare memory has this size.
  void* TakeSpare(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Return(void* memory, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const char* const stage_;
  tensorflow::Allocator* const allocator_;
  std::mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // The size and the address of each spare piece of memory.
  std::vector<std::pair<size_t, void*>> spare_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
