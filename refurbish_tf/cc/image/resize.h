// Bilinear resizing of a part of an image, as in `tf.image.resize`, and blur,
// which is a resize to the same size with other weights.
#pragma once

#include <cstdint>
#include <memory>

#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// A part of an image, with fractional edges. Pixel i covers i to i + 1.
struct ResizeWindow {
  double y, x, height, width;
};
inline ResizeWindow WholeOf(const Box& box) {
  return {0, 0, static_cast<double>(box.height),
          static_cast<double>(box.width)};
}

// Makes rows of a resized or blurred part of an image.
class Resizer {
 public:
  virtual ~Resizer() = default;

  // Reverses the columns of the result.
  virtual void Mirror() = 0;
  virtual void Rows(int64_t begin, int64_t count, uint8_t* to) = 0;
};

// Pixels in memory, which must outlive the resizer.
struct PixelRows {
  const uint8_t* memory;
  int64_t width;
  Pixel pixel;
};

// Resizes a window of a box of the image, and reads nothing outside the box.
// Bytes are resized in fixed point. Other types are resized as floats; then
// `window` must be the whole box.
std::unique_ptr<Resizer> MakeResizer(const PixelRows& image, const Box& box,
                                     const ResizeWindow& window, ImageSize size,
                                     bool antialias,
                                     const PixelKernels& kernels);

std::unique_ptr<Resizer> MakeBlur(const PixelRows& image, ImageSize size,
                                  const Gaussian& gaussian,
                                  const PixelKernels& kernels);

}  // namespace refurbish_tf
