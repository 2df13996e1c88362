// Mirrors the image, left to right, or not.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomFlip : public Layer {
 public:
  explicit RandomFlip(Arguments& /*arguments*/) {}

  int num_draws() const override { return 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Below(0, 2);
  }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return 2;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] == 0;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    if (draws[0] != 0) canvas->Flip();
  }
};

const LayerType kRandomFlip("random_flip", 1, LayerType::MakeAs<RandomFlip>);

}  // namespace
}  // namespace refurbish_tf
