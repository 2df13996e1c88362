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

// Consists of slabs, each divided into slots of one size. Without slabs, up to
// half of all memory is lost to holes when small samples of one size come and
// go: the C library can reuse a freed block of aligned memory, such as
// TensorFlow's, only together with a neighbour. An empty slab goes back to the
// system, unless it is the last one with room. Thread-safe. Must be held by a
// shared pointer.
class PackedMemory : public std::enable_shared_from_this<PackedMemory> {
 public:
  // `page_bytes`: the unit in which memory goes back to the system.
  explicit PackedMemory(size_t page_bytes = sysconf(_SC_PAGESIZE))
      : most_packed_(2 * page_bytes) {}
  ~PackedMemory();

  // Copies a tensor of packable size into a slot. Returns others unchanged.
  tensorflow::Tensor Copy(const tensorflow::Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Buffer;
  struct Slab;

  // Null if there is no memory, or if there are too many slot sizes.
  Slab* Take(size_t bytes, char** slot) ABSL_LOCKS_EXCLUDED(mu_);
  void Return(Slab* slab, char* slot) ABSL_LOCKS_EXCLUDED(mu_);

  // Larger tensors are not packed: freeing one returns whole pages.
  const size_t most_packed_;

  std::mutex mu_;
  // The slabs that have a free slot, by slot size. Full slabs are known only to
  // the tensors in them.
  std::map<size_t, std::vector<Slab*>> with_room_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
