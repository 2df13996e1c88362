#include "refurbish_tf/cc/cooperation/shared/used_generations.h"

namespace refurbish_tf {

GenerationRange UsedGenerations::Wanted(uint32_t index,
                                        Generation generation) const {
  std::lock_guard<std::mutex> lock(mu_);
  if (index >= uses_.size()) return {generation};
  const Uses& uses = uses_[index];
  if (uses.count == 0 || uses.generation < generation) return {generation};
  return {uses.generation + (uses.count >= most_uses_)};
}

bool UsedGenerations::Use(uint32_t index, Generation used) {
  std::lock_guard<std::mutex> lock(mu_);
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
  std::lock_guard<std::mutex> lock(mu_);
  if (index >= uses_.size() || uses_[index].count == 0) return 0;
  return uses_[index].generation + 1;
}

bool UsedGenerations::UseOnce(uint32_t index, Generation used) {
  std::lock_guard<std::mutex> lock(mu_);
  if (index >= uses_.size()) uses_.resize(index + 1);
  Uses& uses = uses_[index];
  if (uses.count > 0 && used <= uses.generation) return false;
  uses = {used, most_uses_};
  return true;
}

void UsedGenerations::MakeRoomFor(uint32_t num_samples) {
  std::lock_guard<std::mutex> lock(mu_);
  uses_.reserve(num_samples);
}

int64_t UsedGenerations::bytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  return uses_.capacity() * sizeof(Uses);
}

void UsedGenerations::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  uses_.clear();
}

}  // namespace refurbish_tf
