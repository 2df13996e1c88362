// Memory for many small samples that come and go.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

// Slabs of slots of one size. The C library can use a freed block of aligned
// memory, as TensorFlow's is, only together with a neighbour. Where small
// samples of one size come and go, up to half of all memory is such holes.
// A slab goes back to the system when its last slot is returned.
// Thread-safe. Must be held by a shared pointer.
class PackedMemory : public std::enable_shared_from_this<PackedMemory> {
 public:
  // `page_bytes`: the unit in which memory goes back to the system.
  explicit PackedMemory(size_t page_bytes = sysconf(_SC_PAGESIZE))
      : most_packed_(2 * page_bytes) {}
  ~PackedMemory();

  // The tensor, in a slot. Unchanged if it is not small.
  tensorflow::Tensor Copy(const tensorflow::Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Buffer;
  struct Slab;

  // Null if there is no memory, or it is one size too many.
  Slab* Take(size_t bytes, char** slot) ABSL_LOCKS_EXCLUDED(mu_);
  void Return(Slab* slab, char* slot) ABSL_LOCKS_EXCLUDED(mu_);

  // A larger tensor leaves whole pages free, which go back to the system.
  const size_t most_packed_;

  std::mutex mu_;
  // By the size of a slot: those that have one to give. Others are known to the
  // tensors in them.
  std::map<size_t, std::vector<Slab*>> with_room_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
