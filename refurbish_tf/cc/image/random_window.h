// A rectangle of random area and aspect ratio, to be cropped or filled.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/base/elementary.h"
#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {

class RandomWindow {
 public:
  // How often it tries to find a rectangle that fits into the image.
  static constexpr int kMostTries = 10;
  // An area and a ratio for each try, then y and x: all are fractions.
  static constexpr int kNumDraws = 2 * kMostTries + 2;

  enum class Ratio { kWidthToHeight, kHeightToWidth };

  RandomWindow(Ratio form, Arguments& arguments)
      : form_(form),
        scale_(arguments.Range("scale")),
        ratio_(arguments.Range("ratio")),
        log_ratio_{Log2(ratio_[0]), Log2(ratio_[1])} {}

  const std::array<double, 2>& ratio() const { return ratio_; }

  // The first rectangle whose rounded sides satisfy `fits(height, width)`.
  template <class Fits>
  std::optional<Box> Find(const int32_t* draws, ImageSize image,
                          const Fits& fits) const {
    const int32_t* const place = draws + 2 * kMostTries;
    for (int k = 0; k < kMostTries; ++k, draws += 2) {
      const double area = static_cast<double>(image.height * image.width) *
                          Between(scale_, draws[0]);
      const double aspect = Exp2(Between(log_ratio_, draws[1]));
      double width = std::floor(std::sqrt(area * aspect) + 0.5);
      double height = std::floor(std::sqrt(area / aspect) + 0.5);
      if (form_ == Ratio::kHeightToWidth) std::swap(height, width);
      if (!fits(height, width)) continue;
      Box box;
      box.height = static_cast<int64_t>(height);
      box.width = static_cast<int64_t>(width);
      box.y = static_cast<int64_t>(
          std::floor(UnitOf(place[0]) * (image.height - box.height + 1)));
      box.x = static_cast<int64_t>(
          std::floor(UnitOf(place[1]) * (image.width - box.width + 1)));
      return box;
    }
    return std::nullopt;
  }

 private:
  const Ratio form_;
  const std::array<double, 2> scale_, ratio_, log_ratio_;
};

}  // namespace refurbish_tf
