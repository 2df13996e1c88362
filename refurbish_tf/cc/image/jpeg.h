// Which part of a JPEG file is decoded, and at which of libjpeg's scales.
#pragma once

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// A part of an image, scaled by 1 / ratio, that contains a given box.
struct ScaledPart {
  int ratio;  // 1, 2, 4 or 8
  Box box;    // In scaled pixels.
  // The position of the given box in `box`, in scaled pixels.
  ResizeWindow window;
};

// The part to decode for a box that is resized to `size`. It uses the smallest
// scale that leaves at least as many pixels per side as `size` (at 1/8: 1.5
// times as many).
ScaledPart ScaledPartOf(const Box& box, ImageSize size);

}  // namespace refurbish_tf
