// Shows the image from a random viewpoint, with some probability.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomPerspective : public ChanceLayer {
 public:
  explicit RandomPerspective(Arguments& arguments)
      : ChanceLayer(arguments),
        scale_(arguments.Range("scale", 0, kMostScale)[1]) {}

  // Draws whether it applies, and how far each corner moves inwards.
  int num_draws() const override { return 1 + 2 * Corners::kNumber; }
  Movement movement() const override {
    return below() > 0 && scale_ > 0 ? Movement::kTurns : Movement::kKeepsRows;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckColors(image, {1, 3}));
    RTF_RETURN_IF_ERROR(CheckSides(image));
    for (const int64_t side : {image.size.height, image.size.width}) {
      if (side != kUnknown && side < kLeastSide) {
        return InvalidArgument("have sides of at least ", kLeastSide,
                               " pixels, got ", image.size,
                               ". Resize it first");
      }
    }
    return image;
  }

 private:
  // Within these limits, the rounded corners are always a convex quadrilateral.
  static constexpr double kMostScale = 0.5;
  static constexpr int64_t kLeastSide = 5;

  void Change(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize size = canvas->size();
    Corners to;
    bool changes = false;
    for (int k = 0; k < Corners::kNumber; ++k) {
      const int64_t x = Inwards(draws[1 + 2 * k], size.width);
      const int64_t y = Inwards(draws[2 + 2 * k], size.height);
      to.x[k] = k == 1 || k == 2 ? size.width - 1 - x : x;
      to.y[k] = k >= 2 ? size.height - 1 - y : y;
      changes |= x > 0 || y > 0;
    }
    if (changes) canvas->Distort(PreparedDistortion(to, size), /*fill=*/0);
  }
  // Returns a move from 0 to `scale_` times half of the side, in whole pixels.
  int64_t Inwards(int32_t draw, int64_t side) const {
    const double most = scale_ * static_cast<double>(side / 2);
    return draw * (static_cast<int64_t>(most) + 1) >> 31;
  }

  const double scale_;
};

const LayerType<RandomPerspective> kRandomPerspective("random_perspective");

}  // namespace
}  // namespace refurbish_tf
