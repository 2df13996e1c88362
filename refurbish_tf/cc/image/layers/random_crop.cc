// Pads the image, then crops it at a random place to its own or a given size.
#include <algorithm>
#include <optional>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomCrop : public Layer {
 public:
  explicit RandomCrop(Arguments& arguments)
      : padding_(arguments.Integer("padding", 0, 16383)),
        border_(arguments.Boolean("reflect") ? Border::kReflect
                                             : Border::kEmpty) {
    if (!arguments.Has("height")) return;
    size_ = {arguments.Integer("height", 1, ResizingLayer::kMaxSide),
             arguments.Integer("width", 1, ResizingLayer::kMaxSide)};
    pads_if_needed_ = arguments.Boolean("pad_if_needed");
  }

  int num_draws() const override { return 2; }
  // Without a given size, draws are offsets of the crop. Otherwise the number
  // of possible offsets depends on the image, so draws are fractions.
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return size_ ? Layer::EndOfDraw(i, draws) : 2 * padding_ + 1;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return !size_ && draws[0] == padding_ && draws[1] == padding_;
  }
  Movement movement() const override {
    return border_ == Border::kReflect && (padding_ > 0 || pads_if_needed_)
               ? Movement::kMirrors
               : Movement::kKeepsRows;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const ImageSize image = canvas->size();
    if (!size_) {
      canvas->Crop(
          {draws[0] - padding_, draws[1] - padding_, image.height, image.width},
          border_, kBlack);
      return;
    }
    canvas->Crop({BeginOf(draws[0], image.height, size_->height),
                  BeginOf(draws[1], image.width, size_->width), size_->height,
                  size_->width},
                 border_, kBlack);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ImageSize made = size_.value_or(image.size);
    RTF_RETURN_IF_ERROR(
        CheckSide("height", image.size.height, made.height, image.size));
    RTF_RETURN_IF_ERROR(
        CheckSide("width", image.size.width, made.width, image.size));
    image.size = made;
    return image;
  }

 private:
  // The padding at each end of a side that is cropped to `made` pixels. A side
  // that is too short gets the missing pixels at both ends, as in torchvision.
  int64_t PaddingOf(int64_t side, int64_t made) const {
    return padding_ + std::max<int64_t>(0, made - side - 2 * padding_);
  }
  int64_t BeginOf(int32_t draw, int64_t side, int64_t made) const {
    const int64_t padding = PaddingOf(side, made);
    const int64_t places = side + 2 * padding - made + 1;
    return ((draw * places) >> 31) - padding;
  }
  absl::Status CheckSide(absl::string_view name, int64_t side, int64_t made,
                         ImageSize image) const {
    if (side == kUnknown) return absl::OkStatus();
    const int64_t least = made - 2 * padding_;
    if (side < least && !pads_if_needed_) {
      return InvalidArgument(
          "have a ", name, " of at least ", least, " pixels for a crop to ",
          *size_, " with padding=", padding_, ", got ", side,
          ". Pass pad_if_needed=True to pad smaller images, or resize them "
          "first");
    }
    if (const int64_t padding = PaddingOf(side, made);
        border_ == Border::kReflect && padding >= side) {
      return InvalidArgument(
          "have sides above the padding, ", padding,
          ", for padding_mode='reflect', got ", image,
          " pixels. Pass a smaller padding, or padding_mode='constant'");
    }
    return absl::OkStatus();
  }

  const int64_t padding_;
  const Border border_;
  // The size of the crop. If not given, the crop is as large as the image.
  std::optional<ImageSize> size_;
  bool pads_if_needed_ = false;
};

const LayerType<RandomCrop> kRandomCrop("random_crop");

}  // namespace
}  // namespace refurbish_tf
