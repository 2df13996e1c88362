// Applies a chain of other layers, with some probability.
#include <algorithm>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

class RandomApply : public ChanceLayer {
 public:
  explicit RandomApply(Arguments& arguments)
      : ChanceLayer(arguments),
        chain_(LayerChain::Of("layers", /*keeps_size=*/true, &arguments)) {}

  int num_draws() const override { return 1 + chain_.num_draws(); }
  // If the chain is not applied, its draws are zeros.
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Fraction(0);
    std::fill(draws + 1, draws + num_draws(), 0);
    if (!ChangesNothing(draws)) chain_.Draw(seed, draws + 1);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == 0 ? Layer::EndOfDraw(i, draws)
                  : chain_.EndOfDraw(i - 1, draws + 1);
  }
  Movement movement() const override {
    return below() > 0 ? chain_.movement() : Movement::kNone;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return chain_.BehindWithin(image);
  }

 private:
  void Change(const int32_t* draws, Canvas* canvas) const override {
    chain_.Apply(draws + 1, canvas);
  }

  const LayerChain chain_;
};

const LayerType<RandomApply> kRandomApply("random_apply");

}  // namespace
}  // namespace refurbish_tf
