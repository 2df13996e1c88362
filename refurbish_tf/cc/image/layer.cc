#include "refurbish_tf/cc/image/layer.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace refurbish_tf {
namespace {

struct KnownLayers {
  std::map<absl::string_view, LayerType::Make> makes;
  int raises = 0;
};

// Made by the first layer that registers, in whatever order files are linked.
KnownLayers& Known() {
  static KnownLayers* const known = new KnownLayers;
  return *known;
}

}  // namespace

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
      /*reflects=*/false, resizing.color);
}

absl::StatusOr<ImageSpec> ResizingLayer::Behind(ImageSpec image) const {
  RTF_RETURN_IF_ERROR(CheckType(image));
  image.size = size_;
  return image;
}

Refusal Refusal::Of(const absl::Status& status) {
  const std::string text(status.message());
  const size_t end = text.find('\n');
  if (end == std::string::npos) return {"", text};
  return {text.substr(0, end), text.substr(end + 1)};
}

absl::Status Refusal::Within(absl::string_view name) const {
  return absl::InvalidArgumentError(absl::StrCat(inner, name, " in \n", why));
}

absl::Status CheckType(const ImageSpec& image) {
  const ValueType type = image.pixel.type;
  if (type != ValueType::kBfloat16 && type != ValueType::kFloat16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("be ", kImageTypes, ", got dtype ", NameOf(type)));
}

absl::Status CheckColors(const ImageSpec& image,
                         std::initializer_list<int64_t> channels) {
  const ValueType type = image.pixel.type;
  if (type != ValueType::kUnknown && type != ValueType::kUint8) {
    return absl::InvalidArgumentError(
        absl::StrCat("be uint8, got dtype ", NameOf(type)));
  }
  if (image.pixel.channels != kUnknown &&
      std::find(channels.begin(), channels.end(), image.pixel.channels) ==
          channels.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("have ", absl::StrJoin(channels, " or "),
                     " channels, got ", image.pixel.channels));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImageSpec> OfThreeColors(ImageSpec image) {
  RTF_RETURN_IF_ERROR(CheckColors(image, {3}));
  image.pixel.channels = 3;
  return image;
}

absl::Status CheckSides(const ImageSpec& image) {
  if (std::max(image.size.height, image.size.width) <= kMaxFixedSide) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("have sides of at most ", kMaxFixedSide, " pixels, got ",
                   image.size.height, " x ", image.size.width,
                   ". Crop or resize it before"));
}

LayerType::LayerType(absl::string_view name, int version, Make make) {
  Known().makes[name] = make;
  Known().raises += version - 1;
}

LayerType::Make LayerType::Find(absl::string_view name) {
  const auto found = Known().makes.find(name);
  return found == Known().makes.end() ? nullptr : found->second;
}

int LayerType::SumOfRaises() { return Known().raises; }

}  // namespace refurbish_tf
