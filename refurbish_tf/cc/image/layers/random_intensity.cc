// Scales and shifts all values by random amounts.
#include <array>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomIntensity : public Layer {
 public:
  explicit RandomIntensity(Arguments& arguments)
      : scale_(arguments.Range("scale", 0, 1e6)),
        shift_(arguments.Range("shift", -1e6, 1e6)) {}

  int num_draws() const override { return 2; }
  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    canvas->Rescale(static_cast<float>(Between(scale_, draws[0])),
                    static_cast<float>(Between(shift_, draws[1])));
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ValueType type = image.pixel.type;
    if (type == ValueType::kUnknown || type == ValueType::kFloat32) {
      return image;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("be float32, got dtype ", NameOf(type),
                     ". Put normalize before it, which makes float32"));
  }

 private:
  const std::array<double, 2> scale_, shift_;
};

const LayerType kRandomIntensity("random_intensity", 1,
                                 LayerType::MakeAs<RandomIntensity>);

}  // namespace
}  // namespace refurbish_tf
