#include "refurbish_tf/cc/image/table_slots.h"

#include <algorithm>

namespace refurbish_tf {
namespace {

bool NeedsTable(const PolicyOutcome& outcome) {
  const Distortion distortion = outcome.distortion.distortion;
  return outcome.random == RandomOperation::kNone &&
         (distortion == Distortion::kAutoContrast ||
          distortion == Distortion::kEqualize);
}

}  // namespace

TableSlots::TableSlots(const LayerRun& run, int slots, int64_t group,
                       int64_t part)
    : slots_(slots), group_size_(group), part_(part) {
  int first = 0;
  for (const Layer& layer : run.layers()) {
    if (layer.kind == LayerKind::kPolicy) {
      policies_.push_back({layer.policy.get(), first});
    }
    first += layer.NumDraws();
  }
}

void TableSlots::Enter(int64_t number, Group* group) const {
  if (group->number == number) return;
  group->number = number;
  group->taken.assign(policies_.size(), 0);
}

bool TableSlots::Take(int64_t row, const int32_t* draws) {
  if (row == 0) of_batch_.number = of_part_.number = -1;
  const int64_t groups_of_part = (part_ + group_size_ - 1) / group_size_;
  Enter(row / group_size_, &of_batch_);
  Enter(row / part_ * groups_of_part + row % part_ / group_size_, &of_part_);
  absl::InlinedVector<size_t, 8> wanted;
  for (size_t i = 0; i < policies_.size(); ++i) {
    const auto& [policy, first] = policies_[i];
    if (!NeedsTable(policy->At(draws[first]))) continue;
    if (std::max(of_batch_.taken[i], of_part_.taken[i]) >= slots_) return false;
    wanted.push_back(i);
  }
  for (const size_t i : wanted) {
    ++of_batch_.taken[i];
    ++of_part_.taken[i];
  }
  return true;
}

}  // namespace refurbish_tf
