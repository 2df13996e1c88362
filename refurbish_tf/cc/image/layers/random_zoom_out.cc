// With some probability, puts the image at a random place in a larger one.
#include <algorithm>
#include <array>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

class RandomZoomOut : public ChanceLayer {
 public:
  explicit RandomZoomOut(Arguments& arguments)
      : ChanceLayer(arguments),
        sides_(arguments.Range("sides", 1, kMost)),
        fill_("fill", arguments) {}

  // Draws whether it applies, how much larger the result is, and where in the
  // result the image is: left, then top.
  int num_draws() const override { return 4; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(fill_.Check(image));
    const int64_t longest = std::max(image.size.height, image.size.width);
    if (static_cast<double>(longest) * sides_[1] > LayerChain::kMaxSide) {
      return InvalidArgument(
          "have sides of at most ", LayerChain::kMaxSide,
          " pixels after it, got ", image.size,
          " pixels. Pass a smaller side_range, or resize it first");
    }
    return image.OfDrawnSize();
  }

 private:
  static constexpr double kMost = 1000;

  void Change(const int32_t* draws, Canvas* canvas) const override {
    const double by = Between(sides_, draws[1]);
    const auto [height, width] = canvas->size();
    const int64_t made_height = PixelsOf(height, by);
    const int64_t made_width = PixelsOf(width, by);
    const int64_t left = PixelsOf(made_width - width, UnitOf(draws[2]));
    const int64_t top = PixelsOf(made_height - height, UnitOf(draws[3]));
    canvas->Crop({-top, -left, made_height, made_width}, Border::kEmpty,
                 fill_.color());
  }

  const std::array<double, 2> sides_;
  const FillValue fill_;
};

const LayerType<RandomZoomOut> kRandomZoomOut("random_zoom_out");

}  // namespace
}  // namespace refurbish_tf
