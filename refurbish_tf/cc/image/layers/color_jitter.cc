// Changes brightness, contrast, saturation and hue by random factors, in a
// random order.
#include <array>
#include <utility>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layers/color_steps.h"

namespace refurbish_tf {
namespace {

// The number of orders of the steps.
constexpr int kOrders = 24;

class ColorJitter : public Layer {
 public:
  explicit ColorJitter(Arguments& arguments) : steps_(arguments) {}

  // The order, and where in its range each parameter is.
  int num_draws() const override { return 1 + ColorSteps::kNumber; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Below(0, kOrders);
    for (int i = 1; i < num_draws(); ++i) draws[i] = seed.Fraction(i);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == 0 ? kOrders : Layer::EndOfDraw(i, draws);
  }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    std::array<int, ColorSteps::kNumber> order = {0, 1, 2, 3};
    int32_t number = draws[0];
    for (int i = 0; i < ColorSteps::kNumber; ++i) {
      // One of the steps that are left.
      const int left = ColorSteps::kNumber - i;
      std::swap(order[i], order[i + number % left]);
      number /= left;
      steps_.Apply(order[i], draws[1 + order[i]], canvas);
    }
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return OfThreeColors(image);
  }

 private:
  const ColorSteps steps_;
};

const LayerType kColorJitter("color_jitter", 1, LayerType::MakeAs<ColorJitter>);

}  // namespace
}  // namespace refurbish_tf
