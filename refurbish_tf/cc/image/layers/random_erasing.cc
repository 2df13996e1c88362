// Fills a random rectangle of the image with a color, or none.
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

// How often it tries to find a rectangle that fits into the image.
constexpr int kMostErasingTries = 10;

double ShareOf(int32_t fraction) { return fraction / 2147483648.0; }

class RandomErasing : public ChanceLayer {
 public:
  explicit RandomErasing(Arguments& arguments)
      : ChanceLayer(arguments),
        scale_(arguments.Range("scale")),
        ratio_(arguments.Range("ratio")) {
    const std::vector<double> values = arguments.Numbers("value");
    num_values_ = values.size();
    if (num_values_ != 1 && num_values_ != 3) {
      arguments.Fail("value must be one number or three");
      return;
    }
    for (size_t c = 0; c < color_.size(); ++c) {
      const double value = values[num_values_ == 1 ? 0 : c % 3];
      if (!(value >= 0 && value <= 255)) {
        arguments.Fail("value must be from 0 to 255");
        return;
      }
      color_[c] = static_cast<uint8_t>(value);
    }
  }

  int num_draws() const override { return 1 + 2 * kMostErasingTries + 2; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    for (int i = 0; i < num_draws(); ++i) draws[i] = seed.Fraction(i);
  }
  bool moves_pixels() const override { return false; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    if (num_values_ == 1 && color_ == kBlack) return image;
    const absl::Status status = num_values_ == 3
                                    ? CheckColors(image, {3})
                                    : CheckColors(image, {1, 2, 3, 4});
    if (!status.ok()) return status;
    return image;
  }

 private:
  void Change(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize size = canvas->size();
    const double log_low = std::log(ratio_[0]);
    const double log_high = std::log(ratio_[1]);
    const int32_t* const place = draws + 1 + 2 * kMostErasingTries;
    for (int k = 0; k < kMostErasingTries; ++k) {
      const double area =
          static_cast<double>(size.height * size.width) *
          (scale_[0] + ShareOf(draws[1 + 2 * k]) * (scale_[1] - scale_[0]));
      const double aspect =
          std::exp(log_low + ShareOf(draws[2 + 2 * k]) * (log_high - log_low));
      const double height = std::floor(std::sqrt(area * aspect) + 0.5);
      const double width = std::floor(std::sqrt(area / aspect) + 0.5);
      if (!(height < size.height && width < size.width)) continue;
      const int64_t top = static_cast<int64_t>(
          std::floor(ShareOf(place[0]) * (size.height - height + 1)));
      const int64_t left = static_cast<int64_t>(
          std::floor(ShareOf(place[1]) * (size.width - width + 1)));
      canvas->CutOut(top, top + static_cast<int64_t>(height), left,
                     left + static_cast<int64_t>(width), color_);
      return;
    }
  }

  const std::array<double, 2> scale_, ratio_;
  FillColor color_;
  // Of all channels, or of each of three.
  size_t num_values_;
};

const LayerType kRandomErasing("random_erasing", 1,
                               LayerType::MakeAs<RandomErasing>);

}  // namespace
}  // namespace refurbish_tf
