// Converts the image's values to floating-point numbers:
// (value / max_pixel_value - mean) / std.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

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
      arguments.Fail("mean and std must be of equal numbers, 1 to ",
                     kMaxChannels);
      return;
    }
    // The value that becomes 1, by type. It cannot be inferred for 16 bits.
    std::map<ValueType, double> units = {{ValueType::kUint8, 255},
                                         {ValueType::kFloat32, 1}};
    const bool told = arguments.Has("max_pixel_value");
    if (told) {
      const double unit = arguments.Numbers("max_pixel_value")[0];
      units = {{ValueType::kUint8, unit},
               {ValueType::kUint16, unit},
               {ValueType::kInt16, unit},
               {ValueType::kFloat32, unit}};
    }
    for (const auto& [type, unit] : units) {
      std::vector<float> scale, offset;
      for (size_t i = 0; i < mean.size(); ++i) {
        scale.push_back(static_cast<float>(1 / (unit * std[i])));
        offset.push_back(static_cast<float>(-mean[i] / std[i]));
        if (!(unit * std[i] > 0) || !std::isfinite(scale.back()) ||
            !std::isfinite(offset.back())) {
          arguments.Fail(
              "std must be above 0, and 1 / std must fit into a float32");
        }
      }
      normalization_.patterns.emplace(type, Pattern(scale, offset));
    }
    if (told) return;
    for (const std::vector<double>& numbers : {mean, std}) {
      if (std::any_of(numbers.begin(), numbers.end(),
                      [](double each) { return each < 0 || each > 1; })) {
        return;
      }
    }
    normalization_.patterns.at(ValueType::kFloat32).limit = kLargest;
  }

  Movement movement() const override { return Movement::kNone; }
  void Apply(const int32_t* /*draws*/, Canvas* canvas) const override {
    canvas->Normalize(normalization_);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckType(image));
    if (num_channels_ != 1 && image.pixel.channels != kUnknown &&
        image.pixel.channels != num_channels_) {
      return InvalidArgument(
          "have the channels of mean and std, ", num_channels_, ", got ",
          image.pixel.channels,
          ". Pass one number for all channels, or one for each");
    }
    if (image.is_normalized) {
      return InvalidArgument(
          "not be normalized already, got the result of another normalize. "
          "Leave one out");
    }
    if (image.pixel.type != ValueType::kUnknown &&
        normalization_.patterns.count(image.pixel.type) == 0) {
      return InvalidArgument(
          "have a known range for mean and std within 0 to 1, got dtype ",
          NameOf(image.pixel.type),
          ". Pass max_pixel_value, the value that becomes 1, such as 65535 for "
          "all 16 bits or 10000 for reflectance; or mean and std in the units "
          "of the image");
    }
    image.pixel.type = normalization_.type;
    image.is_normalized = true;
    return image;
  }

 private:
  // The limit of floats if mean and std are within 0 to 1. Images from 0 to 255
  // almost always have values above it, and images from 0 to 1 almost never.
  static constexpr float kLargest = 16;

  Normalization normalization_;
  // The length of mean and std. A length of 1 suits any number of channels.
  int64_t num_channels_;
};

const LayerType<NormalizeLayer> kNormalize("normalize");

}  // namespace
}  // namespace refurbish_tf
