// The samples that were requested from a source, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace refurbish_tf {

// A request is the index of a sample. Requests are numbered from 0, and dropped
// once the source has read them.
class Requests {
 public:
  void Add(uint32_t index) { requests_.push_back(index); }
  // The number that the next request gets.
  size_t end() const { return first_ + requests_.size(); }
  // Whether the `n`-th request was read, and so dropped.
  bool WasRead(size_t n) const { return n < first_; }
  uint32_t operator[](size_t n) const { return requests_[n - first_]; }
  // Drops the first `num_read` requests, which were read.
  void NoteRead(size_t num_read) {
    for (; first_ < num_read && !requests_.empty(); ++first_) {
      requests_.pop_front();
    }
  }

 private:
  std::deque<uint32_t> requests_;
  size_t first_ = 0;
};

}  // namespace refurbish_tf
