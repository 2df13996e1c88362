// Changes brightness, contrast, saturation, hue and the order of the channels,
// each with some probability.
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layers/color_steps.h"

namespace refurbish_tf {
namespace {

class RandomPhotometricDistort : public Layer {
 public:
  explicit RandomPhotometricDistort(Arguments& arguments)
      : steps_(arguments),
        below_(arguments.Integer("below", 0, int64_t{1} << 31)) {}

  // Whether each step is done, and where in its range its amount is; whether
  // contrast comes before saturation; whether the channels are permuted, and to
  // which order.
  int num_draws() const override { return kOrder + 1; }
  void Draw(const ImageSeed& seed, const int32_t* before,
            int32_t* draws) const override {
    Layer::Draw(seed, before, draws);
    for (const int i : {kIsEarly, kOrder}) {
      draws[i] = seed.Below(i, EndOfDraw(i, draws));
    }
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == kIsEarly ? 2
           : i == kOrder ? kNumChannelOrders
                         : Layer::EndOfDraw(i, draws);
  }
  bool ChangesNothing(const int32_t* draws) const override {
    for (const int i : {0, 1, 2, 3, kPermutes}) {
      if (draws[i] < below_) return false;
    }
    return true;
  }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const auto change = [&](int step) {
      if (draws[step] >= below_) return;
      steps_.Apply(step, draws[ColorSteps::kNumber + step], canvas);
    };
    change(ColorSteps::kBrightness);
    if (draws[kIsEarly] == 1) change(ColorSteps::kContrast);
    change(ColorSteps::kSaturation);
    change(ColorSteps::kHue);
    if (draws[kIsEarly] == 0) change(ColorSteps::kContrast);
    if (draws[kPermutes] < below_) {
      canvas->Distort(
          PreparedDistortion(Distortion::kPermuteChannels, draws[kOrder]),
          /*fill=*/0);
    }
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return OfThreeColors(image);
  }

 private:
  static constexpr int kIsEarly = 2 * ColorSteps::kNumber;
  static constexpr int kPermutes = kIsEarly + 1, kOrder = kPermutes + 1;

  const ColorSteps steps_;
  const int64_t below_;
};

const LayerType kRandomPhotometricDistort(
    "random_photometric_distort", 1,
    LayerType::MakeAs<RandomPhotometricDistort>);

}  // namespace
}  // namespace refurbish_tf
