// Where places of an image go when layers are applied to it.
#pragma once

#include "absl/functional/function_ref.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/prepared_distortion.h"

namespace refurbish_tf {

// Maps places of one image to those of another. Straight lines stay straight.
struct Projection {
  ImagePlace operator()(ImagePlace place) const {
    const double depth = wy * place.y + wx * place.x + w;
    // Places behind the viewer are not visible.
    if (!(depth > 0)) return {kFar, kFar};
    return {(yy * place.y + yx * place.x + y) / depth,
            (xy * place.y + xx * place.x + x) / depth};
  }
  Projection Inverse() const;

  // Outside all images, but within the range of all types of targets.
  static constexpr double kFar = -30000;

  double yy = 1, yx = 0, y = 0;
  double xy = 0, xx = 1, x = 0;
  // 0, 0 and 1 if parallel lines stay parallel.
  double wy = 0, wx = 0, w = 1;
};

// Any map of places, for the duration of a call.
using PlaceMap = absl::FunctionRef<ImagePlace(ImagePlace)>;

// Maps places of the distorted image to where they come from. The distortion
// must move pixels.
Projection SourceOf(const PreparedDistortion& distortion, ImageSize size);

}  // namespace refurbish_tf
