// Layers that apply one distortion with some probability: `random_invert`, ...
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

struct DistortKind {
  NamedDistortion known;
  absl::string_view parameter;  // Empty if it has no parameter.
};

constexpr DistortKind kDistortKinds[] = {
    {{"random_solarize", Distortion::kSolarize, 0, 256}, "threshold"},
    {{"random_posterize", Distortion::kPosterize, 1, 8}, "bits"},
    {{"random_adjust_sharpness", Distortion::kSharpness, 0, 100},
     "sharpness_factor"},
    {{"random_grayscale", Distortion::kColor, 0, 0}, ""},
    {{"random_autocontrast", Distortion::kAutoContrast, 0, 0}, ""},
    {{"random_equalize", Distortion::kEqualize, 0, 0}, ""},
    {{"random_invert", Distortion::kInvert, 0, 0}, ""},
    {{"random_channel_permutation", Distortion::kPermuteChannels, 0, 5},
     "order"},
};

class DistortLayer : public ChanceLayer {
 public:
  explicit DistortLayer(Arguments& arguments)
      : ChanceLayer(arguments),
        kind_(*std::find_if(std::begin(kDistortKinds), std::end(kDistortKinds),
                            [&arguments](const DistortKind& kind) {
                              return kind.known.name == arguments.name();
                            })) {
    const auto& [name, distortion, lowest, highest] = kind_.known;
    if (const auto parameter = kind_.parameter; !parameter.empty()) {
      const std::vector<double> values = arguments.Numbers(parameter);
      if (values.size() > 2 || !(values.front() >= lowest) ||
          !(values.front() <= values.back() && values.back() <= highest)) {
        arguments.Fail(parameter, " must be from ", lowest, " to ", highest,
                       ", or a range");
        return;
      }
      range_ = {values.front(), values.back()};
    }
    if (range_[0] == range_[1]) only_.emplace(distortion, range_[0]);
  }

  // Draws whether to distort and, if there is a range, the place in the range.
  int num_draws() const override { return only_ ? 1 : 2; }
  Movement movement() const override { return Movement::kNone; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckColors(image, {1, 3}));
    return image;
  }

 private:
  void Change(const int32_t* draws, Canvas* canvas) const override {
    const PreparedDistortion made = only_ ? *only_ : At(draws[1]);
    if (!made.changes_nothing) canvas->Distort(made, /*fill=*/0);
  }

  PreparedDistortion At(int32_t draw) const {
    const Distortion distortion = kind_.known.distortion;
    if (distortion == Distortion::kSharpness) {
      return PreparedDistortion::InSteps(distortion, Between(range_, draw));
    }
    // Other parameters are whole numbers; both ends of the range are possible.
    const double value = Between({range_[0], range_[1] + 1}, draw);
    return PreparedDistortion(distortion, std::floor(value));
  }

  const DistortKind& kind_;
  std::array<double, 2> range_ = {0, 0};
  std::optional<const PreparedDistortion> only_;
};

[[maybe_unused]] const bool kKnowsDistortLayers = [] {
  for (const DistortKind& kind : kDistortKinds) {
    LayerType<DistortLayer>(kind.known.name);
  }
  return true;
}();

}  // namespace
}  // namespace refurbish_tf
