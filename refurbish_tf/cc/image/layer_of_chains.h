// A layer that applies chains of other layers, each given in an argument.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {

class LayerOfChains : public Layer {
 public:
  // Chain k is in the argument `layers<k>`. Chains must keep the dtype of an
  // image, and its size if `keeps_size`.
  LayerOfChains(size_t number, bool keeps_size, Arguments& arguments) {
    for (size_t k = 0; k < number; ++k) {
      chains_.push_back(
          LayerChain::Of(absl::StrCat("layers", k), keeps_size, &arguments));
    }
  }

  bool moves_pixels() const override {
    return AnyOf([](const LayerChain& chain) { return chain.moves_pixels(); });
  }
  RowChange row_change() const override {
    RowChange most = RowChange::kKept;
    for (const LayerChain& chain : chains_) {
      most = std::max(most, chain.row_change());
    }
    return most;
  }
  bool looks_at_boxes() const override {
    return AnyOf(
        [](const LayerChain& chain) { return chain.looks_at_boxes(); });
  }

 protected:
  const std::vector<LayerChain>& chains() const { return chains_; }

 private:
  template <class Has>
  bool AnyOf(const Has& has) const {
    return std::any_of(chains_.begin(), chains_.end(), has);
  }

  std::vector<LayerChain> chains_;
};

}  // namespace refurbish_tf
