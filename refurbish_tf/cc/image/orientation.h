// How a photograph lies, as its EXIF block says: what has to be turned and
// mirrored for it to stand as it was taken.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// Maps between an image as it is stored and as it stands.
class Orientation {
 public:
  // Rows are columns.
  static constexpr int kTransposed = 5;

  // `number`: EXIF's, 1 to 8.
  explicit Orientation(int number);

  bool changes_nothing() const {
    return !swaps_ && !flips_rows_ && !flips_columns_;
  }
  // Between the sizes, either way.
  ImageSize Turned(ImageSize size) const;
  // Where a box of the standing image is in the stored one, of this size.
  Box StoredBox(const Box& box, ImageSize stored) const;
  // Where a window of a stored part, of this size, is in the standing part.
  ResizeWindow StandingWindow(const ResizeWindow& window,
                              ImageSize stored) const;
  // Makes the standing image of a stored one, whose rows begin `stride` bytes
  // apart. The two must not overlap.
  void Turn(const uint8_t* from, ImageSize stored, int64_t stride,
            int64_t pixel_bytes, uint8_t* to) const;

 private:
  // Rows of the standing image are columns of the stored one.
  bool swaps_;
  // Of the stored image.
  bool flips_rows_, flips_columns_;
};

}  // namespace refurbish_tf
