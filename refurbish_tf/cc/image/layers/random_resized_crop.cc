// Resizes a random part of the image, of random area and aspect ratio.
#include <algorithm>
#include <cmath>
#include <optional>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/random_window.h"

namespace refurbish_tf {
namespace {

int64_t NearestWhole(double value) {
  return static_cast<int64_t>(std::floor(value + 0.5));
}

class RandomResizedCrop : public ResizingLayer {
 public:
  explicit RandomResizedCrop(Arguments& arguments)
      : ResizingLayer(arguments),
        window_(RandomWindow::Ratio::kWidthToHeight, arguments) {}

  int num_draws() const override { return RandomWindow::kNumDraws; }
  // Faster than the default, which calls `EndOfDraw` for each number.
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    seed.Fractions(num_draws(), draws);
  }

 private:
  Box PartOf(const int32_t* draws, ImageSize image) const override {
    const auto fits = [image](double height, double width) {
      return width > 0 && width <= image.width && height > 0 &&
             height <= image.height;
    };
    const std::optional<Box> part = window_.Find(draws, image, fits);
    return part.has_value() ? *part : Centred(image);
  }

  // The largest part in the middle whose width / height is in the range.
  Box Centred(ImageSize image) const {
    ImageSize part = image;
    const double ratio = static_cast<double>(image.width) / image.height;
    const auto [lowest, highest] = window_.ratio();
    if (ratio < lowest) {
      part.height = std::clamp<int64_t>(NearestWhole(image.width / lowest), 1,
                                        image.height);
    } else if (ratio > highest) {
      part.width = std::clamp<int64_t>(NearestWhole(image.height * highest), 1,
                                       image.width);
    }
    return CentredIn(image, part);
  }

  const RandomWindow window_;
};

const LayerType<RandomResizedCrop> kRandomResizedCrop("random_resized_crop");

}  // namespace
}  // namespace refurbish_tf
