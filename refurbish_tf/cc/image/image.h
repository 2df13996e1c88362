#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

// A size, or a number of channels, that is not known yet.
inline constexpr int64_t kUnknown = -1;

inline constexpr int64_t kMaxChannels = 64;

struct ImageSize {
  // Lets errors say "32 x 48".
  template <class Sink>
  friend void AbslStringify(Sink& sink, ImageSize size) {
    sink.Append(absl::StrCat(size.height, " x ", size.width));
  }

  int64_t height, width;
};
inline bool operator==(ImageSize a, ImageSize b) {
  return a.height == b.height && a.width == b.width;
}

// In pixels: (0, 0) is the upper left corner of the image, and (1, 1) the lower
// right corner of its first pixel.
struct ImagePlace {
  double y, x;
};

struct Box {
  int64_t y, x, height, width;
};
// The box of this size in the middle of `whole`, into which it must fit.
inline Box CentredIn(ImageSize whole, ImageSize size) {
  return {(whole.height - size.height) / 2, (whole.width - size.width) / 2,
          size.height, size.width};
}
// The first pixel of the middle of a side, as torchvision's `CenterCrop` takes
// it: half of an odd number of pixels is rounded to even.
inline int64_t BeginOfMiddle(int64_t side, int64_t middle) {
  const int64_t half = (side - middle) / 2;
  return half + ((side - middle) % 2 & half % 2);
}

// A box whose edges need not be at whole pixels.
struct Edges {
  static Edges Of(const Box& box) {
    return {static_cast<double>(box.y), static_cast<double>(box.x),
            static_cast<double>(box.y + box.height),
            static_cast<double>(box.x + box.width)};
  }
  bool HasArea() const { return bottom > top && right > left; }
  double Area() const { return (bottom - top) * (right - left); }
  // The ratio of width to height.
  double Ratio() const { return (right - left) / (bottom - top); }
  // Whether the center of the other box is within this box, and not at an edge.
  bool HasMiddleOf(const Edges& other) const {
    const double y = (other.top + other.bottom) / 2;
    const double x = (other.left + other.right) / 2;
    return y > top && y < bottom && x > left && x < right;
  }
  // Intersection over union with another box, which must overlap this one.
  double OverlapWith(const Edges& other) const {
    const Edges both = {std::max(top, other.top), std::max(left, other.left),
                        std::min(bottom, other.bottom),
                        std::min(right, other.right)};
    return both.Area() / (Area() + other.Area() - both.Area());
  }

  double top, left, bottom, right;
};

enum class ValueType {
  kUnknown,
  kUint8,
  kUint16,
  kInt16,
  kFloat32,
  kBfloat16,
  kFloat16,
};
struct TypeFacts {
  absl::string_view name;
  int64_t bytes;
};
// In the order of ValueType.
inline constexpr TypeFacts kTypes[] = {
    {"unknown", 0}, {"uint8", 1},    {"uint16", 2}, {"int16", 2},
    {"float32", 4}, {"bfloat16", 2}, {"float16", 2}};
inline constexpr int kNumTypes = std::size(kTypes);

constexpr int64_t BytesOf(ValueType type) {
  return kTypes[static_cast<int>(type)].bytes;
}
constexpr absl::string_view NameOf(ValueType type) {
  return kTypes[static_cast<int>(type)].name;
}

// The types that most layers accept. Layers that depend on colors or units
// accept fewer; layers that only move values also accept 16-bit floats.
inline constexpr absl::string_view kImageTypes =
    "uint8, uint16, int16 or float32";

struct Pixel {
  ValueType type = ValueType::kUnknown;
  int64_t channels = kUnknown;

  int64_t bytes() const { return BytesOf(type) * channels; }
};

struct ImageSpec {
  ImageSize size = {kUnknown, kUnknown};
  Pixel pixel;
  bool is_normalized = false;
  // Set if a layer changed a size that may be unknown: comparing two unknown
  // sizes does not show the change.
  bool size_is_new = false;
  // Whether the size depends on draws. If so, it is unknown without them,
  // unless a later layer makes all sizes equal.
  bool size_is_drawn = false;

  ImageSpec OfDrawnSize() const {
    return {{kUnknown, kUnknown}, pixel, is_normalized, true, true};
  }
};

// The pixels beyond the edges of an image.
enum class Border {
  kEmpty,      // Pixels of a fill color.
  kReflect,    // The image, mirrored about its outermost pixels.
  kSymmetric,  // The image, mirrored about its edges.
  kEdge,       // The outermost pixels.
  kRollOver,   // The image again, from its other end.
};

// The color of empty uint8 pixels, by channel, or the bytes of a float32, for
// all channels. Black (0) suits all types.
using FillColor = std::array<uint8_t, 4>;
inline constexpr FillColor kBlack = {0, 0, 0, 0};

}  // namespace refurbish_tf
