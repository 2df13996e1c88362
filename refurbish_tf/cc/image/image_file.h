// What an image file says of itself, read before anything of it is decoded or
// allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

struct ImageFile {
  // JPEG, PNG, GIF, BMP or WebP; empty if it is none of these.
  absl::string_view format;
  // What it claims, of a GIF the larger one of its screen and its first
  // picture; 0 x 0 if the file ends before.
  ImageSize size = {0, 0};
  // Where the first picture of a GIF ends.
  size_t end = 0;
  // Of each value, as far as it may be above 8.
  int bits = 8;
  // The color channels of a JPEG file.
  int64_t components = 0;
  // As `ExifOrientation`.
  int orientation = 1;
};

ImageFile ReadImageFile(absl::string_view file);

// The number of EXIF's orientation, 1 to 8; 1 if the block, which begins with
// the header of a TIFF file, has none or is damaged.
int ExifOrientation(absl::string_view exif);

}  // namespace refurbish_tf
