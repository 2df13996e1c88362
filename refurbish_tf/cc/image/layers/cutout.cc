// Blackens a square around a random pixel, as far as it is in the image.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class Cutout : public Layer {
 public:
  explicit Cutout(Arguments& arguments)
      : side_(arguments.Integer("side", 1, (int64_t{1} << 31) - 1)) {}

  int num_draws() const override { return 2; }
  Movement movement() const override { return Movement::kNone; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize size = canvas->size();
    const int64_t top = ((draws[0] * size.height) >> 31) - side_ / 2;
    const int64_t left = ((draws[1] * size.width) >> 31) - side_ / 2;
    canvas->CutOut({top, left, side_, side_}, kBlack);
  }

 private:
  const int64_t side_;
};

const LayerType<Cutout> kCutout("cutout");

}  // namespace
}  // namespace refurbish_tf
