// Fills a random rectangle of the image with a color, or none.
#include <optional>
#include <vector>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/random_window.h"

namespace refurbish_tf {
namespace {

class RandomErasing : public ChanceLayer {
 public:
  explicit RandomErasing(Arguments& arguments)
      : ChanceLayer(arguments),
        window_(RandomWindow::Ratio::kHeightToWidth, arguments) {
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

  int num_draws() const override { return 1 + RandomWindow::kNumDraws; }
  bool moves_pixels() const override { return false; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    if (num_values_ == 1 && color_ == kBlack) return image;
    RTF_RETURN_IF_ERROR(num_values_ == 3 ? CheckColors(image, {3})
                                         : CheckColors(image, {1, 2, 3, 4}));
    return image;
  }

 private:
  void Change(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize size = canvas->size();
    const auto fits = [size](double height, double width) {
      return height < size.height && width < size.width;
    };
    const std::optional<Box> box = window_.Find(draws + 1, size, fits);
    if (!box.has_value()) return;
    canvas->CutOut(box->y, box->y + box->height, box->x, box->x + box->width,
                   color_);
  }

  const RandomWindow window_;
  FillColor color_;
  // Of all channels, or of each of three.
  size_t num_values_;
};

const LayerType kRandomErasing("random_erasing", 1,
                               LayerType::MakeAs<RandomErasing>);

}  // namespace
}  // namespace refurbish_tf
