// Applies one of several chains of layers, or all of them in random order.
#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

// Chain k is in the argument `layers<k>`. Chains must keep the dtype of an
// image, and its size if `keeps_size`.
std::vector<LayerChain> ChainsOf(size_t number, bool keeps_size,
                                 Arguments& arguments) {
  std::vector<LayerChain> chains;
  for (size_t k = 0; k < number; ++k) {
    chains.push_back(
        LayerChain::Of(absl::StrCat("layers", k), keeps_size, &arguments));
  }
  return chains;
}

class RandomChoice : public Layer {
 public:
  explicit RandomChoice(Arguments& arguments)
      : RandomChoice(arguments.Numbers("ends"), arguments) {}

  // The first draw selects a chain. The draws of that chain follow, then zeros.
  int num_draws() const override { return 1 + most_draws_; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    std::fill(draws, draws + num_draws(), 0);
    draws[0] = seed.Fraction(0);
    ChosenBy(draws).Draw(seed, draws + 1);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i == 0) return Layer::EndOfDraw(i, draws);
    const LayerChain& chosen = ChosenBy(draws);
    return i > chosen.num_draws() ? 1 : chosen.EndOfDraw(i - 1, draws + 1);
  }
  Movement movement() const override {
    Movement most = Movement::kNone;
    for (size_t k = 0; k < chains_.size(); ++k) {
      const bool is_ever_chosen = ends_[k] > (k == 0 ? 0 : ends_[k - 1]);
      if (is_ever_chosen) most = std::max(most, chains_[k].movement());
    }
    return most;
  }
  bool looks_at_boxes() const override {
    return std::any_of(
        chains_.begin(), chains_.end(),
        [](const LayerChain& chain) { return chain.looks_at_boxes(); });
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return ChosenBy(draws).ChangesNothing(draws + 1);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    ChosenBy(draws).Apply(draws + 1, canvas);
  }
  void DrawFrom(Canvas* boxes, int32_t* draws) const override {
    ChosenBy(draws).DrawFrom(boxes, draws + 1);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_ASSIGN_OR_RETURN(ImageSpec all, chains_[0].BehindWithin(image));
    for (size_t k = 1; k < chains_.size(); ++k) {
      RTF_ASSIGN_OR_RETURN(const ImageSpec made,
                           chains_[k].BehindWithin(image));
      all.size_is_drawn |= made.size_is_drawn || !(made.size == all.size);
      all.size_is_new |= made.size_is_new || all.size_is_drawn;
      if (!(made.size == all.size)) all.size = {kUnknown, kUnknown};
    }
    return all;
  }
  absl::StatusOr<ImageSpec> Made(ImageSpec image,
                                 const int32_t* draws) const override {
    RTF_ASSIGN_OR_RETURN(const ImageSpec all, Behind(image));
    RTF_ASSIGN_OR_RETURN(ImageSpec made,
                         ChosenBy(draws).BehindWithin(image, draws + 1));
    made.size_is_drawn |= all.size_is_drawn;
    return made;
  }

 private:
  RandomChoice(const std::vector<double>& ends, Arguments& arguments)
      : chains_(ChainsOf(ends.size(), /*keeps_size=*/false, arguments)),
        ends_(ends) {
    if (!(ends[0] >= 0) || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() != 0x1p31) {
      arguments.Fail("ends must rise from 0 to 2^31");
    }
    for (const LayerChain& chain : chains_) {
      most_draws_ = std::max(most_draws_, chain.num_draws());
    }
  }

  // The first end above the draw belongs to the chosen chain.
  const LayerChain& ChosenBy(const int32_t* draws) const {
    return chains_[std::upper_bound(ends_.begin(), ends_.end(), draws[0]) -
                   ends_.begin()];
  }

  const std::vector<LayerChain> chains_;
  // The cumulative probabilities, in units of 2^-31.
  const std::vector<double> ends_;
  int most_draws_ = 0;
};

class RandomOrder : public Layer {
 public:
  explicit RandomOrder(Arguments& arguments)
      : chains_(ChainsOf(arguments.Integer("number", 1, LayerChain::kMaxLayers),
                         /*keeps_size=*/true, arguments)),
        number_(static_cast<int>(chains_.size())),
        num_draws_(number_ - 1) {
    for (const LayerChain& chain : chains_) {
      first_draws_.push_back(num_draws_);
      num_draws_ += chain.num_draws();
    }
  }

  // Draw i says which of the remaining chains comes next, until one is left.
  // Then come the draws of all chains.
  int num_draws() const override { return num_draws_; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    for (int i = 0; i < number_ - 1; ++i) draws[i] = seed.Below(i, number_ - i);
    for (int k = 0; k < number_; ++k) {
      chains_[k].Draw(seed, draws + first_draws_[k]);
    }
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i < number_ - 1) return number_ - i;
    int k = number_ - 1;
    while (first_draws_[k] > i) --k;
    return chains_[k].EndOfDraw(i - first_draws_[k], draws + first_draws_[k]);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    std::vector<int> left(number_);
    std::iota(left.begin(), left.end(), 0);
    for (int i = 0; i < number_; ++i) {
      const auto next = left.begin() + (i < number_ - 1 ? draws[i] : 0);
      chains_[*next].Apply(draws + first_draws_[*next], canvas);
      left.erase(next);
    }
  }
  Movement movement() const override {
    Movement most = Movement::kNone;
    for (const LayerChain& chain : chains_) {
      most = std::max(most, chain.movement());
    }
    return most;
  }
  // The chains keep the image's size and dtype, so the order does not matter.
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    for (const LayerChain& chain : chains_) {
      RTF_ASSIGN_OR_RETURN(image, chain.BehindWithin(image));
    }
    return image;
  }

 private:
  const std::vector<LayerChain> chains_;
  const int number_;
  int num_draws_;
  std::vector<int> first_draws_;
};

const LayerType<RandomChoice> kRandomChoice("random_choice");
const LayerType<RandomOrder> kRandomOrder("random_order");

}  // namespace
}  // namespace refurbish_tf
