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

// Scale 1 / ratio is used if each side of the box is at least `least` times as
// long as the result's.
struct JpegScale {
  int ratio;
  int64_t least;
};

// At 1/8, a decoded pixel is only the mean of 8 x 8 pixels. If there is one for
// each pixel of the result, photographs differ by 2.9 levels from a resize of
// all pixels; if there are 1.5 along each side, by 1.5 levels.
inline constexpr JpegScale kJpegScales[] = {{8, 12}, {4, 4}, {2, 2}};

// Converts a range of pixels to the range of scaled pixels that it touches, and
// says where in this range the exact one is.
inline void ScaleStretch(int ratio, int64_t* begin, int64_t* length,
                         double* exact_begin, double* exact_length) {
  const int64_t end = *begin + *length;
  *exact_begin = static_cast<double>(*begin % ratio) / ratio;
  *exact_length = static_cast<double>(*length) / ratio;
  *begin /= ratio;
  *length = (end + ratio - 1) / ratio - *begin;
}

// The part to decode for a box that is resized to `size`. It uses the smallest
// scale that leaves at least as many pixels per side as `size` (at 1/8: 1.5
// times as many).
inline ScaledPart ScaledPartOf(const Box& box, ImageSize size) {
  ScaledPart part = {1, box, {}};
  for (const JpegScale& scale : kJpegScales) {
    if (box.height >= scale.least * size.height &&
        box.width >= scale.least * size.width) {
      part.ratio = scale.ratio;
      break;
    }
  }
  ScaleStretch(part.ratio, &part.box.y, &part.box.height, &part.window.y,
               &part.window.height);
  ScaleStretch(part.ratio, &part.box.x, &part.box.width, &part.window.x,
               &part.window.width);
  return part;
}

}  // namespace refurbish_tf
