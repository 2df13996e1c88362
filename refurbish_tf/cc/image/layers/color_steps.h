// The steps of layers that change colors by random amounts.
#pragma once

#include <array>
#include <cstdint>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

class ColorSteps {
 public:
  enum Step { kBrightness, kContrast, kSaturation, kHue };
  static constexpr int kNumber = 4;

  // Reads the range of each amount, by the name of its step.
  explicit ColorSteps(Arguments& arguments) {
    for (int i = 0; i < kNumber; ++i) {
      const NamedDistortion& step = kSteps[i];
      ranges_[i] = arguments.Range(step.name, step.lowest, step.highest);
    }
  }

  // `draw` says where in its range the amount is.
  void Apply(int step, int32_t draw, Canvas* canvas) const {
    const PreparedDistortion distortion = PreparedDistortion::InSteps(
        kSteps[step].distortion, Between(ranges_[step], draw));
    if (!distortion.changes_nothing) canvas->Distort(distortion, /*fill=*/0);
  }

 private:
  static constexpr NamedDistortion kSteps[kNumber] = {
      {"brightness", Distortion::kBrightness, 0, 100},
      {"contrast", Distortion::kContrast, 0, 100},
      {"saturation", Distortion::kColor, 0, 100},
      {"hue", Distortion::kHue, -0.5, 0.5},
  };

  std::array<std::array<double, 2>, kNumber> ranges_ = {};
};

}  // namespace refurbish_tf
