// Displaces each pixel by a smooth random field.
#include <array>

#include "refurbish_tf/cc/image/displacement.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomElastic : public Layer {
 public:
  explicit RandomElastic(Arguments& arguments)
      : alpha_{arguments.Range("alpha_x", 0, 100000)[1],
               arguments.Range("alpha_y", 0, 100000)[1]},
        sigma_{arguments.Range("sigma_x", 0, 100)[1],
               arguments.Range("sigma_y", 0, 100)[1]},
        is_nearest_(arguments.Boolean("nearest")),
        fill_("fill", arguments) {
    if ((sigma_[0] > 0) != (sigma_[1] > 0)) arguments.Fail("one sigma is 0");
  }

  // Draws a seed of two numbers for the field.
  int num_draws() const override { return 2; }
  Movement movement() const override {
    return ChangesNothing(nullptr) ? Movement::kNone : Movement::kTurns;
  }
  bool ChangesNothing(const int32_t* /*draws*/) const override {
    return alpha_[0] == 0 && alpha_[1] == 0;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    if (ChangesNothing(draws)) return;
    canvas->Displace(
        {alpha_, sigma_, is_nearest_, fill_.color(), {draws[0], draws[1]}});
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckType(image));
    RTF_RETURN_IF_ERROR(CheckSides(image));
    RTF_RETURN_IF_ERROR(fill_.Check(image));
    return image;
  }

 private:
  const std::array<double, 2> alpha_, sigma_;
  const bool is_nearest_;
  const FillValue fill_;
};

const LayerType<RandomElastic> kRandomElastic("random_elastic");

}  // namespace
}  // namespace refurbish_tf
