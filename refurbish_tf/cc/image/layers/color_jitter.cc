// Changes brightness, contrast, saturation and hue by random factors, in a
// random order.
#include <array>
#include <cmath>
#include <utility>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

constexpr int kNumSteps = 4;
// In how many orders they can be.
constexpr int kOrders = 24;

constexpr NamedDistortion kJitterSteps[kNumSteps] = {
    {"brightness", Distortion::kBrightness, 0, 100},
    {"contrast", Distortion::kContrast, 0, 100},
    {"saturation", Distortion::kColor, 0, 100},
    {"hue", Distortion::kHue, -0.5, 0.5},
};

class ColorJitter : public Layer {
 public:
  explicit ColorJitter(Arguments& arguments) {
    for (int i = 0; i < kNumSteps; ++i) {
      const NamedDistortion& step = kJitterSteps[i];
      ranges_[i] = arguments.Range(step.name, step.lowest, step.highest);
    }
  }

  // The order, and where in its range each parameter lies.
  int num_draws() const override { return 1 + kNumSteps; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Below(0, kOrders);
    for (int i = 1; i <= kNumSteps; ++i) draws[i] = seed.Fraction(i);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == 0 ? kOrders : Layer::EndOfDraw(i, draws);
  }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    std::array<int, kNumSteps> order = {0, 1, 2, 3};
    int32_t number = draws[0];
    for (int i = 0; i < kNumSteps; ++i) {
      // Each of those that are left, in turn.
      std::swap(order[i], order[i + number % (kNumSteps - i)]);
      number /= kNumSteps - i;
      const int step = order[i];
      const double parameter = Between(ranges_[step], draws[1 + step]);
      // In steps, with which it is made for each image.
      const PreparedDistortion distortion(
          kJitterSteps[step].distortion,
          std::nearbyint(parameter * PreparedDistortion::kSteps) /
              PreparedDistortion::kSteps);
      if (!distortion.changes_nothing) canvas->Distort(distortion, /*fill=*/0);
    }
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return OfThreeColors(image);
  }

 private:
  std::array<std::array<double, 2>, kNumSteps> ranges_ = {};
};

const LayerType kColorJitter("color_jitter", 1, LayerType::MakeAs<ColorJitter>);

}  // namespace
}  // namespace refurbish_tf
