#include "refurbish_tf/cc/image/jpeg.h"

namespace refurbish_tf {
namespace {

// Scale 1 / ratio is used if each side of the box is at least `least` times as
// long as the result's.
struct Scale {
  int ratio;
  int64_t least;
};

// At 1/8, a decoded pixel is only the mean of 8 x 8 pixels. If there is one for
// each pixel of the result, photographs differ by 2.9 levels from a resize of
// all pixels; if there are 1.5 along each side, by 1.5 levels.
constexpr Scale kScales[] = {{8, 12}, {4, 4}, {2, 2}};

// Converts a range of pixels to the range of scaled pixels that it touches, and
// says where in this range the exact one is.
void ScaleStretch(int ratio, int64_t* begin, int64_t* length,
                  double* exact_begin, double* exact_length) {
  const int64_t end = *begin + *length;
  *exact_begin = static_cast<double>(*begin % ratio) / ratio;
  *exact_length = static_cast<double>(*length) / ratio;
  *begin /= ratio;
  *length = (end + ratio - 1) / ratio - *begin;
}

}  // namespace

ScaledPart ScaledPartOf(const Box& box, ImageSize size) {
  ScaledPart part = {1, box, {}};
  for (const Scale& scale : kScales) {
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
