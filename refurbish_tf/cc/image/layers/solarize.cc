// Inverts values from a threshold on, or none.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class Solarize : public ChanceLayer {
 public:
  explicit Solarize(Arguments& arguments)
      : ChanceLayer(arguments),
        solarization_(
            Distortion::kSolarize,
            static_cast<double>(arguments.Integer("threshold", 0, 256))) {}

  bool moves_pixels() const override { return false; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return OfThreeColors(image);
  }

 private:
  void Change(const int32_t* /*draws*/, Canvas* canvas) const override {
    canvas->Distort(solarization_, /*fill=*/0);
  }

  const PreparedDistortion solarization_;
};

const LayerType kSolarize("random_solarize", 1, LayerType::MakeAs<Solarize>);

}  // namespace
}  // namespace refurbish_tf
