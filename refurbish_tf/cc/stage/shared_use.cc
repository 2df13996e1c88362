#include "refurbish_tf/cc/stage/shared_use.h"

namespace refurbish_tf {

GenerationRange UsedGenerations::Wanted(uint32_t index,
                                        Generation generation) const {
  absl::MutexLock lock(&mu_);
  if (index >= counts_.size()) return {generation};
  const uint16_t count = counts_[index];
  const Generation used = generations_[index];
  if (count == 0 || used < generation) return {generation};
  return {used + (count >= most_uses_)};
}

bool UsedGenerations::Use(uint32_t index, Generation used) {
  absl::MutexLock lock(&mu_);
  MakeRoomTo(index);
  uint16_t& count = counts_[index];
  Generation& generation = generations_[index];
  if (count == 0 || used > generation) {
    generation = used;
    count = 1;
    return true;
  }
  if (used < generation || count >= most_uses_) return false;
  ++count;
  return true;
}

Generation UsedGenerations::NextUnused(uint32_t index) const {
  absl::MutexLock lock(&mu_);
  if (index >= counts_.size() || counts_[index] == 0) return 0;
  return generations_[index] + 1;
}

bool UsedGenerations::UseOnce(uint32_t index, Generation used) {
  absl::MutexLock lock(&mu_);
  MakeRoomTo(index);
  if (counts_[index] > 0 && used <= generations_[index]) return false;
  generations_[index] = used;
  counts_[index] = most_uses_;
  return true;
}

void UsedGenerations::MakeRoomTo(uint32_t index) {
  if (index < counts_.size()) return;
  generations_.resize(index + 1);
  counts_.resize(index + 1);
}

void UsedGenerations::MakeRoomFor(uint32_t num_samples) {
  absl::MutexLock lock(&mu_);
  generations_.reserve(num_samples);
  counts_.reserve(num_samples);
}

int64_t UsedGenerations::bytes() const {
  absl::MutexLock lock(&mu_);
  return generations_.capacity() * (sizeof(Generation) + sizeof(uint16_t));
}

void UsedGenerations::Clear() {
  absl::MutexLock lock(&mu_);
  generations_.clear();
  counts_.clear();
}

}  // namespace refurbish_tf
