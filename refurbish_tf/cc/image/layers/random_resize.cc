// Resizes the image so that its shortest side has a random length.
#include <array>
#include <optional>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomResize : public ResizingLayer {
 public:
  explicit RandomResize(Arguments& arguments)
      : ResizingLayer(arguments),
        shortest_(arguments.Integer("short", 1, kMaxSide)),
        number_(arguments.Integer("number", 1, kMaxSide + 1 - shortest_)) {}

  int num_draws() const override { return 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Below(0, number_);
  }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return number_;
  }
  std::optional<Resizing> ResizingOf(const int32_t* draws,
                                     ImageSize image) const override {
    Resizing resizing = *ResizingLayer::ResizingOf(draws, image);
    resizing.size = resizing.padded = ByShortest(shortest_ + draws[0], image);
    return resizing;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckShortest(shortest_ + number_ - 1, image.size));
    RTF_RETURN_IF_ERROR(CheckType(image));
    return image.OfDrawnSize();
  }

 private:
  Box PartOf(const int32_t* /*draws*/, ImageSize image) const override {
    return CentredIn(image, image);
  }

  // The smallest length, and the number of lengths.
  const int64_t shortest_, number_;
};

const LayerType kRandomResize("random_resize", 1,
                              LayerType::MakeAs<RandomResize>);

}  // namespace
}  // namespace refurbish_tf
