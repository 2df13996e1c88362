// What is not pixels, and follows them: a canvas that colors and blur leave as
// it is, and cutouts, which hide a part of an image and not what it shows.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/canvas.h"

namespace refurbish_tf {

class TargetCanvas : public Canvas {
 public:
  void CutOut(int64_t /*top*/, int64_t /*bottom*/, int64_t /*left*/,
              int64_t /*right*/, FillColor /*color*/) final {}
  void Blur(const Gaussian& /*gaussian*/) final {}
  void Normalize(const Normalization& /*normalization*/) final {}
  // Such a part has whole numbers. Only the image is resized by cubes.
  void ResizeBicubic(const FloatBox& part) final {
    Resize(
        {static_cast<int64_t>(part.y), static_cast<int64_t>(part.x),
         static_cast<int64_t>(part.height), static_cast<int64_t>(part.width)},
        size(), /*antialias=*/true);
  }
  void Distort(const PreparedDistortion& distortion, uint8_t /*fill*/) final {
    if (MovesPixels(distortion.distortion)) MoveBy(distortion);
  }

 private:
  // By a distortion that moves pixels.
  virtual void MoveBy(const PreparedDistortion& distortion) = 0;
};

}  // namespace refurbish_tf
