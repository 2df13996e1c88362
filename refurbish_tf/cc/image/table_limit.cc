#include "refurbish_tf/cc/image/table_limit.h"

namespace refurbish_tf {

TableLimit::TableLimit(const LayerChain& chain, int tables, int64_t group)
    : tables_(tables), group_(group) {
  int first = 0;
  for (const LayerChain::Link& link : chain.links()) {
    if (link.layer->is_policy()) {
      layers_.push_back({link.layer.get(), first, {}});
    }
    first += link.layer->num_draws();
  }
}

void TableLimit::Begin() {
  for (PolicyLayer& layer : layers_) layer.reserved.clear();
}

bool TableLimit::Reserve(int64_t row, const int32_t* draws) {
  const auto needs = [draws](const PolicyLayer& policy) {
    return policy.layer->NeedsTable(draws + policy.first_draw);
  };
  for (PolicyLayer& layer : layers_) {
    std::deque<int64_t>& reserved = layer.reserved;
    while (!reserved.empty() && reserved.front() <= row - group_)
      reserved.pop_front();
    if (needs(layer) && reserved.size() >= static_cast<size_t>(tables_)) {
      return false;
    }
  }
  for (PolicyLayer& layer : layers_) {
    if (needs(layer)) layer.reserved.push_back(row);
  }
  return true;
}

}  // namespace refurbish_tf
