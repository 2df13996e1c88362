// Rotates the image by a random angle, counterclockwise.
#include <array>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomRotation : public Layer {
 public:
  explicit RandomRotation(Arguments& arguments)
      : degrees_(arguments.Range("degrees", -360, 360)) {}

  int num_draws() const override { return 1; }
  Movement movement() const override {
    return degrees_[0] == 0 && degrees_[1] == 0 ? Movement::kKeepsRows
                                                : Movement::kTurns;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const PreparedDistortion turn(Distortion::kRotate,
                                  Between(degrees_, draws[0]));
    if (!turn.changes_nothing) canvas->Distort(turn, /*fill=*/0);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckColors(image, {1, 3}));
    RTF_RETURN_IF_ERROR(CheckSides(image));
    return image;
  }

 private:
  const std::array<double, 2> degrees_;
};

const LayerType<RandomRotation> kRandomRotation("random_rotation");

}  // namespace
}  // namespace refurbish_tf
