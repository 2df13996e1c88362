#include "refurbish_tf/cc/image/image_file.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace refurbish_tf {
namespace {

constexpr absl::string_view kExifPrefix("Exif\0\0", 6);

// Bytes beyond the end of the file count as zeros.
int64_t Byte(absl::string_view file, size_t at) {
  return at < file.size() ? static_cast<uint8_t>(file[at]) : 0;
}

int64_t Little(absl::string_view file, size_t at, int bytes) {
  int64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | Byte(file, at + i);
  return value;
}

int64_t Big(absl::string_view file, size_t at, int bytes) {
  int64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | Byte(file, at + i);
  return value;
}

// Does not use libjpeg: before it reports the size, it would prepare to decode
// the file, and would decode most of a progressive one.
void ReadJpeg(absl::string_view file, ImageFile* read) {
  absl::string_view exif;
  size_t at = 2;
  while (true) {
    // Like libjpeg, skips bytes between two segments.
    while (at < file.size() && Byte(file, at) != 0xff) ++at;
    while (at < file.size() && Byte(file, at) == 0xff) ++at;
    if (at == file.size()) return;
    const int64_t marker = Byte(file, at++);
    const bool is_alone =
        marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd7);
    if (is_alone) continue;
    if (file.size() - at < 8) return;
    const bool is_frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 &&
                          marker != 0xc8 && marker != 0xcc;
    if (is_frame) {
      const ImageSize size = {Big(file, at + 3, 2), Big(file, at + 5, 2)};
      if (size.height == 0 || size.width == 0) return;
      read->size = size;
      read->components = Byte(file, at + 7);
      read->orientation = ExifOrientation(exif);
      return;
    }
    absl::string_view segment = file.substr(at, Big(file, at, 2));
    at += segment.size();
    if (marker != 0xe1 || !exif.empty() || segment.size() <= 2) continue;
    segment.remove_prefix(2);
    if (absl::ConsumePrefix(&segment, kExifPrefix)) exif = segment;
  }
}

void ReadPng(absl::string_view file, ImageFile* read) {
  // Chunks: length, name, data, checksum. There may be others before IHDR.
  for (size_t at = 8; at + 12 <= file.size();) {
    const size_t length = Big(file, at, 4);
    const absl::string_view name = file.substr(at + 4, 4);
    if (name == "IHDR" && read->size.height == 0) {
      read->size = {Big(file, at + 12, 4), Big(file, at + 8, 4)};
      read->bits = static_cast<int>(std::max<int64_t>(Byte(file, at + 16), 8));
    } else if (name == "eXIf") {
      read->orientation = ExifOrientation(
          absl::StripPrefix(file.substr(at + 8, length), kExifPrefix));
      return;
    } else if (name == "IEND") {
      return;
    }
    at += 12 + length;
  }
}

// Returns the position after a list of blocks. A block is a byte that says how
// many bytes follow, then these bytes. An empty block ends the list.
size_t BehindBlocks(absl::string_view file, size_t at) {
  while (at < file.size() && file[at] != 0) at += 1 + Byte(file, at);
  return at + 1;
}

void ReadGif(absl::string_view file, ImageFile* read) {
  const auto behind_colors = [file](size_t at, size_t flags_at) {
    const int64_t flags = Byte(file, flags_at);
    return at + ((flags & 0x80) != 0 ? 3 * (size_t{2} << (flags & 7)) : 0);
  };
  read->size = {Little(file, 8, 2), Little(file, 6, 2)};
  size_t at = read->colors_end = behind_colors(13, 10);
  int64_t transparent = 0;
  for (; at < file.size() && file[at] == '!'; at = BehindBlocks(file, at + 2)) {
    const bool names_one = Byte(file, at + 1) == 0xf9 && Byte(file, at + 3) & 1;
    if (names_one) transparent = Byte(file, at + 6);
  }
  read->begin = at;
  if (at < file.size() && file[at] == ',') {
    Box& box = read->picture;
    box = {Little(file, at + 3, 2), Little(file, at + 1, 2),
           Little(file, at + 7, 2), Little(file, at + 5, 2)};
    read->size = {std::max(read->size.height, box.y + box.height),
                  std::max(read->size.width, box.x + box.width)};
    const size_t behind = behind_colors(at + 10, at + 9);
    const bool own_colors = behind > at + 10;
    read->around = (own_colors ? at + 10 : 13) + 3 * transparent;
    at = BehindBlocks(file, behind + 1);
  }
  read->end = std::min(at, file.size());
}

