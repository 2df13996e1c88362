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

// Slabs, each divided into slots of one size. The C library can reuse a freed
// block of aligned memory, such as TensorFlow's, only together with a
// neighbour. If small samples of one size come and go, such holes take up to
// half of all memory. A slab goes back to the system when its last slot is
// returned. Thread-safe. Must be held by a shared pointer.
class PackedMemory : public std::enable_shared_from_this<PackedMemory> {
 public:
  // `page_bytes`: the unit in which memory goes back to the system.
  explicit PackedMemory(size_t page_bytes = sysconf(_SC_PAGESIZE))
      : most_packed_(2 * page_bytes) {}
  ~PackedMemory();

  // Copies a small tensor into a slot. Returns other tensors unchanged.
  tensorflow::Tensor Copy(const tensorflow::Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Buffer;
  struct Slab;

  // Null if there is no memory, or if there are too many sizes.
  Slab* Take(size_t bytes, char** slot) ABSL_LOCKS_EXCLUDED(mu_);
  void Return(Slab* slab, char* slot) ABSL_LOCKS_EXCLUDED(mu_);

  // Larger tensors leave whole pages free, which go back to the system.
  const size_t most_packed_;

  std::mutex mu_;
  // The slabs that have a free slot, by slot size. Only their tensors refer to
  // full slabs.
  std::map<size_t, std::vector<Slab*>> with_room_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
