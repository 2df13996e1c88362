// Makes floating numbers of the image's values: (value - mean) / std, of values
// from 0 to 1.
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

ValueType TypeNamed(absl::string_view name) {
  for (const ValueType type :
       {ValueType::kFloat32, ValueType::kBfloat16, ValueType::kFloat16}) {
    if (name == NameOf(type)) return type;
  }
  return ValueType::kUnknown;
}

class NormalizeLayer : public Layer {
 public:
  explicit NormalizeLayer(Arguments& arguments) {
    normalization_.type = TypeNamed(arguments.Text("dtype"));
    if (normalization_.type == ValueType::kUnknown) {
      arguments.Fail("dtype must be float32, bfloat16 or float16");
    }
    const std::vector<double> mean = arguments.Numbers("mean");
    const std::vector<double> std = arguments.Numbers("std");
    num_channels_ = static_cast<int64_t>(mean.size());
    if (mean.size() != std.size() || num_channels_ > kMaxChannels) {
      arguments.Fail(absl::StrCat(
          "mean and std must be of equal numbers, 1 to ", kMaxChannels));
      return;
    }
    for (const auto& [type, unit] : kUnits) {
      std::vector<float> scale, offset;
      for (size_t i = 0; i < mean.size(); ++i) {
        scale.push_back(static_cast<float>(1 / (unit * std[i])));
        offset.push_back(static_cast<float>(-mean[i] / std[i]));
        if (!(std[i] > 0) || !std::isfinite(scale.back()) ||
            !std::isfinite(offset.back())) {
          arguments.Fail(
              "std must be above 0, and 1 / std must fit into a float32");
        }
      }
      normalization_.patterns.emplace(type, Pattern(scale, offset));
    }
  }

  bool moves_pixels() const override { return false; }
  void Apply(const int32_t* /*draws*/, Canvas* canvas) const override {
    canvas->Normalize(normalization_);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const absl::Status status = CheckType(image);
    if (!status.ok()) return status;
    if (num_channels_ != 1 && image.pixel.channels != kUnknown &&
        image.pixel.channels != num_channels_) {
      return absl::InvalidArgumentError(
          absl::StrCat("have the channels of mean and std, ", num_channels_,
                       ", got ", image.pixel.channels,
                       ". Pass one number for all channels, or one for each"));
    }
    if (image.is_normalized) {
      return absl::InvalidArgumentError(
          "not be normalized already, got what another normalize made. Leave one "
          "out");
    }
    image.pixel.type = normalization_.type;
    image.is_normalized = true;
    return image;
  }

 private:
  // The value that stands for 1, as `tf.image.convert_image_dtype` has it.
  static constexpr std::pair<ValueType, double> kUnits[] = {
      {ValueType::kUint8, 255},
      {ValueType::kUint16, 65535},
      {ValueType::kInt16, 32767},
      {ValueType::kFloat32, 1}};

  Normalization normalization_;
  // 1: for any number.
  int64_t num_channels_;
};

const LayerType kNormalize("normalize", 1, LayerType::MakeAs<NormalizeLayer>);

}  // namespace
}  // namespace refurbish_tf
