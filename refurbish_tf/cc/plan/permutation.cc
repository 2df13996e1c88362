#include "refurbish_tf/cc/plan/permutation.h"

#include <numeric>

namespace refurbish_tf {

FeistelNetwork::FeistelNetwork(uint64_t key, uint32_t size)
    : key_(key), size_(size) {
  int bits = 0;
  while (bits < 32 && (size - 1) >> bits > 0) ++bits;
  lower_bits_ = (bits + 1) / 2;
  mask_ = (uint32_t{1} << lower_bits_) - 1;
  num_upper_ = ((size - 1) >> lower_bits_) + 1;
}

uint32_t FeistelNetwork::Forward(uint32_t number) const {
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

uint32_t FeistelNetwork::Backward(uint32_t number) const {
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

Permutation::Permutation(RandomStream& random, uint32_t size) {
  if (size == 0) return;
  if (size > kMostShuffled) {
    network_ = FeistelNetwork(random.Next(), size);
    return;
  }
  table_.resize(size);
  std::iota(table_.begin(), table_.end(), 0);
  ShuffleRange(table_.begin(), table_.end(), random);
}

Permutation Permutation::Inverse() const {
  Permutation inverse = *this;
  inverse.is_inverse_ = !is_inverse_;
  for (uint32_t i = 0; i < table_.size(); ++i) inverse.table_[table_[i]] = i;
  return inverse;
}

}  // namespace refurbish_tf
