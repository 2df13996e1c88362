// What an image is: its size, and what its pixels are.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace refurbish_tf {

// A size, or a number of channels, that is not known yet.
inline constexpr int64_t kUnknown = -1;

// The most that an image may have.
inline constexpr int64_t kMaxChannels = 64;

struct ImageSize {
  int64_t height, width;
};

struct Box {
  int64_t y, x, height, width;
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
inline constexpr int kNumTypes = 7;
// Types that every layer takes but for those that know colors. What only moves
// values takes smaller floats, too.
inline constexpr absl::string_view kImageTypes =
    "uint8, uint16, int16 or float32";

constexpr int64_t BytesOf(ValueType type) {
  switch (type) {
    case ValueType::kUnknown:
      return 0;
    case ValueType::kUint8:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
    case ValueType::kBfloat16:
    case ValueType::kFloat16:
      return 2;
    case ValueType::kFloat32:
      return 4;
  }
  return 0;
}

constexpr absl::string_view NameOf(ValueType type) {
  switch (type) {
    case ValueType::kUnknown:
      return "unknown";
    case ValueType::kUint8:
      return "uint8";
    case ValueType::kUint16:
      return "uint16";
    case ValueType::kInt16:
      return "int16";
    case ValueType::kFloat32:
      return "float32";
    case ValueType::kBfloat16:
      return "bfloat16";
    case ValueType::kFloat16:
      return "float16";
  }
  return "unknown";
}

struct Pixel {
  ValueType type = ValueType::kUnknown;
  int64_t channels = kUnknown;

  int64_t bytes() const { return BytesOf(type) * channels; }
};

// Of an image, as far as it is known.
struct ImageSpec {
  ImageSize size = {kUnknown, kUnknown};
  Pixel pixel;
  bool is_normalized = false;
};

// The color of empty pixels, by channel, for pixels of bytes; black is for all.
using FillColor = std::array<uint8_t, 4>;
inline constexpr FillColor kBlack = {0, 0, 0, 0};

}  // namespace refurbish_tf
