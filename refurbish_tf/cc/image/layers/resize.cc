// Resizes the image to a size, optionally with a crop or borders that keep its
// aspect ratio, or so that its shortest side has a given length.
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
    } else if (arguments.Has("crop")) {
      crops_ = arguments.Boolean("crop");
    } else if (arguments.Has("fill")) {
      pads_ = true;
      color_.fill(static_cast<uint8_t>(arguments.Integer("fill", 0, 255)));
    }
  }

  std::optional<Resizing> ResizingOf(const int32_t* draws,
                                     ImageSize image) const override {
    Resizing resizing = *ResizingLayer::ResizingOf(draws, image);
    if (shortest_.has_value()) {
      resizing.size = resizing.padded = ByShortest(*shortest_, image);
    }
    if (pads_) {
      resizing.size = Within(size(), image);
      resizing.color = color_;
    }
    return resizing;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ImageSize before = image.size;
    RTF_ASSIGN_OR_RETURN(ImageSpec made, ResizingLayer::Behind(image));
    if (shortest_.has_value()) {
      RTF_RETURN_IF_ERROR(CheckShortest(*shortest_, before));
      if (before.height == kUnknown || before.width == kUnknown) {
        made.size_is_new = true;
        return made;
      }
      made.size = ByShortest(*shortest_, before);
    } else if (pads_ && color_ != kBlack) {
      RTF_RETURN_IF_ERROR(CheckColors(image, {1, 2, 3, 4}));
    }
    return made;
  }

 private:
  Box PartOf(const int32_t* /*draws*/, ImageSize image) const override {
    return CentredIn(image, crops_ ? Within(image, size()) : image);
  }
  // The largest size within `size` that has the aspect ratio of `shape`,
  // rounded down as in Keras.
  static ImageSize Within(ImageSize size, ImageSize shape) {
    const auto side = [](int64_t most, int64_t other, int64_t part,
                         int64_t whole) {
      return std::max<int64_t>(1, std::min(most, other * part / whole));
    };
    return {side(size.height, size.width, shape.height, shape.width),
            side(size.width, size.height, shape.width, shape.height)};
  }

  std::optional<int64_t> shortest_;
  bool crops_ = false, pads_ = false;
  FillColor color_ = kBlack;
};

const LayerType kResize("resize", 1, LayerType::MakeAs<WholeResize>);

}  // namespace
}  // namespace refurbish_tf
