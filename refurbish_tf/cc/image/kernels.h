// The loops over pixels: a plain version of each, and one in AVX2, which is
// chosen when the program runs. They give the same bytes. Nothing beyond the
// pixels named is read or written, unless it is said.
#ifndef REFURBISH_TF_CC_IMAGE_KERNELS_H_
#define REFURBISH_TF_CC_IMAGE_KERNELS_H_

#include <array>
#include <cstdint>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

// So many values that a pattern of 1, 3 or 4 channels repeats after them, and
// whole vectors.
inline constexpr int kPattern = 24;

// scale and offset of values that follow each other, from the first channel on.
struct Pattern {
  Pattern(const Normalization& normalization, int64_t channels);
  alignas(32) std::array<float, kPattern> scale, offset;
};

// Words that a blend of columns may read beyond the last.
inline constexpr int kWordsBeyond = 8;

// How the places of an output are sums of those of an input: that at `start[i]`
// and following ones, in pairs, whose weights add up to 2^kWeightBits. Weights
// are in the order [pair][i][of the pair].
inline constexpr int kWeightBits = 14;
// Of what a blend of rows makes of a value.
inline constexpr int kFractionBits = 7;

struct PixelKernels {
  void (*copy)(const uint8_t* from, int64_t bytes, uint8_t* to);

  // Mirrors rows of `pixels` pixels each, which begin so many bytes apart.
  // By number of channels.
  using Mirror = void (*)(const uint8_t* from, int64_t from_stride,
                          int64_t pixels, int64_t rows, uint8_t* to,
                          int64_t to_stride);
  std::array<Mirror, 5> mirror;

  // By ValueType, but uint8. `count` values, the first of the first channel.
  using Normalize = void (*)(const uint8_t* from, int64_t count,
                             const Pattern& pattern, void* to);
  std::array<Normalize, 4> normalize;

  // The sum of `pairs` pairs of rows, as words with kFractionBits.
  void (*blend_rows)(const uint8_t* const* rows, const int16_t* weights,
                     int64_t pairs, int64_t count, int16_t* to);

  // The same of pixels of a row, as bytes. By number of channels. There must be
  // kWordsBeyond words to read behind every pixel of a pair.
  using BlendColumns = void (*)(const int16_t* from, const int32_t* start,
                                const int16_t* weights, int64_t pairs,
                                int64_t pixels, uint8_t* to);
  std::array<BlendColumns, 5> blend_columns;
};

const PixelKernels& PlainKernels();

// To the nearest, ties to even.
uint16_t RoundToBfloat16(float value);
uint16_t RoundToFloat16(float value);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_KERNELS_H_
