// Puts the channels into a random order.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomChannelPermutation : public Layer {
 public:
  explicit RandomChannelPermutation(Arguments& /*arguments*/) {}

  int num_draws() const override { return 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Below(0, kNumChannelOrders);
  }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return kNumChannelOrders;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] == 0;
  }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const PreparedDistortion order(Distortion::kPermuteChannels, draws[0]);
    if (!order.changes_nothing) canvas->Distort(order, /*fill=*/0);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return OfThreeColors(image);
  }
};

const LayerType kRandomChannelPermutation(
    "random_channel_permutation", 1,
    LayerType::MakeAs<RandomChannelPermutation>);

}  // namespace
}  // namespace refurbish_tf
