// Reads format, size and other facts of an image file without decoding it.
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
  // The size that the file states; for a GIF, the size of its screen, enlarged
  // to contain the first picture. 0 x 0 if the file ends too early.
  ImageSize size = {0, 0};
  // For a GIF: where its first picture is on the screen, which bytes of the
  // file hold it, and the position in the file after the screen's colors.
  Box picture = {0, 0, 0, 0};
  size_t begin = 0, end = 0, colors_end = 0;
  // For a GIF: the position in the file of the color around the picture.
  size_t around = 0;
  // For a BMP: the position of the palette, and the number of its entries.
  size_t palette = 0;
  int64_t num_colors = 0;
  // For a BMP: the feature that prevents decoding it, or empty.
  absl::string_view unknown;
  // Bits per value; 8 if the file has fewer.
  int bits = 8;
  // The number of color channels of a JPEG file.
  int64_t components = 0;
  // The EXIF orientation, 1 to 8.
  int orientation = 1;
};

ImageFile ReadImageFile(absl::string_view file);

// Makes a GIF file that contains only the first picture. This picture fills the
// screen and has no transparent pixels.
std::string FirstPicture(absl::string_view file, const ImageFile& read);

// The RGB color of an entry in a BMP's palette; black if the entry is missing,
// as in Pillow.
std::array<uint8_t, 3> ColorOf(absl::string_view file, const ImageFile& read,
                               uint8_t index);
std::array<uint8_t, 3> ColorAround(absl::string_view file,
                                   const ImageFile& read);

// The orientation, 1 to 8, in an EXIF block, which begins with the header of a
// TIFF file. 1 if the block has no orientation or is damaged.
int ExifOrientation(absl::string_view exif);

}  // namespace refurbish_tf
