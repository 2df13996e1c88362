// What an image file says of itself, read before anything of it is decoded or
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
  // JPEG, PNG, GIF, BMP or WebP; empty if it is none of these.
  absl::string_view format;
  // What it claims, of a GIF that of its screen, with the first picture in it;
  // 0 x 0 if the file ends before.
  ImageSize size = {0, 0};
  // The first picture of a GIF, where it begins and ends in the file, and where
  // its screen's colors end, before extensions.
  Box picture = {0, 0, 0, 0};
  size_t begin = 0, end = 0, colors_end = 0;
  // Where the color is, in the file, that a GIF's screen has around the
  // picture.
  size_t around = 0;
  // Where the palette of a BMP is, of entries of four bytes, and how many.
  size_t palette = 0;
  int64_t num_colors = 0;
  // What a BMP has that cannot be decoded; otherwise empty.
  absl::string_view unknown;
  // Of each value, as far as it may be above 8.
  int bits = 8;
  // The color channels of a JPEG file.
  int64_t components = 0;
  // As `ExifOrientation`.
  int orientation = 1;
};

ImageFile ReadImageFile(absl::string_view file);

// A GIF file of the first picture alone, which is its screen: all its pixels
// have their color, and none is transparent.
std::string FirstPicture(absl::string_view file, const ImageFile& read);

// The color of RGB that the file has for an index of the palette. Pillow makes
// those that are missing black.
std::array<uint8_t, 3> ColorOf(absl::string_view file, const ImageFile& read,
                               uint8_t index);
std::array<uint8_t, 3> ColorAround(absl::string_view file,
                                   const ImageFile& read);

// The number of EXIF's orientation, 1 to 8; 1 if the block, which begins with
// the header of a TIFF file, has none or is damaged.
int ExifOrientation(absl::string_view exif);

}  // namespace refurbish_tf
