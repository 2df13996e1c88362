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
  kColor,       // The factor, float32 as given.
  kContrast,    // The same.
  kBrightness,  // The same.
  kSharpness,   // The same.
  kSolarize,    // The threshold, from 0 to 256.
  kPosterize,   // The bits that are kept, from 1 to 8.
  kHue,         // By how much of the circle, from -1/2 to 1/2.
  // Which of the `kNumChannelOrders`, from 0, that of the image.
  kPermuteChannels,
  // The others move pixels.
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

// In how many orders three channels can be.
inline constexpr int kNumChannelOrders = 6;

struct NamedDistortion {
  absl::string_view name;
  Distortion distortion;
  // What its parameter may be.
  double lowest, highest;
};

// Turns, shears and scales about the middle of the image, and moves it.
struct AffineChange {
  // Clockwise, as angles of a shear are.
  double degrees = 0;
  // Fractions of the height and the width, which are rounded to whole pixels.
  double translate_y = 0, translate_x = 0;
  double scale = 1;
  double shear_y = 0, shear_x = 0;
};

// Where the corners of an image go, in whole pixels: the first and the last
// rows and columns, clockwise from the upper left.
struct Corners {
  static constexpr int kNumber = 4;
  // They must be those of a convex quadrilateral.
  int64_t y[kNumber], x[kNumber];
};

// Up and to the left, in pixels.
struct Move {
  int64_t y, x;
};

// Whether a pixel comes from another place.
constexpr bool MovesPixels(Distortion distortion) {
  return distortion >= Distortion::kRotate;
}
// Whether it leaves one channel as it is.
constexpr bool IsOfColors(Distortion distortion) {
  return distortion == Distortion::kColor || distortion == Distortion::kHue ||
         distortion == Distortion::kPermuteChannels;
}
// Whether it is made of other points than its own.
constexpr bool ReadsOtherPoints(Distortion distortion) {
  return distortion == Distortion::kSharpness || MovesPixels(distortion);
}

// How the cosine and sine of an angle are made.
enum class Turn {
  kRounded,  // To 15 digits, as Pillow does.
  kExact,
};

// A distortion with its parameter, and what follows from it for every image.
// Takes microseconds to make, so it is made once; or nanoseconds, of a factor
// in whole steps.
struct PreparedDistortion {
  // Steps of a factor from 0 to 1.
  static constexpr int kSteps = 4096;

  explicit PreparedDistortion(Distortion distortion, double parameter = 0,
                              Turn turn = Turn::kRounded);
  // Of the nearest whole step, for parameters that are drawn for each image.
  static PreparedDistortion InSteps(Distortion distortion, double parameter);

  explicit PreparedDistortion(const AffineChange& change);
  // Of an image of this size, which has at least two rows and two columns.
  PreparedDistortion(const Corners& to, ImageSize size);

  // By how many pixels it moves an image of this size. Half to even, as Python
  // does, unless it `truncates`.
  Move MoveOf(ImageSize size) const;
  // What does to an image that is so many times as large what this does to one
  // of `size`.
  PreparedDistortion Enlarged(int64_t times, ImageSize size) const;

  Distortion distortion;
  double parameter;
  // Of any image.
  bool changes_nothing = false;
  // For translations: whether a part of a pixel is dropped, as torchvision
  // does.
  bool truncates = false;
  // For color, contrast and sharpness.
  BlendPlan blend;
  // For brightness, as in `StretchPlan`; the multiplier is -1 if there is none.
  uint16_t whole = 0;
  int32_t multiplier = -1;
  // For hue: in units of 1/4096 of a sixth of the circle.
  int16_t hue = 0;
  // For rotate and affine: (x, y) comes from (xx * x + xy * y, yx * x + yy *
  // y), both from the middle of the image.
  double xx = 1, xy = 0, yx = 0, yy = 1;
  // For perspective, with the four above: (x, y) comes from
  // (xx * x + xy * y + this->x, yx * x + yy * y + this->y), divided by
  // wx * x + wy * y + w, all in pixels from the corner of the image. There is
  // nothing where that is not above 0.
  double x = 0, y = 0, wx = 0, wy = 0, w = 1;
  // For affine: to where it moves, in fractions of the sides.
  double translate_y = 0, translate_x = 0;
};

}  // namespace refurbish_tf
