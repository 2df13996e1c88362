// What an image file says about itself, read before anything is decoded or
// allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

struct ImageFile {
  // JPEG, PNG, GIF, BMP or WebP; otherwise empty.
  absl::string_view format;
  // The stated size; for a GIF, the size of its screen, enlarged to contain the
  // first picture. 0 x 0 if the file ends before.
  ImageSize size = {0, 0};
  // The first picture of a GIF, where it begins and ends in the file, and where
  // the colors of the screen end, before extensions.
  Box picture = {0, 0, 0, 0};
  size_t begin = 0, end = 0, colors_end = 0;
  // Where the file has the color around the picture of a GIF.
  size_t around = 0;
  // Where the palette of a BMP is, and its number of entries of four bytes.
  size_t palette = 0;
  int64_t num_colors = 0;
  // The feature of a BMP that cannot be decoded, or empty.
  absl::string_view unknown;
  // Bits per value, at least 8.
  int bits = 8;
  // The color channels of a JPEG file.
  int64_t components = 0;
  // From `ExifOrientation`.
  int orientation = 1;
};

ImageFile ReadImageFile(absl::string_view file);

// A GIF file of the first picture alone, which fills the screen and has no
// transparent pixels.
std::string FirstPicture(absl::string_view file, const ImageFile& read);

// The RGB color of an index of the palette; black if it is missing, as in
// Pillow.
std::array<uint8_t, 3> ColorOf(absl::string_view file, const ImageFile& read,
                               uint8_t index);
std::array<uint8_t, 3> ColorAround(absl::string_view file,
                                   const ImageFile& read);

// The orientation in an EXIF block, 1 to 8; 1 if the block, which begins with
// the header of a TIFF file, has none or is damaged.
int ExifOrientation(absl::string_view exif);

}  // namespace refurbish_tf
