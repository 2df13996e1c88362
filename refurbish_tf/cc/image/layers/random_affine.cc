// Rotates, moves, scales and shears the image by random amounts.
#include <array>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

constexpr int kAmounts = 6;

struct AffineAmount {
  absl::string_view name;
  double lowest, highest;
  double AffineChange::* of;
};
constexpr AffineAmount kAffineAmounts[kAmounts] = {
    {"degrees", -360, 360, &AffineChange::degrees},
    {"translate_x", -1, 1, &AffineChange::translate_x},
    {"translate_y", -1, 1, &AffineChange::translate_y},
    {"scale", 0.01, 100, &AffineChange::scale},
    {"shear_x", -80, 80, &AffineChange::shear_x},
    {"shear_y", -80, 80, &AffineChange::shear_y},
};

class RandomAffine : public Layer {
 public:
  explicit RandomAffine(Arguments& arguments) {
    for (int i = 0; i < kAmounts; ++i) {
      const AffineAmount& amount = kAffineAmounts[i];
      ranges_[i] = arguments.Range(amount.name, amount.lowest, amount.highest);
    }
  }

  int num_draws() const override { return kAmounts; }
  Movement movement() const override {
    for (int i = 0; i < kAmounts; ++i) {
      const absl::string_view name = kAffineAmounts[i].name;
      if ((name == "degrees" || name == "shear_y") &&
          (ranges_[i][0] != 0 || ranges_[i][1] != 0)) {
        return Movement::kTurns;
      }
    }
    return Movement::kKeepsRows;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    AffineChange change;
    for (int i = 0; i < kAmounts; ++i) {
      change.*kAffineAmounts[i].of = Between(ranges_[i], draws[i]);
    }
    canvas->Distort(PreparedDistortion(change), /*fill=*/0);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckColors(image, {1, 3}));
    RTF_RETURN_IF_ERROR(CheckSides(image));
    return image;
  }

 private:
  std::array<std::array<double, 2>, kAmounts> ranges_ = {};
};

const LayerType<RandomAffine> kRandomAffine("random_affine");

}  // namespace
}  // namespace refurbish_tf
