// Makes the image grey, or not.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class Grayscale : public Layer {
 public:
  explicit Grayscale(Arguments& arguments)
      : below_(arguments.Integer("below", 0, int64_t{1} << 31)) {}

  int num_draws() const override { return 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Fraction(0);
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] >= below_;
  }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    if (draws[0] < below_) canvas->Distort(without_color_, /*fill=*/0);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const absl::Status status = CheckColors(image, {1, 3});
    if (!status.ok()) return status;
    return image;
  }

 private:
  // In units of 2^-31, the probability.
  const int64_t below_;
  const PreparedDistortion without_color_{Distortion::kColor, 0};
};

const LayerType kGrayscale("grayscale", 1, LayerType::MakeAs<Grayscale>);

}  // namespace
}  // namespace refurbish_tf
