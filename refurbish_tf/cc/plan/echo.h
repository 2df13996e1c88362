// How often data echoing repeats an element (Choi et al., "Faster Neural
// Network Training with Data Echoing", 2019, section 2).
#pragma once

#include <cmath>
#include <cstdint>

#include "refurbish_tf/cc/plan/random.h"

namespace refurbish_tf {

// Repetitions for a real-valued echoing factor: its floor, plus one with the
// probability of its fraction. A pure function of (seed, position).
class EchoSchedule {
 public:
  // `factor` must be at least 1 and below 2^31.
  EchoSchedule(uint64_t seed, double factor)
      : key_(DeriveKey(seed, Purpose::kEcho)),
        whole_(static_cast<int64_t>(std::floor(factor))),
        // 2^64 times the fraction; the fraction is below 1, so it fits.
        threshold_(static_cast<uint64_t>(
            std::ldexp(factor - std::floor(factor), 64))) {}

  bool is_whole() const { return threshold_ == 0; }

  // How often the element at `position` of the input is yielded, at least once.
  int64_t Repetitions(int64_t position) const {
    return whole_ + (Mix(key_ ^ static_cast<uint64_t>(position)) < threshold_);
  }

 private:
  const uint64_t key_;
  const int64_t whole_;
  const uint64_t threshold_;
};

}  // namespace refurbish_tf
