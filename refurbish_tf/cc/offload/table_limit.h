#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {

// Decides for which images of a batch an accelerator can run the policy layers.
//
// Two operations of these layers, auto_contrast and equalize, need a lookup
// table. The accelerator's program has no branches, so in each group of images
// it makes a fixed number of tables, whether they are needed or not. The host
// runs the policies of images for which no table is left.
class TableLimit {
 public:
  // In each layer, at most `tables` of any `group` consecutive images get
  // tables, wherever the group begins: a batch is divided among replicas later,
  // and each replica forms its groups from its first image. `chain` must
  // outlive this.
  TableLimit(const LayerChain& chain, int tables, int64_t group)
      : tables_(tables), group_(group) {
    for (const LayerChain::Link& link : chain.links()) {
      if (link.layer->is_policy()) {
        layers_.push_back({link.layer.get(), link.first_draw, {}});
      }
    }
  }

  void Begin() {
    for (PolicyLayer& layer : layers_) layer.reserved.clear();
  }
  // Reserves a table for image `row` in each layer that needs one. Reserves
  // nothing, and returns false, if one of these layers has no table left. Rows
  // of a batch come in rising order.
  bool Reserve(int64_t row, const int32_t* draws) {
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

 private:
  struct PolicyLayer {
    const Layer* layer;
    int first_draw;
    // The last rows that got tables, at most `tables_`, in rising order.
    std::deque<int64_t> reserved;
  };

  const int tables_;
  const int64_t group_;
  std::vector<PolicyLayer> layers_;
};

}  // namespace refurbish_tf
