// Resizes the image to a size, optionally with a crop or borders that keep its
// aspect ratio, or so that its shortest side has a given or a random length.
#include <algorithm>
#include <optional>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class WholeResize : public ResizingLayer {
 public:
  explicit WholeResize(Arguments& arguments) : ResizingLayer(arguments) {
    if (arguments.Has("short")) {
      shortest_ = arguments.Integer("short", 1, kMaxSide);
      if (!arguments.Has("number")) return;
      number_ = arguments.Integer("number", 1, kMaxSide + 1 - *shortest_);
    } else if (arguments.Has("crop")) {
      crops_ = arguments.Boolean("crop");
    } else if (arguments.Has("fill")) {
      pads_ = true;
      color_.fill(static_cast<uint8_t>(arguments.Integer("fill", 0, 255)));
    }
  }

  int num_draws() const override { return number_ > 0 ? 1 : 0; }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return number_;
  }
  std::optional<Resizing> ResizingOf(const int32_t* draws,
                                     ImageSize image) const override {
    Resizing resizing = *ResizingLayer::ResizingOf(draws, image);
    if (shortest_.has_value()) {
      const int64_t longer = number_ > 0 ? draws[0] : 0;
      resizing.size = resizing.padded = ByShortest(*shortest_ + longer, image);
    }
    if (pads_) {
      resizing.size = Within(size(), image);
      resizing.color = color_;
    }
    return resizing;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_ASSIGN_OR_RETURN(ImageSpec made, ResizingLayer::Behind(image));
    if (pads_ && color_ != kBlack) {
      RTF_RETURN_IF_ERROR(CheckColors(image, {1, 2, 3, 4}));
    }
    if (!shortest_.has_value()) return made;
    const auto [height, width] = image.size;
    if (height == kUnknown || width == kUnknown) {
      if (number_ > 0) return image.OfDrawnSize();
      made.size_is_new = true;
      return made;
    }
    const int64_t most = *shortest_ + std::max<int64_t>(number_ - 1, 0);
    made.size = ByShortest(most, image.size);
    if (std::max(made.size.height, made.size.width) > kMaxSide) {
      return InvalidArgument(
          "have sides of at most ", kMaxSide, " pixels when its shortest has ",
          most, ", got ", image.size,
          " pixels. Pass a smaller size, or (height, width)");
    }
    return number_ > 0 ? image.OfDrawnSize() : made;
  }

 private:
  Box PartOf(const int32_t* /*draws*/, ImageSize image) const override {
    return CentredIn(image, crops_ ? Within(image, size()) : image);
  }
  // The size of `image` after a resize that makes its shortest side `shortest`.
  // The other side is rounded down, as in torchvision.
  static ImageSize ByShortest(int64_t shortest, ImageSize image) {
    const auto [height, width] = image;
    return height <= width ? ImageSize{shortest, shortest * width / height}
                           : ImageSize{shortest * height / width, shortest};
  }
  // The largest size within `size` that has the aspect ratio of `shape`. Sides
  // are rounded down, as in Keras.
  static ImageSize Within(ImageSize size, ImageSize shape) {
    const auto side = [](int64_t most, int64_t other, int64_t part,
                         int64_t whole) {
      return std::max<int64_t>(1, std::min(most, other * part / whole));
    };
    return {side(size.height, size.width, shape.height, shape.width),
            side(size.width, size.height, shape.width, shape.height)};
  }

  // The length of the shortest side, if given. If `number_` is not 0, one of
  // `number_` lengths is drawn, and this is the smallest.
  std::optional<int64_t> shortest_;
  int64_t number_ = 0;
  bool crops_ = false, pads_ = false;
  FillColor color_ = kBlack;
};

const LayerType<WholeResize> kResize("resize"), kRandomResize("random_resize");

}  // namespace
}  // namespace refurbish_tf
