#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace refurbish_tf {

// Adds its own lifetime to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>* nanos) : nanos_(nanos) {}
  ~Stopwatch() {
    *nanos_ += std::chrono::nanoseconds(Clock::now() - began_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<int64_t>* const nanos_;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace refurbish_tf
