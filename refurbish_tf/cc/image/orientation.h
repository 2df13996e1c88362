// The orientation of a photograph in its EXIF block: how the stored image must
// be rotated and mirrored to be upright.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// Maps between the stored image and the upright one, called *standing*.
class Orientation {
 public:
  // The EXIF orientation that swaps rows and columns.
  static constexpr int kTransposed = 5;

  // `number`: the EXIF orientation, 1 to 8.
  explicit Orientation(int number);

  bool changes_nothing() const {
    return !swaps_ && !flips_rows_ && !flips_columns_;
  }
  // Converts the size of either image to the size of the other.
  ImageSize Turned(ImageSize size) const;
  // Where a box of the standing image is in the stored one, of size `stored`.
  Box StoredBox(const Box& box, ImageSize stored) const;
  // Where a window of a stored part, of size `stored`, is in the standing part.
  ResizeWindow StandingWindow(const ResizeWindow& window,
                              ImageSize stored) const;
  // Makes the standing image from a stored one, whose rows begin `stride` bytes
  // apart. The two must not overlap.
  void Turn(const uint8_t* from, ImageSize stored, int64_t stride,
            int64_t pixel_bytes, uint8_t* to) const;

 private:
  // Whether rows of the standing image are columns of the stored one.
  bool swaps_;
  // Whether rows and columns of the stored image are reversed.
  bool flips_rows_, flips_columns_;
};

}  // namespace refurbish_tf
