#include "refurbish_tf/cc/store/disk/buffer_pool.h"

#include <algorithm>
#include <cstdlib>

namespace refurbish_tf {

size_t BufferPool::ClassOf(size_t size) {
  // At least four times kAlignment, so that each class has a multiple of it.
  const size_t last = std::max(size, 4 * kAlignment) - 1;
  const int power = 63 - __builtin_clzll(last);
  return 4 * power + (last >> (power - 2)) % 4;
}

char* BufferPool::Allocate(size_t size) {
  const size_t size_class = ClassOf(size);
  {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<char*>& free = free_[size_class];
    if (!free.empty()) {
      char* const data = free.back();
      free.pop_back();
      held_ -= SizeOf(size_class);
      return data;
    }
  }
  const size_t rounded =
      (SizeOf(size_class) + kAlignment - 1) / kAlignment * kAlignment;
  return static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
}

void BufferPool::Free(char* data, size_t size) {
  const size_t size_class = ClassOf(size);
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (held_ + SizeOf(size_class) <= kMostHeld) {
      held_ += SizeOf(size_class);
      free_[size_class].push_back(data);
      return;
    }
  }
  std::free(data);
}

}  // namespace refurbish_tf
