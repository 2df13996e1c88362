#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/distortion_kernels.h"

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
  kRotate,      // Degrees.
  kShearX,      // The slope, from -1 to 1.
  kShearY,      // The same.
  kTranslateX,  // A fraction of the width.
  kTranslateY,  // A fraction of the height.
};

// Whether a pixel is made of other points than its own.
bool ReadsOtherPoints(Distortion distortion);
// Whether it comes from another place.
bool MovesPixels(Distortion distortion);

// How the cosine and sine of an angle are made.
enum class Turn {
  kRounded,  // To 15 digits, as Pillow does.
  kExact,
};

// A distortion with its parameter, and what follows from it for every image.
// Takes microseconds to make, so it is made once.
struct PreparedDistortion {
  explicit PreparedDistortion(Distortion distortion, double parameter = 0,
                              Turn turn = Turn::kRounded);

  // By how many pixels it moves an image with a side of so many. Half to even,
  // as Python does.
  int64_t TranslationOf(int64_t side) const;

  Distortion distortion;
  double parameter;
  // Of any image.
  bool changes_nothing = false;
  // For color, contrast and sharpness.
  BlendPlan blend;
  // For brightness, as in `StretchPlan`; the multiplier is -1 if there is none.
  uint16_t whole = 0;
  int32_t multiplier = -1;
  // For rotate.
  double cosine = 1, sine = 0;
};

}  // namespace refurbish_tf
