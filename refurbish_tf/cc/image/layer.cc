#include "refurbish_tf/cc/image/layer.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_join.h"
#include "refurbish_tf/cc/image/targets/key_points.h"

namespace refurbish_tf {

absl::StatusOr<ImageSpec> Layer::Made(ImageSpec image,
                                      const int32_t* draws) const {
  RTF_ASSIGN_OR_RETURN(ImageSpec made, Behind(image));
  if (made.size.height != kUnknown) return made;
  // A canvas without points only tracks the size.
  KeyPoints none(/*is_relative=*/false, {}, image.size, 0, 2, nullptr);
  Apply(draws, &none);
  made.size = none.size();
  return made;
}

ResizingLayer::ResizingLayer(Arguments& arguments) {
  if (!arguments.Has("short")) {
    size_.height = arguments.Integer("height", 1, kMaxSide);
    size_.width = arguments.Integer("width", 1, kMaxSide);
  }
  antialias_ = arguments.Boolean("antialias");
}

void ResizingLayer::Apply(const int32_t* draws, Canvas* canvas) const {
  const Resizing resizing = *ResizingOf(draws, canvas->size());
  canvas->Resize(resizing.part, resizing.size, resizing.antialias);
  if (!resizing.pads()) return;
  const Box place = resizing.place();
  canvas->Crop(
      {-place.y, -place.x, resizing.padded.height, resizing.padded.width},
      Border::kEmpty, resizing.color);
}

FillValue::FillValue(absl::string_view key, Arguments& arguments) {
  const std::vector<double> values = arguments.Numbers(key);
  is_single_ = values.size() == 1;
  if (!is_single_ && values.size() != 3) {
    arguments.Fail(key, " must be one number or three");
    return;
  }
  for (size_t c = 0; c < color_.size(); ++c) {
    const double value = values[is_single_ ? 0 : c % 3];
    if (!(value >= 0 && value <= 255)) {
      arguments.Fail(key, " must be from 0 to 255");
      return;
    }
    color_[c] = static_cast<uint8_t>(value);
  }
}

absl::Status CheckType(const ImageSpec& image) {
  const ValueType type = image.pixel.type;
  if (type != ValueType::kBfloat16 && type != ValueType::kFloat16) {
    return absl::OkStatus();
  }
  return InvalidArgument("be ", kImageTypes, ", got dtype ", NameOf(type));
}

absl::Status CheckColors(const ImageSpec& image,
                         std::initializer_list<int64_t> channels) {
  const ValueType type = image.pixel.type;
  if (type != ValueType::kUnknown && type != ValueType::kUint8) {
    return InvalidArgument("be uint8, got dtype ", NameOf(type));
  }
  if (image.pixel.channels != kUnknown &&
      std::find(channels.begin(), channels.end(), image.pixel.channels) ==
          channels.end()) {
    return InvalidArgument("have ", absl::StrJoin(channels, " or "),
                           " channels, got ", image.pixel.channels);
  }
  return absl::OkStatus();
}

absl::Status CheckSides(const ImageSpec& image) {
  if (std::max(image.size.height, image.size.width) <= kMaxFixedSide) {
    return absl::OkStatus();
  }
  return InvalidArgument("have sides of at most ", kMaxFixedSide,
                         " pixels, got ", image.size,
                         ". Crop or resize it first");
}

absl::Status CheckIsSquare(const ImageSpec& image) {
  const auto [height, width] = image.size;
  if (height == kUnknown || width == kUnknown || height == width) {
    return absl::OkStatus();
  }
  return InvalidArgument("have equal sides, which this layer may swap, got ",
                         image.size,
                         " pixels. Crop or resize it to a square first");
}

// Created on first use, because the order in which globals of different files
// are initialized, and thus layers registered, is undefined.
std::map<absl::string_view, MakeLayer>& KnownLayers() {
  static auto* const known = new std::map<absl::string_view, MakeLayer>;
  return *known;
}

}  // namespace refurbish_tf
