#include "refurbish_tf/cc/image/table_limit.h"

namespace refurbish_tf {
namespace {

bool NeedsTable(const PolicyOutcome& outcome) {
  const Distortion distortion = outcome.distortion.distortion;
  return outcome.random == RandomOperation::kNone &&
         (distortion == Distortion::kAutoContrast ||
          distortion == Distortion::kEqualize);
}

}  // namespace

TableLimit::TableLimit(const LayerChain& chain, int tables, int64_t group)
    : tables_(tables), group_(group) {
  int first = 0;
  for (const Layer& layer : chain.layers()) {
    if (layer.kind == LayerKind::kPolicy) {
      policies_.push_back({layer.policy.get(), first, {}});
    }
    first += layer.NumDraws();
  }
}

void TableLimit::Begin() {
  for (PolicyLayer& layer : policies_) layer.reserved.clear();
}

bool TableLimit::Reserve(int64_t row, const int32_t* draws) {
  const auto needs = [draws](const PolicyLayer& layer) {
    return NeedsTable(layer.policy->At(draws[layer.first_draw]));
  };
  for (PolicyLayer& layer : policies_) {
    std::deque<int64_t>& reserved = layer.reserved;
    while (!reserved.empty() && reserved.front() <= row - group_)
      reserved.pop_front();
    if (needs(layer) && reserved.size() >= static_cast<size_t>(tables_)) {
      return false;
    }
  }
  for (PolicyLayer& layer : policies_) {
    if (needs(layer)) layer.reserved.push_back(row);
  }
  return true;
}

}  // namespace refurbish_tf
