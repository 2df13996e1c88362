// Resizes a random part of the image, of random area and aspect ratio.
#include <algorithm>
#include <array>
#include <cmath>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

// How often it tries to find a part that fits into the image.
constexpr int kNumAttempts = 10;

double UnitOf(int32_t fraction) { return fraction / 2147483648.0; }

int64_t NearestWhole(double value) {
  return static_cast<int64_t>(std::floor(value + 0.5));
}

class RandomResizedCrop : public ResizingLayer {
 public:
  explicit RandomResizedCrop(Arguments& arguments)
      : ResizingLayer(arguments),
        scale_(arguments.Range("scale")),
        ratio_(arguments.Range("ratio")) {}

  int num_draws() const override { return 2 * kNumAttempts + 2; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    for (int i = 0; i < num_draws(); ++i) draws[i] = seed.Fraction(i);
  }

 private:
  Box PartOf(const int32_t* draws, ImageSize image) const override {
    const double log_low = std::log(ratio_[0]);
    const double log_high = std::log(ratio_[1]);
    for (int attempt = 0; attempt < kNumAttempts; ++attempt) {
      const double area =
          static_cast<double>(image.height * image.width) *
          (scale_[0] + UnitOf(draws[2 * attempt]) * (scale_[1] - scale_[0]));
      const double aspect = std::exp(log_low + UnitOf(draws[2 * attempt + 1]) *
                                                   (log_high - log_low));
      const double width = std::floor(std::sqrt(area * aspect) + 0.5);
      const double height = std::floor(std::sqrt(area / aspect) + 0.5);
      if (!(width > 0 && width <= image.width && height > 0 &&
            height <= image.height)) {
        continue;
      }
      Box part;
      part.width = static_cast<int64_t>(width);
      part.height = static_cast<int64_t>(height);
      const int32_t* const place = draws + 2 * kNumAttempts;
      part.y = static_cast<int64_t>(
          std::floor(UnitOf(place[0]) * (image.height - part.height + 1)));
      part.x = static_cast<int64_t>(
          std::floor(UnitOf(place[1]) * (image.width - part.width + 1)));
      return part;
    }
    return Centred(image);
  }

  // The largest part in the middle whose width / height is in the range.
  Box Centred(ImageSize image) const {
    Box part = {0, 0, image.height, image.width};
    const double ratio = static_cast<double>(image.width) / image.height;
    if (ratio < ratio_[0]) {
      part.height = std::clamp<int64_t>(NearestWhole(image.width / ratio_[0]),
                                        1, image.height);
    } else if (ratio > ratio_[1]) {
      part.width = std::clamp<int64_t>(NearestWhole(image.height * ratio_[1]),
                                       1, image.width);
    }
    part.y = (image.height - part.height) / 2;
    part.x = (image.width - part.width) / 2;
    return part;
  }

  const std::array<double, 2> scale_, ratio_;
};

const LayerType kRandomResizedCrop("random_resized_crop", 1,
                                   LayerType::MakeAs<RandomResizedCrop>);

}  // namespace
}  // namespace refurbish_tf
