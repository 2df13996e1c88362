// Keeps the middle of the image, padded with zeros if the image is smaller.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class CenterCrop : public Layer {
 public:
  explicit CenterCrop(Arguments& arguments)
      : size_{arguments.Integer("height", 1, ResizingLayer::kMaxSide),
              arguments.Integer("width", 1, ResizingLayer::kMaxSide)} {}

  void Apply(const int32_t* /*draws*/, Canvas* canvas) const override {
    const auto [height, width] = canvas->size();
    canvas->Crop({BeginOf(height, size_.height), BeginOf(width, size_.width),
                  size_.height, size_.width},
                 Border::kEmpty, kBlack);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    image.size = size_;
    return image;
  }

 private:
  // Returns the first pixel of the crop. As in torchvision, an odd padding has
  // fewer pixels before the image.
  static int64_t BeginOf(int64_t side, int64_t made) {
    return side < made ? -((made - side) / 2) : BeginOfMiddle(side, made);
  }

  const ImageSize size_;
};

const LayerType<CenterCrop> kCenterCrop("center_crop");

}  // namespace
}  // namespace refurbish_tf
