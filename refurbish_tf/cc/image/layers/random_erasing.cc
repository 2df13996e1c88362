// Fills a random rectangle of the image with a color, with some probability.
#include <optional>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/random_window.h"

namespace refurbish_tf {
namespace {

class RandomErasing : public ChanceLayer {
 public:
  explicit RandomErasing(Arguments& arguments)
      : ChanceLayer(arguments),
        window_(RandomWindow::Ratio::kHeightToWidth, arguments),
        value_("value", arguments) {}

  int num_draws() const override { return 1 + RandomWindow::kNumDraws; }
  // Faster than the default, which calls `EndOfDraw` for each number.
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    seed.Fractions(num_draws(), draws);
  }
  Movement movement() const override { return Movement::kNone; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(value_.Check(image));
    return image;
  }

 private:
  void Change(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize size = canvas->size();
    const auto fits = [size](double height, double width) {
      return height < size.height && width < size.width;
    };
    const std::optional<Box> box = window_.Find(draws + 1, size, fits);
    if (box.has_value()) canvas->CutOut(*box, value_.color());
  }

  const RandomWindow window_;
  const FillValue value_;
};

const LayerType<RandomErasing> kRandomErasing("random_erasing");

}  // namespace
}  // namespace refurbish_tf
