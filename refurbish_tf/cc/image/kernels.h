// The inner loops over pixels, in plain C++ and in AVX2 or NEON, chosen at run
// time. Both versions give the same bytes. Unless stated otherwise, nothing
// beyond the given pixels is read or written.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

// Whether an image is written into the CPU's caches or past them. Stores past
// the caches do not displace data that is needed sooner, and the CPU does not
// read the memory before it writes it.
enum class Stores { kCached, kPastCaches };

// The scale and offset of consecutive values, beginning with the first channel.
struct Pattern {
  // Takes one scale and offset for each channel, or one for all channels.
  Pattern(const std::vector<float>& scales, const std::vector<float>& offsets);

  // The pattern repeats after `length` values, a multiple of 8. Seven more
  // follow, so that a vector can be loaded from each of the first `length`.
  int64_t length;
  std::vector<float> scale, offset;
  // If a float is above this, the image is in other units than mean and std.
  float limit = std::numeric_limits<float>::infinity();
};

// value * scale + offset, in float32, by channel.
struct Normalization {
  // The type of the result.
  ValueType type = ValueType::kUnknown;
  // The patterns, by the type of the image.
  std::map<ValueType, Pattern> patterns;
};

// How many int16 values `blend_columns` may read beyond the last pixel.
inline constexpr int kWordsBeyond = 8;

// In a blend, point i of the output is a weighted sum of consecutive points of
// the input, from `start[i]` on, which are added in pairs. The weights add up
// to 2^kWeightBits, and are in the order [pair][i][point of the pair].
inline constexpr int kWeightBits = 14;
// Fraction bits of the int16 values that `blend_rows` makes.
inline constexpr int kFractionBits = 7;
// Fraction bits of lambda, the weight of an image in a mixed image.
inline constexpr int kLambdaBits = 15;

struct DistortionKernels;
struct NoisePlan;

// Point i of the output is the weighted sum of `count[i]` points of the input,
// from `start[i]` on, added in this order. Its weights begin at i * `most`;
// zeros follow, except in the results of `BilinearSpans`.
struct FloatSpans {
  int64_t most = 0;
  std::vector<int32_t> start, count;
  std::vector<float> weights;
  // For `sum_pixels`: the same weights for two points of the output at a time,
  // each repeated four times, as vectors need them.
  std::vector<float> paired;
};

// The loop for this number of bytes or channels, or the general one (index 0).
template <class Loops>
typename Loops::value_type LoopOf(const Loops& loops, int64_t number) {
  const size_t index = static_cast<size_t>(number);
  return index < loops.size() && loops[index] != nullptr ? loops[index]
                                                         : loops[0];
}

struct PixelKernels {
  void (*copy)(const uint8_t* from, int64_t bytes, uint8_t* to);

  // Mirrors rows of `pixels` pixels of `pixel_bytes` bytes. Rows begin
  // `from_stride` and `to_stride` bytes apart.
  using Mirror = void (*)(const uint8_t* from, int64_t from_stride,
                          int64_t pixels, int64_t pixel_bytes, int64_t rows,
                          uint8_t* to, int64_t to_stride);
  // Indexed by the bytes of a pixel; use `LoopOf`.
  std::array<Mirror, 13> mirrors;

  // Normalizes `count` values, beginning with the first channel. Returns the
  // largest float in `from` if it is above the pattern's limit, otherwise 0.
  // `normalize` is indexed by the type of `from`, then by the type of `to`.
  using Normalize = float (*)(const void* from, int64_t count,
                              const Pattern& pattern, void* to);
  using NormalizeTo = std::array<Normalize, kNumTypes>;
  static constexpr NormalizeTo ToFloats(Normalize float32, Normalize bfloat16,
                                        Normalize float16) {
    return {nullptr, nullptr, nullptr, nullptr, float32, bfloat16, float16};
  }
  using Normalizations = std::array<NormalizeTo, kNumTypes>;
  Normalizations normalize;
  // The same, but storing past the caches where there is a loop that does.
  Normalizations normalize_past_caches;
  Normalize NormalizeOf(ValueType from, ValueType to, Stores stores) const {
    const Normalizations& all =
        stores == Stores::kPastCaches ? normalize_past_caches : normalize;
    return all[static_cast<int>(from)][static_cast<int>(to)];
  }
  // To be called after stores past the caches, before other threads read them.
  void (*fence)();

  // The weighted sum of `pairs` pairs of rows, as int16 with kFractionBits.
  void (*blend_rows)(const uint8_t* const* rows, const int16_t* weights,
                     int64_t pairs, int64_t count, int16_t* to);

  // Makes bytes from weighted sums of pixels, for two rows at a time, which
  // share `start` and `weights`. After each pixel that is read, kWordsBeyond
  // int16 values must be readable.
  using BlendColumns = void (*)(const std::array<const int16_t*, 2>& from,
                                int64_t channels, const int32_t* start,
                                const int16_t* weights, int64_t pairs,
                                int64_t pixels,
                                const std::array<uint8_t*, 2>& to);
  // Indexed by the number of channels; use `LoopOf`.
  std::array<BlendColumns, 5> blend_columns;

  // The weighted sum of `rows` rows of `count` values, in float32.
  void (*sum_rows)(const uint8_t* from, int64_t count, const float* weights,
                   int64_t rows, float* to);
  // The same, truncated to bytes.
  void (*sum_rows_of_bytes)(const uint8_t* from, int64_t count,
                            const float* weights, int64_t rows, uint8_t* to);
  // Weighted float32 sums of three-channel pixels, rounded to bytes. After the
  // last pixel, `spans.most` finite pixels and one more float must be readable,
  // because vectors also read points of weight 0.
  void (*sum_pixels)(const float* from, const FloatSpans& spans, int64_t pixels,
                     uint8_t* to);

  // lambda * from + (1 - lambda) * partner, with lambda in (0, 1). For bytes,
  // lambda is in units of 2^-kLambdaBits, and sums are rounded to the nearest,
  // ties up. For floats, each step is rounded.
  void (*mix_bytes)(const uint8_t* from, const uint8_t* partner, int64_t count,
                    int32_t lambda, uint8_t* to);
  void (*mix_floats)(const float* from, const float* partner, int64_t count,
                     float lambda, float* to);

  // Adds noise to all values of an image. `from` and `to` may be the same.
  // Returns a float in `from` that is beyond the limits of the plan, or 0.
  using AddNoise = float (*)(const void* from, int64_t count,
                             const NoisePlan& plan, void* to);
  AddNoise add_noise_to_bytes, add_noise_to_floats;

  const DistortionKernels* distortions;
};

const PixelKernels& PlainKernels();

// Round to the nearest, ties to even. NaN stays NaN, and becomes quiet.
uint16_t RoundToBfloat16(float value);
uint16_t RoundToFloat16(float value);

}  // namespace refurbish_tf
