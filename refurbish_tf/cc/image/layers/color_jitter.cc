// Layers that change brightness, contrast, saturation and hue by random
// factors: in a random order, or each with some probability.
#include <array>
#include <utility>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class ColorLayer : public Layer {
 public:
  enum Step { kBrightness, kContrast, kSaturation, kHue, kNumSteps };

  explicit ColorLayer(Arguments& arguments) {
    for (int i = 0; i < kNumSteps; ++i) {
      const NamedDistortion& step = kSteps[i];
      ranges_[i] = arguments.Range(step.name, step.lowest, step.highest);
    }
  }

  Movement movement() const final { return Movement::kNone; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const final {
    return OfThreeColors(image);
  }

 protected:
  // `draw` says where in its range the amount is.
  void Change(int step, int32_t draw, Canvas* canvas) const {
    const PreparedDistortion distortion = PreparedDistortion::InSteps(
        kSteps[step].distortion, Between(ranges_[step], draw));
    if (!distortion.changes_nothing) canvas->Distort(distortion, /*fill=*/0);
  }

 private:
  static constexpr NamedDistortion kSteps[kNumSteps] = {
      {"brightness", Distortion::kBrightness, 0, 100},
      {"contrast", Distortion::kContrast, 0, 100},
      {"saturation", Distortion::kColor, 0, 100},
      {"hue", Distortion::kHue, -0.5, 0.5},
  };

  std::array<std::array<double, 2>, kNumSteps> ranges_ = {};
};

class ColorJitter : public ColorLayer {
 public:
  using ColorLayer::ColorLayer;

  // Draws the order of the steps, then where in its range each amount is.
  int num_draws() const override { return 1 + kNumSteps; }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == 0 ? kOrders : Layer::EndOfDraw(i, draws);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    std::array<int, kNumSteps> order = {0, 1, 2, 3};
    int32_t number = draws[0];
    for (int i = 0; i < kNumSteps; ++i) {
      // Chooses the next step among those that are left.
      const int left = kNumSteps - i;
      std::swap(order[i], order[i + number % left]);
      number /= left;
      Change(order[i], draws[1 + order[i]], canvas);
    }
  }

 private:
  static constexpr int kOrders = 24;
};

class RandomPhotometricDistort : public ColorLayer {
 public:
  explicit RandomPhotometricDistort(Arguments& arguments)
      : ColorLayer(arguments),
        below_(arguments.Integer("below", 0, kEndOfFraction)) {}

  // Four draws say which steps are done, and four say where in its range each
  // amount is. The last three say whether contrast comes before saturation,
  // whether the channels are permuted, and in which order.
  int num_draws() const override { return kOrder + 1; }
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
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const auto change = [&](int step) {
      if (draws[step] < below_) Change(step, draws[kNumSteps + step], canvas);
    };
    change(kBrightness);
    if (draws[kIsEarly] == 1) change(kContrast);
    change(kSaturation);
    change(kHue);
    if (draws[kIsEarly] == 0) change(kContrast);
    if (draws[kPermutes] < below_) {
      canvas->Distort(
          PreparedDistortion(Distortion::kPermuteChannels, draws[kOrder]),
          /*fill=*/0);
    }
  }

 private:
  static constexpr int kIsEarly = 2 * kNumSteps;
  static constexpr int kPermutes = kIsEarly + 1, kOrder = kPermutes + 1;

  const int64_t below_;
};

const LayerType<ColorJitter> kColorJitter("color_jitter");
const LayerType<RandomPhotometricDistort> kRandomPhotometricDistort(
    "random_photometric_distort");

}  // namespace
}  // namespace refurbish_tf
