#include "refurbish_tf/cc/image/jpeg.h"

namespace refurbish_tf {
namespace {

// From how many times the size on a scale is taken.
struct Scale {
  int ratio;
  int64_t least;
};

// A pixel of 8 x 8 is their mean and no more, and needs some others beside it
// to be as smooth as a resize of them all: with just as many as the result has,
// photographs differed by 2.9 levels, with half as many again by 1.5.
constexpr Scale kScales[] = {{8, 12}, {4, 4}, {2, 2}};

// Sets begin and length to those of the scaled pixels that a stretch touches.
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
