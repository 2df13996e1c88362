// What of a JPEG file is decoded, and at which of libjpeg's scales.
#pragma once

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// The part of an image at a scale of 1 / ratio that a box of the image lies in.
struct ScaledPart {
  int ratio;  // 1, 2, 4 or 8
  Box box;    // In scaled pixels.
  // The box of the image, in the scaled one.
  ResizeWindow window;
};

// For a box that is resized to `size`: the smallest scale at which it still has
// as many pixels (at 1/8: half as many again).
ScaledPart ScaledPartOf(const Box& box, ImageSize size);

}  // namespace refurbish_tf
