#include "refurbish_tf/cc/image/jpeg.h"

#include "absl/strings/match.h"

namespace refurbish_tf {
namespace {

// From how many times the size on a scale is taken.
struct Scale {
  int ratio;
  int64_t least;
};

// A pixel of 8 x 8 is their mean and no more, and needs some others beside it
// to be as smooth as a resize of them all: with just as many as the result has,
// photographs differed by 2.9 levels, with half as many again by 1.5.
constexpr Scale kScales[] = {{8, 12}, {4, 4}, {2, 2}};

// What the segment of an EXIF block begins with, behind its length.
constexpr absl::string_view kExif("Exif\0\0", 6);

// Sets begin and length to those of the scaled pixels that a stretch touches.
void ScaleStretch(int ratio, int64_t* begin, int64_t* length,
                  double* exact_begin, double* exact_length) {
  const int64_t end = *begin + *length;
  *exact_begin = static_cast<double>(*begin % ratio) / ratio;
  *exact_length = static_cast<double>(*length) / ratio;
  *begin /= ratio;
  *length = (end + ratio - 1) / ratio - *begin;
}

}  // namespace

std::optional<JpegHeader> ReadJpegHeader(absl::string_view file) {
  const auto byte = [file](size_t at) -> int64_t {
    return static_cast<uint8_t>(file[at]);
  };
  const auto word = [byte](size_t at) { return byte(at) << 8 | byte(at + 1); };
  if (file.size() < 2 || word(0) != 0xffd8) return std::nullopt;
  JpegHeader header = {};
  size_t at = 2;
  while (true) {
    // As libjpeg, passes over what is between two segments.
    while (at < file.size() && byte(at) != 0xff) ++at;
    while (at < file.size() && byte(at) == 0xff) ++at;
    if (at == file.size()) return std::nullopt;
    const int64_t marker = byte(at++);
    const bool is_alone =
        marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd7);
    if (is_alone) continue;
    if (file.size() - at < 8) return std::nullopt;
    const bool is_frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 &&
                          marker != 0xc8 && marker != 0xcc;
    if (is_frame) {
      header.size = {word(at + 3), word(at + 5)};
      header.components = byte(at + 7);
      if (header.size.height == 0 || header.size.width == 0) break;
      return header;
    }
    const absl::string_view segment = file.substr(at, word(at));
    if (marker == 0xe1 && header.exif.empty() && segment.size() > 2 &&
        absl::StartsWith(segment.substr(2), kExif)) {
      header.exif = segment.substr(2 + kExif.size());
    }
    at += segment.size();
  }
  return std::nullopt;
}

ScaledPart ScaledPartOf(const Box& box, ImageSize size) {
  ScaledPart part = {1, box, {}};
  for (const Scale& scale : kScales) {
    if (box.height >= scale.least * size.height &&
        box.width >= scale.least * size.width) {
      part.ratio = scale.ratio;
      break;
    }
  }
  ScaleStretch(part.ratio, &part.box.y, &part.box.height, &part.window.y,
               &part.window.height);
  ScaleStretch(part.ratio, &part.box.x, &part.box.width, &part.window.x,
               &part.window.width);
  return part;
}

}  // namespace refurbish_tf
