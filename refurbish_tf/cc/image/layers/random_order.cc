// Applies several chains of other layers, in random order.
#include <numeric>
#include <vector>

#include "refurbish_tf/cc/image/layer_of_chains.h"

namespace refurbish_tf {
namespace {

class RandomOrder : public LayerOfChains {
 public:
  explicit RandomOrder(Arguments& arguments)
      : LayerOfChains(arguments.Integer("number", 1, LayerChain::kMaxLayers),
                      /*keeps_size=*/true, arguments),
        number_(static_cast<int>(chains().size())),
        num_draws_(number_ - 1) {
    for (const LayerChain& chain : chains()) {
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
      chains()[k].Draw(seed, draws + first_draws_[k]);
    }
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i < number_ - 1) return number_ - i;
    int k = number_ - 1;
    while (first_draws_[k] > i) --k;
    return chains()[k].EndOfDraw(i - first_draws_[k], draws + first_draws_[k]);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    std::vector<int> left(number_);
    std::iota(left.begin(), left.end(), 0);
    for (int i = 0; i < number_; ++i) {
      const auto next = left.begin() + (i < number_ - 1 ? draws[i] : 0);
      chains()[*next].Apply(draws + first_draws_[*next], canvas);
      left.erase(next);
    }
  }
  // The chains keep the image's size and dtype, so the order does not matter.
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    for (const LayerChain& chain : chains()) {
      RTF_ASSIGN_OR_RETURN(image, chain.BehindWithin(image));
    }
    return image;
  }

 private:
  const int number_;
  int num_draws_;
  std::vector<int> first_draws_;
};

const LayerType kRandomOrder("random_order", 1, LayerType::MakeAs<RandomOrder>);

}  // namespace
}  // namespace refurbish_tf