void ReadBmp(absl::string_view file, ImageFile* read) {
  const auto side = [file](size_t at) {
    return std::abs(int64_t{
        static_cast<int32_t>(static_cast<uint32_t>(Little(file, at, 4)))});
  };
  read->size = {side(22), side(18)};
  if (file.size() < 54) return;
  const int64_t header = Little(file, 14, 4), bits = Little(file, 28, 2),
                compression = Little(file, 30, 4);
  const bool usual_masks = bits == 32 && Little(file, 54, 4) == 0xff0000 &&
                           Little(file, 58, 4) == 0xff00 &&
                           Little(file, 62, 4) == 0xff;
  if (header < 40) {
    read->unknown = "a header of OS/2";
  } else if (bits != 8 && bits != 24 && bits != 32) {
    read->unknown = "other bits a pixel";
  } else if (compression == 3 && !usual_masks) {
    read->unknown = "masks of its own";
  } else if (compression != 0 && compression != 3) {
    read->unknown = "compression";
  }
  if (bits != 8) return;
  read->palette = 14 + header;
  read->num_colors = Little(file, 46, 4);
  if (read->num_colors == 0) read->num_colors = 256;
}

bool IsWebp(absl::string_view file) {
  if (!absl::StartsWith(file, "RIFF") || file.size() < 16) return false;
  const absl::string_view first = file.substr(12, 4);
  // If another chunk came first, libwebp would decode data outside all chunks.
  return file.substr(8, 4) == "WEBP" &&
         (first == "VP8X" || first == "VP8 " || first == "VP8L");
}

void ReadWebp(absl::string_view file, ImageFile* read) {
  // Like libwebp, reads the first chunk regardless of its stated length.
  const int64_t sides = Little(file, 21, 4);
  switch (file[15]) {
    case 'X':
      read->size = {1 + Little(file, 27, 3), 1 + Little(file, 24, 3)};
      break;
    case 'L':
      read->size = {1 + (sides >> 14 & 0x3fff), 1 + (sides & 0x3fff)};
      break;
    default:
      read->size = {Little(file, 28, 2) & 0x3fff, Little(file, 26, 2) & 0x3fff};
  }
  // Each chunk: name, length, data, padded to an even length.
  for (size_t at = 12; at + 8 <= file.size();) {
    const size_t length = Little(file, at + 4, 4);
    if (file.substr(at, 4) == "EXIF") {
      read->orientation = ExifOrientation(
          absl::StripPrefix(file.substr(at + 8, length), kExifPrefix));
      return;
    }
    at += 8 + length + length % 2;
  }
}

}  // namespace

std::string FirstPicture(absl::string_view file, const ImageFile& read) {
  const absl::string_view picture =
      file.substr(0, read.end).substr(std::min(read.begin, read.end));
  std::string made =
      absl::StrCat(file.substr(0, read.colors_end), picture, ";");
  if (picture.size() < 10) return made;
  // The screen gets the picture's size, and the picture moves to its corner.
  std::copy_n(picture.begin() + 5, 4, made.begin() + 6);
  std::fill_n(made.begin() + read.colors_end + 1, 4, '\0');
  return made;
}

std::array<uint8_t, 3> ColorOf(absl::string_view file, const ImageFile& read,
                               uint8_t index) {
  const auto byte = [&](int at) -> uint8_t {
    return index < read.num_colors
               ? Byte(file, read.palette + size_t{4} * index + at)
               : 0;
  };
  return {byte(2), byte(1), byte(0)};
}

std::array<uint8_t, 3> ColorAround(absl::string_view file,
                                   const ImageFile& read) {
  const auto byte = [&](int at) -> uint8_t {
    return Byte(file, read.around + at);
  };
  return {byte(0), byte(1), byte(2)};
}

int ExifOrientation(absl::string_view exif) {
  constexpr int64_t kOrientation = 0x112;
  const bool little = absl::StartsWith(exif, absl::string_view("II*\0", 4));
  if (!little && !absl::StartsWith(exif, absl::string_view("MM\0*", 4))) {
    return 1;
  }
  const auto number = [exif, little](size_t at, int bytes) {
    return little ? Little(exif, at, bytes) : Big(exif, at, bytes);
  };
  if (exif.size() < 8) return 1;
  size_t at = number(4, 4);
  if (at + 2 > exif.size()) return 1;
  const int64_t entries = number(at, 2);
  at += 2;
  for (int64_t i = 0; i < entries && at + 12 <= exif.size(); ++i, at += 12) {
    if (number(at, 2) != kOrientation) continue;
    const int64_t type = number(at + 2, 2), count = number(at + 4, 4);
    // TIFF's types for a byte, a short and a long.
    const int bytes = type == 1 ? 1 : type == 3 ? 2 : type == 4 ? 4 : 0;
    if (bytes == 0 || count != 1) return 1;
    const int64_t value = number(at + 8, bytes);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

ImageFile ReadImageFile(absl::string_view file) {
  ImageFile read;
  if (absl::StartsWith(file, "\xff\xd8\xff")) {
    read.format = "JPEG";
    ReadJpeg(file, &read);
  } else if (absl::StartsWith(file, "\x89PNG\r\n\x1a\n")) {
    read.format = "PNG";
    ReadPng(file, &read);
  } else if (absl::StartsWith(file, "GIF8")) {
    read.format = "GIF";
    ReadGif(file, &read);
  } else if (absl::StartsWith(file, "BM")) {
    read.format = "BMP";
    ReadBmp(file, &read);
  } else if (IsWebp(file)) {
    read.format = "WebP";
    ReadWebp(file, &read);
  }
  return read;
}

}  // namespace refurbish_tf
