// The inner loops of distortions, in plain C++ and mostly also in AVX2 or NEON.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "absl/container/inlined_vector.h"

namespace refurbish_tf {

// The number of channels of a color pixel.
inline constexpr int kColors = 3;
// Loops process this many bytes at a time: whole vectors of whole RGB pixels.
inline constexpr int kBlock = 96;

// A blend: from + factor * (to - from) in float32, clamped to [0, 255] and
// truncated.
struct BlendPlan {
  float factor = 1;
  // Whether arithmetic in 16-bit words gives the same result: from + whole * d
  // + (d * m >> 16), clamped, where d = to - from, and m is `up` if d >= 0,
  // otherwise `down`.
  bool in_words = false;
  int16_t whole = 0, up = 0, down = 0;
};

// A value becomes u * whole + (u * multiplier >> 16), at most 255, where u =
// value - lowest. Each byte has its own numbers, because channels differ.
struct StretchPlan {
  alignas(32) uint8_t lowest[kBlock];
  alignas(32) uint16_t whole[kBlock];
  alignas(32) uint16_t multiplier[kBlock];
};

// The new value for each value of each channel.
struct ValueTables {
  alignas(32) uint8_t of[kColors][256];
  // The same tables for `LookUp` in vector_distortions.cc, which looks up 16
  // values per step. Each step is stored twice, once for each half of a vector,
  // and is xored with the previous step, except for steps 0 and 8.
  alignas(32) uint8_t steps[kColors][16][32];
};

// Locates the pixels of a row in the input. Each loop uses only some members.
// `first`, `step` and coordinates of `turn` are in units of 1 / 65536 pixel.
struct RowPlan {
  const uint8_t* image = nullptr;
  int64_t height = 0, width = 0, row_bytes = 0;
  int pixel_bytes = 0;
  uint8_t fill = 0;
  // `move`: (x, y) comes from (x + (first + y * step >> 16), y + down).
  // `move_columns`: (x, y) comes from (x, y + (first + x * step >> 16)).
  int64_t first = 0, step = 0, down = 0;
  // For `move_columns`: a span is adjacent columns with the same offset.
  // `spans` has the first byte of each span, then the end of the last one.
  // `longest` is the length in bytes of the longest span.
  absl::InlinedVector<int32_t, 128> spans;
  int64_t longest = 0;
  // `turn`: (x, y) comes from
  // (first_x + x * xx + y * xy, first_y + x * yx + y * yy).
  // `inverse_xx` is 1 / xx, and `inverse_yx` is 1 / yx.
  int64_t first_x = 0, first_y = 0, xx = 0, xy = 0, yx = 0, yy = 0;
  double inverse_xx = 0, inverse_yx = 0;
  // `project`: (x, y) comes from, in pixels,
  // (first_x + x * xx + y * xy, first_y + x * yx + y * yy) * 65536
  // / (first_w + x * wx + y * wy).
  int64_t first_w = 0, wx = 0, wy = 0;
  BlendPlan blend;
};

struct DistortionKernels {
  // Whether `mask`, `solarize`, `stretch` and `blend`, which compute each byte,
  // exist. As plain loops they would be no faster than `look_up`.
  bool has_arithmetic;

  // Bytes begin with the first channel of a pixel. `from` and `to` may be the
  // same. Loops that do not mix channels treat an image of one channel as if it
  // had three; the last pixel may then be incomplete.
  void (*mask)(const uint8_t* from, int64_t bytes, uint8_t mask, uint8_t* to);
  void (*solarize)(const uint8_t* from, int64_t bytes, uint8_t threshold,
                   uint8_t* to);
  void (*stretch)(const uint8_t* from, int64_t bytes,
                  const StretchPlan& stretch, uint8_t* to);
  void (*blend)(const uint8_t* from, int64_t bytes, const BlendPlan& plan,
                uint8_t grey, uint8_t* to);
  void (*look_up)(const uint8_t* from, int64_t bytes, const ValueTables& tables,
                  uint8_t* to);
  void (*color)(const uint8_t* from, int64_t bytes, const BlendPlan& plan,
                uint8_t* to);

  // Channel i of a pixel gets the value of channel order[i].
  void (*permute)(const uint8_t* from, int64_t bytes,
                  const std::array<uint8_t, kColors>& order, uint8_t* to);

  // `turn` is `PreparedDistortion::hue`.
  void (*hue)(const uint8_t* from, int64_t bytes, int turn, uint8_t* to);

  void (*find_extremes)(const uint8_t* from, int64_t bytes, uint8_t* lowest,
                        uint8_t* highest);
  int64_t (*sum_greys)(const uint8_t* from, int64_t bytes);

