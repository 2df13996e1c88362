#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/distortion_kernels.h"
#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

enum class Distortion {
  kIdentity,
  kAutoContrast,
  kEqualize,
  kInvert,
  kColor,       // A factor, rounded to float32.
  kContrast,    // The same.
  kBrightness,  // The same.
  kSharpness,   // The same.
  kSolarize,    // The threshold, from 0 to 256.
  kPosterize,   // How many bits are kept, from 0 to 8.
  kHue,         // A fraction of the circle, from -1/2 to 1/2.
  // The index of an order of the channels; 0 keeps the order.
  kPermuteChannels,
  // All distortions from here on move pixels.
  kRotate,      // Degrees.
  kShearX,      // The slope, from -1 to 1.
  kShearY,      // The same.
  kTranslateX,  // A fraction of the width.
  kTranslateY,  // A fraction of the height.
  kMoveX,       // Whole pixels.
  kMoveY,       // The same.
  kAffine,
  kPerspective,
};

inline constexpr int kNumChannelOrders = 6;

struct NamedDistortion {
  absl::string_view name;
  Distortion distortion;
  // The allowed range of its parameter.
  double lowest, highest;
};

// Rotates, shears and scales about the middle of the image, and moves it.
struct AffineChange {
  // Clockwise. Shears are also clockwise angles in degrees.
  double degrees = 0;
  // Fractions of the height and the width, which are rounded to whole pixels.
  double translate_y = 0, translate_x = 0;
  double scale = 1;
  double shear_y = 0, shear_x = 0;
};

// Where corner pixels go, in whole pixels, clockwise from the upper left.
struct Corners {
  static constexpr int kNumber = 4;
  // They must form a convex quadrilateral.
  int64_t y[kNumber], x[kNumber];
};

// How far an image moves up (y) and to the left (x), in pixels.
struct Move {
  int64_t y, x;
};

constexpr bool MovesPixels(Distortion distortion) {
  return distortion >= Distortion::kRotate;
}
// Whether the distortion leaves images of one channel unchanged.
constexpr bool IsOfColors(Distortion distortion) {
  return distortion == Distortion::kColor || distortion == Distortion::kHue ||
         distortion == Distortion::kPermuteChannels;
}
// Whether a pixel of the result depends on other pixels of the image.
constexpr bool ReadsOtherPoints(Distortion distortion) {
  return distortion == Distortion::kSharpness || MovesPixels(distortion);
}

// How the cosine and sine of an angle are computed.
enum class Turn {
  kRounded,  // To 15 digits, as Pillow does.
  kExact,
};

// A distortion with its parameter, and everything that can be computed before
// an image is known. That takes microseconds, so layers with a fixed parameter
// do it once. If a factor is in whole steps (`InSteps`) it takes nanoseconds,
// so it can be done per image.
struct PreparedDistortion {
  // The number of steps from factor 0 to factor 1.
  static constexpr int kSteps = 4096;

  explicit PreparedDistortion(Distortion distortion, double parameter = 0,
                              Turn turn = Turn::kRounded);
  // Rounds to the nearest whole step, for parameters that are drawn per image.
  static PreparedDistortion InSteps(Distortion distortion, double parameter);

  explicit PreparedDistortion(const AffineChange& change);
  // For images of this size, with at least two rows and two columns.
  PreparedDistortion(const Corners& to, ImageSize size);

  // By how many pixels it moves an image of this size. Rounds half to even, as
  // Python does, unless it `truncates`.
  Move MoveOf(ImageSize size) const;
  // The same distortion for an image that is `times` as large as one of `size`.
  PreparedDistortion Enlarged(int64_t times, ImageSize size) const;

  Distortion distortion;
  double parameter;
  bool changes_nothing = false;
  // For translations: drops fractions of a pixel, as torchvision does.
  bool truncates = false;
  // For color, contrast and sharpness.
  BlendPlan blend;
  // For brightness, as in `StretchPlan`. The multiplier is -1 if none is exact.
  uint16_t whole = 0;
  int32_t multiplier = -1;
  // For hue: in units of 1/4096 of a sixth of the circle.
  int16_t hue = 0;
  // For rotate and affine, relative to the middle of the image: (x, y) comes
  // from (xx * x + xy * y, yx * x + yy * y).
  double xx = 1, xy = 0, yx = 0, yy = 1;
  // For perspective, with the four above: (x, y) comes from
  // (xx * x + xy * y + this->x, yx * x + yy * y + this->y), divided by
  // wx * x + wy * y + w, all in pixels from the corner of the image. Pixels
  // whose divisor is not above 0 are empty.
  double x = 0, y = 0, wx = 0, wy = 0, w = 1;
  // For affine: moves down and to the right, in fractions of the sides.
  double translate_y = 0, translate_x = 0;
};

}  // namespace refurbish_tf
