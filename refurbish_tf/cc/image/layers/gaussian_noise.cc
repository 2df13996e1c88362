#include <array>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/noise.h"

namespace refurbish_tf {
namespace {

class GaussianNoise : public Layer {
 public:
  explicit GaussianNoise(Arguments& arguments)
      : mean_(arguments.Numbers("mean")[0]),
        sigma_(arguments.Range("sigma", 0, 1e6)),
        clip_(arguments.Boolean("clip")) {}

  // Draws a seed of two numbers for the noise, and sigma's place in its range.
  int num_draws() const override { return 3; }
  Movement movement() const override { return Movement::kNone; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    canvas->AddNoise(
        {mean_, Between(sigma_, draws[2]), clip_, {draws[0], draws[1]}});
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ValueType type = image.pixel.type;
    if (type != ValueType::kUnknown && type != ValueType::kUint8 &&
        type != ValueType::kFloat32) {
      return InvalidArgument("be uint8 or float32, got dtype ", NameOf(type));
    }
    if (type == ValueType::kUint8 && !clip_) {
      return InvalidArgument(
          "have a dtype with values beyond 0 to 255 for clip=False, got dtype "
          "uint8. Leave out clip=False, or convert it to float32 with "
          "tf.image.convert_image_dtype(image, tf.float32)");
    }
    if (image.is_normalized && clip_) {
      return InvalidArgument(
          "have values from 0 to 1, to which it is clipped, got the result of "
          "normalize. Put the layer before normalize, or pass clip=False");
    }
    return image;
  }

 private:
  const double mean_;
  const std::array<double, 2> sigma_;
  const bool clip_;
};

const LayerType<GaussianNoise> kGaussianNoise("gaussian_noise");

}  // namespace
}  // namespace refurbish_tf
