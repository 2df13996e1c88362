// Which samples a source was asked for, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace refurbish_tf {

// Numbered from 0. Those that were read are dropped.
class Requests {
 public:
  void Add(uint32_t index) { requests_.push_back(index); }
  // One after the last.
  size_t end() const { return first_ + requests_.size(); }
  // The `n`-th was read, and so is not there any longer.
  bool WasRead(size_t n) const { return n < first_; }
  uint32_t operator[](size_t n) const { return requests_[n - first_]; }
  // So many were read.
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
