// The plain loops. Vector loops use them for the last few values.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf::plain {

inline void Store(float value, float* to) { *to = value; }

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
inline void Store(float value, Bfloat16* to) {
  to->bits = RoundToBfloat16(value);
}
inline void Store(float value, Float16* to) {
  to->bits = RoundToFloat16(value);
}

// A pixel has `unit` bytes or, if `any`, `bytes`, which is at least `unit`.
// Copies `unit` bytes at a time, so that each memcpy is one instruction; the
// last bytes of a pixel may be copied twice.
template <size_t unit, bool any = false>
void MirrorRow(const uint8_t* from, int64_t pixels, uint8_t* to,
               size_t bytes = unit) {
  if (!any) bytes = unit;
  const uint8_t* last = from + (pixels - 1) * bytes;
  for (int64_t i = 0; i < pixels; ++i) {
    for (size_t k = 0; k + unit <= bytes; k += unit) {
      std::memcpy(to + k, last + k, unit);
    }
    std::memcpy(to + bytes - unit, last + bytes - unit, unit);
    to += bytes;
    last -= bytes;
  }
}

template <class From, class To>
float Normalize(const void* untyped_from, int64_t count, const Pattern& pattern,
                void* untyped_to) {
  const From* const from = static_cast<const From*>(untyped_from);
  To* const to = static_cast<To*>(untyped_to);
  float largest = 0;
  for (int64_t i = 0; i < count;) {
    for (int64_t k = 0; k < pattern.length && i < count; ++k, ++i) {
      // A double holds the product exactly, and is then rounded. A compiler
      // thus cannot fuse product and sum, which would round only once.
      const double product = static_cast<double>(pattern.scale[k]) * from[i];
      Store(static_cast<float>(product) + pattern.offset[k], to + i);
      if constexpr (std::is_same_v<From, float>) {
        largest = std::max(largest, from[i]);
      }
    }
  }
  return largest > pattern.limit ? largest : 0;
}

inline void BlendRows(const uint8_t* const* rows, const int16_t* weights,
                      int64_t pairs, int64_t count, int16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    int32_t sum = 1 << (kWeightBits - kFractionBits - 1);
    for (int64_t k = 0; k < 2 * pairs; ++k) sum += rows[k][i] * weights[k];
    to[i] = static_cast<int16_t>(sum >> (kWeightBits - kFractionBits));
  }
}

// Blends pixels [begin, pixels). `known`: the number of channels if it is known
// at compile time, otherwise 0.
template <int known>
void BlendColumnsFrom(int64_t begin, const std::array<const int16_t*, 2>& from,
                      int64_t channels, const int32_t* start,
                      const int16_t* weights, int64_t pairs, int64_t pixels,
                      const std::array<uint8_t*, 2>& to) {
  constexpr int kShift = kWeightBits + kFractionBits;
  if (known > 0) channels = known;
  for (int row = 0; row < 2; ++row) {
    for (int64_t i = begin; i < pixels; ++i) {
      const int16_t* const first = from[row] + start[i] * channels;
      for (int64_t c = 0; c < channels; ++c) {
        int32_t sum = 1 << (kShift - 1);
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const int16_t* const weight = weights + 2 * (pair * pixels + i);
          sum += first[2 * pair * channels + c] * weight[0];
          sum += first[(2 * pair + 1) * channels + c] * weight[1];
        }
        to[row][i * channels + c] = static_cast<uint8_t>(sum >> kShift);
      }
    }
  }
}

template <class To>
void SumRows(const uint8_t* from, int64_t count, const float* weights,
             int64_t rows, To* to) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < rows; ++k) {
      sum += weights[k] * static_cast<float>(from[k * count + i]);
    }
    to[i] = static_cast<To>(sum);
  }
}

inline void SumPixels(const float* from, const FloatSpans& spans,
                      int64_t pixels, uint8_t* to) {
  for (int64_t i = 0; i < pixels; ++i) {
    const float* const weights = spans.weights.data() + i * spans.most;
    for (int64_t c = 0; c < 3; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < spans.count[i]; ++k) {
        sum += weights[k] * from[(spans.start[i] + k) * 3 + c];
      }
      to[i * 3 + c] = static_cast<uint8_t>(
          std::clamp(std::floor(sum + 0.5f), 0.0f, 255.0f));
    }
  }
}

inline void MixBytes(const uint8_t* from, const uint8_t* partner, int64_t count,
                     int32_t lambda, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t sum =
        from[i] * lambda + partner[i] * ((1 << kLambdaBits) - lambda);
    to[i] =
        static_cast<uint8_t>((sum + (1 << (kLambdaBits - 1))) >> kLambdaBits);
  }
}

inline void MixFloats(const float* from, const float* partner, int64_t count,
                      float lambda, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    // In double for the same reason as in `Normalize`.
    to[i] = static_cast<float>(static_cast<double>(lambda) * from[i]) +
            static_cast<float>(static_cast<double>(1 - lambda) * partner[i]);
  }
}

}  // namespace refurbish_tf::plain
