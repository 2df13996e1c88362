// Which part of a JPEG file is decoded, and at which of libjpeg's scales.
#pragma once

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// The part of an image, scaled by 1 / ratio, that contains a box of the image.
struct ScaledPart {
  int ratio;  // 1, 2, 4 or 8
  Box box;    // In scaled pixels.
  // The box of the image, relative to the scaled box.
  ResizeWindow window;
};

// For a box that is resized to `size`: the smallest scale at which it still has
// as many pixels per side (at 1/8: 1.5 times as many).
ScaledPart ScaledPartOf(const Box& box, ImageSize size);

}  // namespace refurbish_tf
