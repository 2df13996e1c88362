// Rotates the image by a random number of quarter turns, counterclockwise.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomRotate90 : public Layer {
 public:
  explicit RandomRotate90(Arguments& /*arguments*/) {}

  int num_draws() const override { return 1; }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return kTurns;
  }
  Movement movement() const override { return Movement::kTurns; }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] == 0;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const int32_t turns = draws[0];
    if (turns % 2 == 1) canvas->Transpose();
    if (turns == 1 || turns == 2) canvas->Flip(/*vertically=*/true);
    if (turns >= 2) canvas->Flip(/*vertically=*/false);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckIsSquare(image));
    return image;
  }

 private:
  static constexpr int32_t kTurns = 4;
};

const LayerType<RandomRotate90> kRandomRotate90("random_rotate90");

}  // namespace
}  // namespace refurbish_tf
