#include "refurbish_tf/cc/image/orientation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace refurbish_tf {

int ExifOrientation(absl::string_view exif) {
  constexpr int64_t kOrientation = 0x112;
  const bool little = absl::StartsWith(exif, absl::string_view("II*\0", 4));
  if (!little && !absl::StartsWith(exif, absl::string_view("MM\0*", 4))) {
    return 1;
  }
  const auto number = [exif, little](size_t at, int bytes) {
    int64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      const size_t byte = little ? at + bytes - 1 - i : at + i;
      value = value << 8 | static_cast<uint8_t>(exif[byte]);
    }
    return value;
  };
  if (exif.size() < 8) return 1;
  size_t at = number(4, 4);
  if (at + 2 > exif.size()) return 1;
  const int64_t entries = number(at, 2);
  at += 2;
  for (int64_t i = 0; i < entries && at + 12 <= exif.size(); ++i, at += 12) {
    if (number(at, 2) != kOrientation) continue;
    const int64_t type = number(at + 2, 2), count = number(at + 4, 4);
    // A byte, a short or a long.
    const int bytes = type == 1 ? 1 : type == 3 ? 2 : type == 4 ? 4 : 0;
    if (bytes == 0 || count != 1) return 1;
    const int64_t value = number(at + 8, bytes);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Orientation::Orientation(int number)
    : swaps_(number >= 5),
      flips_rows_(number == 3 || number == 4 || number == 6 || number == 7),
      flips_columns_(number == 2 || number == 3 || number == 7 || number == 8) {
}

ImageSize Orientation::Turned(ImageSize size) const {
  if (swaps_) std::swap(size.height, size.width);
  return size;
}

Box Orientation::StoredBox(const Box& box, ImageSize stored) const {
  Box made = box;
  if (swaps_) made = {box.x, box.y, box.width, box.height};
  if (flips_rows_) made.y = stored.height - made.y - made.height;
  if (flips_columns_) made.x = stored.width - made.x - made.width;
  return made;
}

ResizeWindow Orientation::StandingWindow(const ResizeWindow& window,
                                         ImageSize stored) const {
  ResizeWindow made = window;
  const auto height = static_cast<double>(stored.height);
  const auto width = static_cast<double>(stored.width);
  if (flips_rows_) made.y = height - made.y - made.height;
  if (flips_columns_) made.x = width - made.x - made.width;
  if (swaps_) made = {made.x, made.y, made.width, made.height};
  return made;
}

void Orientation::Turn(const uint8_t* from, ImageSize stored, int64_t stride,
                       int64_t pixel_bytes, uint8_t* to) const {
  const int64_t row = flips_rows_ ? -stride : stride;
  const int64_t column = flips_columns_ ? -pixel_bytes : pixel_bytes;
  if (flips_rows_) from += (stored.height - 1) * stride;
  if (flips_columns_) from += (stored.width - 1) * pixel_bytes;
  const ImageSize standing = Turned(stored);
  for (int64_t y = 0; y < standing.height; ++y) {
    const uint8_t* pixel = from + y * (swaps_ ? column : row);
    for (int64_t x = 0; x < standing.width; ++x) {
      to = std::copy_n(pixel, pixel_bytes, to);
      pixel += swaps_ ? row : column;
    }
  }
}

}  // namespace refurbish_tf
