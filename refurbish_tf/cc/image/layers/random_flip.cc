// Mirrors the image along one axis or both, each with some probability.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomFlip : public Layer {
 public:
  // Without arguments, mirrors left to right with probability 1/2.
  explicit RandomFlip(Arguments& arguments) {
    if (arguments.Has("mode")) {
      const absl::string_view mode = arguments.Text("mode");
      if (mode != "horizontal" && mode != "vertical" &&
          mode != "horizontal_and_vertical") {
        arguments.Fail("unknown mode ", mode);
      }
      has_both_ = mode == "horizontal_and_vertical";
      first_is_vertical_ = mode == "vertical";
    }
    if (arguments.Has("below")) {
      below_ = arguments.Integer("below", 0, kEndOfFraction);
    }
  }

  // Draws for each axis whether the image is mirrored along it.
  int num_draws() const override { return has_both_ ? 2 : 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    for (int i = 0; i < num_draws(); ++i) {
      draws[i] = seed.Fraction(i) >= kEndOfFraction - below_ ? 1 : 0;
    }
  }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return 2;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] == 0 && (!has_both_ || draws[1] == 0);
  }
  Movement movement() const override {
    return below_ > 0 && (has_both_ || !first_is_vertical_)
               ? Movement::kMirrors
               : Movement::kKeepsRows;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    if (draws[0] != 0) canvas->Flip(first_is_vertical_);
    if (has_both_ && draws[1] != 0) canvas->Flip(/*vertically=*/true);
  }

 private:
  bool has_both_ = false, first_is_vertical_ = false;
  // The probability, in units of 2^-31.
  int64_t below_ = kEndOfFraction / 2;
};

const LayerType<RandomFlip> kRandomFlip("random_flip");

}  // namespace
}  // namespace refurbish_tf
