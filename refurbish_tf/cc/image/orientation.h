// The orientation of a photograph in its EXIF block: how the stored image must
// be rotated and mirrored to be upright.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// Maps between the stored image and the upright one, called *standing*.
class Orientation {
 public:
  // The EXIF orientation that swaps rows and columns.
  static constexpr int kTransposed = 5;

  // `number`: the EXIF orientation, 1 to 8.
  explicit Orientation(int number)
      : swaps_(number >= 5),
        flips_rows_(number == 3 || number == 4 || number == 6 || number == 7),
        flips_columns_(number == 2 || number == 3 || number == 7 ||
                       number == 8) {}

  bool changes_nothing() const {
    return !swaps_ && !flips_rows_ && !flips_columns_;
  }
  // Converts the size of either image to the size of the other.
  ImageSize Turned(ImageSize size) const {
    if (swaps_) std::swap(size.height, size.width);
    return size;
  }
  // Where a box of the standing image is in the stored one, of size `stored`.
  Box StoredBox(const Box& box, ImageSize stored) const {
    Box made = box;
    if (swaps_) made = {box.x, box.y, box.width, box.height};
    if (flips_rows_) made.y = stored.height - made.y - made.height;
    if (flips_columns_) made.x = stored.width - made.x - made.width;
    return made;
  }
  // Where a window of a stored part, of size `stored`, is in the standing part.
  ResizeWindow StandingWindow(const ResizeWindow& window,
                              ImageSize stored) const {
    ResizeWindow made = window;
    const auto height = static_cast<double>(stored.height);
    const auto width = static_cast<double>(stored.width);
    if (flips_rows_) made.y = height - made.y - made.height;
    if (flips_columns_) made.x = width - made.x - made.width;
    if (swaps_) made = {made.x, made.y, made.width, made.height};
    return made;
  }
  // Makes the standing image from a stored one, whose rows begin `stride` bytes
  // apart. The two must not overlap.
  void Turn(const uint8_t* from, ImageSize stored, int64_t stride,
            int64_t pixel_bytes, uint8_t* to) const {
    const int64_t row = flips_rows_ ? -stride : stride;
    const int64_t column = flips_columns_ ? -pixel_bytes : pixel_bytes;
    if (flips_rows_) from += (stored.height - 1) * stride;
    if (flips_columns_) from += (stored.width - 1) * pixel_bytes;
    const ImageSize standing = Turned(stored);
    const auto turn = [&](auto bytes) {
      for (int64_t y = 0; y < standing.height; ++y) {
        const uint8_t* pixel = from + y * (swaps_ ? column : row);
        for (int64_t x = 0; x < standing.width; ++x) {
          std::memcpy(to, pixel, bytes);
          to += bytes;
          pixel += swaps_ ? row : column;
        }
      }
    };
    // With a size known at compile time, memcpy is an instruction or two.
    switch (pixel_bytes) {
      case 1:
        return turn(std::integral_constant<int64_t, 1>());
      case 3:
        return turn(std::integral_constant<int64_t, 3>());
      default:
        return turn(pixel_bytes);
    }
  }

 private:
  // Whether rows of the standing image are columns of the stored one.
  bool swaps_;
  // Whether rows and columns of the stored image are reversed.
  bool flips_rows_, flips_columns_;
};

}  // namespace refurbish_tf
