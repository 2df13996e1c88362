// Scales and shifts all values by random amounts.
#include <array>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomIntensity : public Layer {
 public:
  explicit RandomIntensity(Arguments& arguments)
      : scale_(arguments.Range("scale", 0, 1e6)),
        shift_(arguments.Range("shift", -1e6, 1e6)) {}

  int num_draws() const override { return 2; }
  Movement movement() const override { return Movement::kNone; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    canvas->Rescale(static_cast<float>(Between(scale_, draws[0])),
                    static_cast<float>(Between(shift_, draws[1])));
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ValueType type = image.pixel.type;
    if (type == ValueType::kUnknown || type == ValueType::kFloat32) {
      return image;
    }
    return InvalidArgument("be float32, got dtype ", NameOf(type),
                           ". Put normalize before it, which returns float32");
  }

 private:
  const std::array<double, 2> scale_, shift_;
};

const LayerType<RandomIntensity> kRandomIntensity("random_intensity");

}  // namespace
}  // namespace refurbish_tf
