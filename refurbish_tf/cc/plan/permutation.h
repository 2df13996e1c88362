// Random permutations of the numbers below a size. A single number can be
// looked up without computing the others.
//
// Small permutations are shuffled into a table, so that all permutations are
// equally likely, which a formula cannot ensure. Large ones are computed by a
// formula: it takes no memory, and no thread waits for a table.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "refurbish_tf/cc/plan/random.h"

namespace refurbish_tf {

// A Feistel network: a number has two halves, and each round adds a hash of one
// half to the other. Its domain has up to 2 sqrt(size) more numbers than the
// permutation; if it yields one of the extra numbers, it runs again (Black and
// Rogaway, 2002).
//
// It needs more than six rounds: otherwise it can be distinguished from a
// random permutation if all its values are known (Patarin, 2001).
class FeistelNetwork {
 public:
  FeistelNetwork() = default;
  // `size` must be positive.
  FeistelNetwork(uint64_t key, uint32_t size) : key_(key), size_(size) {
    int bits = 0;
    while (bits < 32 && (size - 1) >> bits > 0) ++bits;
    lower_bits_ = (bits + 1) / 2;
    mask_ = (uint32_t{1} << lower_bits_) - 1;
    num_upper_ = ((size - 1) >> lower_bits_) + 1;
  }

  uint32_t Forward(uint32_t number) const {
    do {
      uint32_t lower = number & mask_, upper = number >> lower_bits_;
      for (int round = 0; round < kRounds; round += 2) {
        lower = (lower + ToLower(round, upper)) & mask_;
        upper += ToUpper(round + 1, lower);
        if (upper >= num_upper_) upper -= num_upper_;
      }
      number = upper << lower_bits_ | lower;
    } while (number >= size_);
    return number;
  }
  uint32_t Backward(uint32_t number) const {
    do {
      uint32_t lower = number & mask_, upper = number >> lower_bits_;
      for (int round = kRounds - 2; round >= 0; round -= 2) {
        const uint32_t added = ToUpper(round + 1, lower);
        upper += upper < added ? num_upper_ - added : -added;
        lower = (lower - ToLower(round, upper)) & mask_;
      }
      number = upper << lower_bits_ | lower;
    } while (number >= size_);
    return number;
  }

 private:
  static constexpr int kRounds = 8;

  uint64_t Hash(int round, uint32_t half) const {
    return Mix(key_ ^ (static_cast<uint64_t>(round) << 32 | half)) >> 32;
  }
  // What to add to each half. The lower half has a power-of-two range.
  uint32_t ToLower(int round, uint32_t upper) const {
    return static_cast<uint32_t>(Hash(round, upper)) & mask_;
  }
  uint32_t ToUpper(int round, uint32_t lower) const {
    return static_cast<uint32_t>(Hash(round, lower) * num_upper_ >> 32);
  }

  uint64_t key_ = 0;
  uint32_t size_ = 0;
  int lower_bits_ = 0;
  uint32_t mask_ = 0;
  uint32_t num_upper_ = 0;
};

class Permutation {
 public:
  // Up to this size a permutation is shuffled, which takes less than 1 ms.
  static constexpr uint32_t kMostShuffled = 1 << 16;

  Permutation() = default;
  Permutation(RandomStream& random, uint32_t size) {
    if (size == 0) return;
    if (size > kMostShuffled) {
      network_ = FeistelNetwork(random.Next(), size);
      return;
    }
    table_.resize(size);
    std::iota(table_.begin(), table_.end(), 0);
    ShuffleRange(table_.begin(), table_.end(), random);
  }

  // `number` must be below the size.
  uint32_t operator()(uint32_t number) const {
    if (!table_.empty()) return table_[number];
    return is_inverse_ ? network_.Backward(number) : network_.Forward(number);
  }
  Permutation Inverse() const {
    Permutation inverse = *this;
    inverse.is_inverse_ = !is_inverse_;
    for (uint32_t i = 0; i < table_.size(); ++i) inverse.table_[table_[i]] = i;
    return inverse;
  }
  int64_t bytes() const { return table_.size() * sizeof(table_[0]); }

 private:
  std::vector<uint16_t> table_;  // Empty if the permutation is computed.
  FeistelNetwork network_;
  bool is_inverse_ = false;
};

}  // namespace refurbish_tf
