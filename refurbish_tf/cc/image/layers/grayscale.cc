// Makes the image grey, with some probability.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class Grayscale : public ChanceLayer {
 public:
  using ChanceLayer::ChanceLayer;

  bool moves_pixels() const override { return false; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckColors(image, {1, 3}));
    return image;
  }

 private:
  void Change(const int32_t* /*draws*/, Canvas* canvas) const override {
    canvas->Distort(without_color_, /*fill=*/0);
  }

  const PreparedDistortion without_color_{Distortion::kColor, 0};
};

const LayerType kGrayscale("random_grayscale", 1, LayerType::MakeAs<Grayscale>);

}  // namespace
}  // namespace refurbish_tf