  // Makes pixels like `RowStep::Row`, which describes the arguments.
  using Row = void (*)(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
                       uint8_t* to, uint8_t* end);
  Row move, move_columns, sharpen;
  // Indexed by the bytes of a pixel: 1, 3 or 4.
  Row turn[5], project[5];
};

const DistortionKernels& PlainDistortions();

namespace plain {

inline uint8_t Blend(int from, int to, float factor) {
  // A double holds the product exactly, and is then rounded. A compiler thus
  // cannot fuse product and sum into one operation, which rounds only once.
  const double product = static_cast<double>(factor) * (to - from);
  const float sum = static_cast<float>(product) + static_cast<float>(from);
  return static_cast<uint8_t>(std::clamp(sum, 0.0f, 255.0f));
}

inline uint8_t Brightened(int value, float factor) {
  return static_cast<uint8_t>(std::min(value * factor, 255.0f));
}

inline int Grey(const uint8_t* pixel) {
  return (19595 * pixel[0] + 38470 * pixel[1] + 7471 * pixel[2] + 32768) >> 16;
}

// Rotates the hue of a pixel. Its largest and smallest values stay the same, up
// to rounding. Values are in sixteenths, which fit into 16 bits.
inline void TurnHue(const uint8_t* from, int turn, uint8_t* to) {
  const int red = from[0], green = from[1], blue = from[2];
  const int most = std::max({red, green, blue});
  const int spread = most - std::min({red, green, blue});
  // A sixth of the color circle is `spread` units, so no division is needed.
  int hue = most == red     ? green - blue
            : most == green ? 2 * spread + blue - red
                            : 4 * spread + red - green;
  hue = 16 * hue + ((spread * turn + 128) >> 8);
  const int sixth = 16 * spread, circle = 6 * sixth;
  if (hue < 0) hue += circle;
  if (hue >= circle) hue -= circle;
  // `distance` is how far the hue is from pure red, green or blue.
  const auto channel = [=](int distance) {
    return static_cast<uint8_t>(
        (16 * most + 8 - std::clamp(distance - sixth, 0, sixth)) >> 4);
  };
  to[0] = channel(std::min(hue, circle - hue));
  to[1] = channel(std::abs(hue - 2 * sixth));
  to[2] = channel(std::abs(hue - 4 * sixth));
}

// Sharpens bytes [begin, end) of a row, whose pixels have eight neighbours.
inline void Sharpen(const RowPlan& plan, const uint8_t* row, int64_t begin,
                    int64_t end, uint8_t* to) {
  const int64_t pixel = plan.pixel_bytes;
  for (int64_t i = begin; i < end; ++i) {
    int sum = 4 * row[i];
    for (int64_t k = i - pixel; k <= i + pixel; k += pixel) {
      sum += row[k - plan.row_bytes] + row[k] + row[k + plan.row_bytes];
    }
    *to++ = Blend((sum + 6) / 13, row[i], plan.blend.factor);
  }
}

}  // namespace plain

struct Range {
  int64_t from, to;
};

inline Range Intersection(Range range, int64_t from, int64_t to) {
  range.from = std::min(std::max(range.from, from), range.to);
  range.to = std::max(std::min(range.to, to), range.from);
  return range;
}

// The part of `range` where 0 <= first + i * step < limit; inverse = 1 / step.
inline Range Inside(Range range, int64_t first, int64_t step, double inverse,
                    int64_t limit) {
  if (step == 0) {
    if (first < 0 || first >= limit) range.to = range.from;
    return range;
  }
  const auto floor = [](double value) {
    const int64_t whole = static_cast<int64_t>(value);
    return whole - (static_cast<double>(whole) > value ? 1 : 0);
  };
  // Subtracting a half keeps the quotients so far from whole numbers that their
  // rounding errors do not change the floor.
  if (step > 0) {
    return Intersection(range, floor((step - first - 0.5) * inverse),
                        floor((limit - first + step - 0.5) * inverse));
  }
  return Intersection(range, floor((limit - first - 0.5) * inverse) + 1,
                      floor((-first - 0.5) * inverse) + 1);
}

// Locates pixel x of row y in the input, and says which of the pixels
// [x, x + count) come from inside the image (`inside`, counted from x).
struct TurnedRow {
  TurnedRow(const RowPlan& plan, int64_t y, int64_t x, int64_t count)
      : from_x(plan.first_x + x * plan.xx + y * plan.xy),
        from_y(plan.first_y + x * plan.yx + y * plan.yy),
        inside(Inside(Inside({0, count}, from_x, plan.xx, plan.inverse_xx,
                             plan.width << 16),
                      from_y, plan.yx, plan.inverse_yx, plan.height << 16)) {}

  int64_t from_x, from_y;
  Range inside;
};

// For one row of the result: the spans of columns (see `RowPlan`) that come
// from inside the image. The offset changes by one from span to span.
struct ColumnSpans {
  int64_t from, to;
  // The row that span `from` comes from, and how it changes per span.
  int64_t row, step;
};

inline ColumnSpans InsideSpans(const RowPlan& plan, int64_t y, int64_t x,
                               int64_t count) {
  const auto offset = [&plan](int64_t column) {
    return (plan.first + column * plan.step) >> 16;
  };
  const int64_t direction = plan.step < 0 ? -1 : 1;
  const int64_t row = y + (plan.first >> 16);
  const auto span_at = [&](int64_t column) {
    return (offset(column) - (plan.first >> 16)) * direction;
  };
  const Range inside =
      Intersection({span_at(x), span_at(x + count - 1) + 1},
                   direction > 0 ? -row : row - plan.height + 1,
                   direction > 0 ? plan.height - row : row + 1);
  return {inside.from, inside.to, row + inside.from * direction, direction};
}

// The bytes of the pixels in [x, x + count) that have eight neighbours, counted
// from the beginning of row y.
inline Range InnerBytes(const RowPlan& plan, int64_t y, int64_t x,
                        int64_t count) {
  const int64_t pixel = plan.pixel_bytes;
  const Range range = {x * pixel, (x + count) * pixel};
  if (y == 0 || y == plan.height - 1) return {range.from, range.from};
  return Intersection(range, pixel, (plan.width - 1) * pixel);
}

}  // namespace refurbish_tf
