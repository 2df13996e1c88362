#include "refurbish_tf/cc/cooperation/shared/used_generations.h"

namespace refurbish_tf {

GenerationRange UsedGenerations::Wanted(uint32_t index,
                                        Generation generation) const {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size()) return {generation};
  const Uses& uses = uses_[index];
  if (uses.count == 0 || uses.generation < generation) return {generation};
  return {uses.generation + (uses.count >= most_uses_)};
}

bool UsedGenerations::Use(uint32_t index, Generation used) {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size()) uses_.resize(index + 1);
  Uses& uses = uses_[index];
  if (uses.count == 0 || used > uses.generation) {
    uses = {used, 1};
    return true;
  }
  if (used < uses.generation || uses.count >= most_uses_) return false;
  ++uses.count;
  return true;
}

Generation UsedGenerations::NextUnused(uint32_t index) const {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size() || uses_[index].count == 0) return 0;
  return uses_[index].generation + 1;
}

bool UsedGenerations::UseOnce(uint32_t index, Generation used) {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size()) uses_.resize(index + 1);
  Uses& uses = uses_[index];
  if (uses.count > 0 && used <= uses.generation) return false;
  uses = {used, most_uses_};
  return true;
}

void UsedGenerations::MakeRoomFor(uint32_t num_samples) {
  absl::MutexLock lock(&mu_);
  uses_.reserve(num_samples);
}

int64_t UsedGenerations::bytes() const {
  absl::MutexLock lock(&mu_);
  return uses_.capacity() * sizeof(Uses);
}

void UsedGenerations::Clear() {
  absl::MutexLock lock(&mu_);
  uses_.clear();
}

}  // namespace refurbish_tf
