// The loops over pixels: a plain version of each, and one in AVX2, chosen at
// run time. Both give the same bytes. Nothing beyond the given pixels is read
// or written, except where it is said.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

// After so many values a pattern of 1, 3 or 4 channels repeats, and vectors are
// whole.
inline constexpr int kPattern = 24;

// scale and offset of consecutive values, beginning with the first channel.
struct Pattern {
  Pattern(const Normalization& normalization, int64_t channels);
  alignas(32) std::array<float, kPattern> scale, offset;
};

// Words that a blend of columns may read beyond the last.
inline constexpr int kWordsBeyond = 8;

// A blend makes each point i of an output a weighted sum of consecutive points
// of an input, from `start[i]` on, in pairs. The weights add up to
// 2^kWeightBits, and are in the order [pair][i][of the pair].
inline constexpr int kWeightBits = 14;
// Fraction bits of the values that a blend of rows makes.
inline constexpr int kFractionBits = 7;

struct DistortionKernels;

// Point i of an output is the weighted sum of `count[i]` points of an input,
// from `start[i]` on, summed up in this order in float32. Its weights begin at
// i * `most`; behind them are zeros.
struct FloatSpans {
  int64_t most = 0;
  std::vector<int32_t> start, count;
  std::vector<float> weights;
  // The same for vectors: of two points at a time, each weight four times.
  std::vector<float> paired;
};

struct PixelKernels {
  void (*copy)(const uint8_t* from, int64_t bytes, uint8_t* to);

  // Mirrors rows of `pixels` pixels, which begin `from_stride` and `to_stride`
  // bytes apart. Indexed by the number of channels.
  using Mirror = void (*)(const uint8_t* from, int64_t from_stride,
                          int64_t pixels, int64_t rows, uint8_t* to,
                          int64_t to_stride);
  std::array<Mirror, 5> mirror;

  // Indexed by ValueType, without uint8. `count` values, beginning with the
  // first channel.
  using Normalize = void (*)(const uint8_t* from, int64_t count,
                             const Pattern& pattern, void* to);
  std::array<Normalize, 4> normalize;

  // The weighted sum of `pairs` pairs of rows, as words with kFractionBits.
  void (*blend_rows)(const uint8_t* const* rows, const int16_t* weights,
                     int64_t pairs, int64_t count, int16_t* to);

  // The weighted sums of pixels of two rows, as bytes: two have the addresses
  // and the weights in common. Indexed by the number of channels. There must be
  // kWordsBeyond words to read after every pixel of a pair.
  using BlendColumns = void (*)(const std::array<const int16_t*, 2>& from,
                                const int32_t* start, const int16_t* weights,
                                int64_t pairs, int64_t pixels,
                                const std::array<uint8_t*, 2>& to);
  std::array<BlendColumns, 5> blend_columns;

  // The weighted sum of `rows` rows of `count` values.
  void (*sum_rows)(const uint8_t* from, int64_t count, const float* weights,
                   int64_t rows, float* to);
  // Weighted sums of pixels of three channels, rounded to bytes. There must be
  // `most` finite pixels, and one more float, to read after the last.
  void (*sum_pixels)(const float* from, const FloatSpans& spans, int64_t pixels,
                     uint8_t* to);

  const DistortionKernels* distortions;
};

const PixelKernels& PlainKernels();

// To the nearest, ties to even.
uint16_t RoundToBfloat16(float value);
uint16_t RoundToFloat16(float value);

}  // namespace refurbish_tf
