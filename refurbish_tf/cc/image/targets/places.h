// Where places of an image go when layers are done to it.
#pragma once

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/prepared_distortion.h"

namespace refurbish_tf {

// In pixels: (0, 0) is the upper left corner of the image, and (1, 1) the lower
// right one of its first pixel.
struct ImagePlace {
  double y, x;
};

// Takes places to other ones.
struct Affine {
  ImagePlace operator()(ImagePlace place) const {
    return {yy * place.y + yx * place.x + y, xy * place.y + xx * place.x + x};
  }
  Affine Inverse() const;

  double yy = 1, yx = 0, y = 0;
  double xy = 0, xx = 1, x = 0;
};

// From places of the distorted image to where they were before. The distortion
// must move pixels.
Affine SourceOf(const PreparedDistortion& distortion, ImageSize size);

}  // namespace refurbish_tf
