#include "refurbish_tf/cc/image/displacement.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/noise.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/image/vectors.h"

namespace refurbish_tf {
namespace {

// Values of one strip of columns stay in the L1 cache for all rows of a sum.
constexpr int64_t kStrip = 32;
// Numbers below 2^22 that this was added to have no fraction.
constexpr float kNoFraction = 3 << 22;

// Adds (line(-k) + line(k)) * weights[k], for k from 0 on, to 0, for `kStrip`
// values of these lines, which stay in registers.
template <class Line>
__attribute__((always_inline)) inline void SumLines(
    const Line& line, const std::vector<float>& weights, float* to) {
  using Floats = float __attribute__((vector_size(32)));
  Floats sums[kStrip / 8] = {}, before, after;
  for (int64_t k = 0; k < static_cast<int64_t>(weights.size()); ++k) {
    const float *const first = line(-k), *const second = line(k);
#pragma GCC unroll 4
    for (int v = 0; v < kStrip / 8; ++v) {
      std::memcpy(&before, first + 8 * v, sizeof before);
      std::memcpy(&after, second + 8 * v, sizeof after);
      sums[v] += (before + after) * weights[k];
    }
  }
  std::memcpy(to, sums, sizeof sums);
}

// Rounds half to even, if |value| is below 2^22.
float ToWhole(float value) { return (value + kNoFraction) - kNoFraction; }

// Rounds down, without a branch, which would be mispredicted for half of the
// pixels. A whole number may become the one below it.
float Floor(float value) { return ToWhole(value - 0.5f); }

#if defined(__x86_64__)
// The sum of four pixels of three bytes. Reads a byte after each.
REFURBISH_TF_AVX2 void BlendFour(const uint8_t* const* pixels,
                                 const float* weights, uint8_t* to) {
  __m128 sum = _mm_set1_ps(0);
  for (int k = 0; k < 4; ++k) {
    int32_t bytes;
    std::memcpy(&bytes, pixels[k], sizeof bytes);
    sum += _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes))) *
           _mm_set1_ps(weights[k]);
  }
  const __m128i whole = _mm_cvtps_epi32(sum);
  const __m128i words = _mm_packs_epi32(whole, whole);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(to, &bytes, 3);
}
#endif

}  // namespace

DisplacementField::DisplacementField(const Displacement& of, ImageSize size)
    : of_(of),
      size_(size),
      stride_((size.width + kStrip - 1) / kStrip * kStrip) {
  if (VectorKernels() == nullptr) {
    Make();
  } else {
    MakeWithVectors();
  }
}

REFURBISH_TF_AVX2 void DisplacementField::MakeWithVectors() { Make(); }

inline void DisplacementField::Make() {
  const auto [height, width] = size_;
  const ImageSeed words(of_.seed[0], of_.seed[1]);
  const std::array<uint32_t, 2> key = {words.Word(0), words.Word(1)};
  for (const int axis : {0, 1}) {
    // torchvision's kernel has int(8 * sigma + 1) points, or one more.
    const bool is_blurred = of_.sigma[axis] > 0;
    const int64_t radius =
        is_blurred ? static_cast<int64_t>(8 * of_.sigma[axis] + 1) / 2 : 0;
    const auto weights = [&](double sigma, double scale) {
      const std::vector<double> all =
          GaussianAxis({is_blurred ? sigma : 1, radius}, 2 * radius + 1)
              .WeightsOf(radius);
      std::vector<float> half;
      for (int64_t k = radius; k <= 2 * radius; ++k) {
        // The middle line is added twice.
        half.push_back(
            static_cast<float>(all[k] * (k == radius ? scale / 2 : scale)));
      }
      return half;
    };
    const std::vector<float> along_x = weights(of_.sigma[0], 1);
    const std::vector<float> along_y =
        weights(of_.sigma[1], of_.alpha[axis] / 2);
    std::vector<float> row(stride_ + 2 * radius), rows(height * stride_);
    float* const first = row.data() + radius;
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        // 16 bits for each axis.
        const uint32_t bits =
            plain::HashOf(static_cast<uint32_t>(y * width + x), key) >>
            16 * axis;
        first[x] = (static_cast<float>(bits & 0xffff) - 32767.5f) / 32768;
      }
      for (int64_t i = 1; i <= radius; ++i) {
        first[-i] = first[Reflected(-i, width)];
        first[width - 1 + i] = first[Reflected(width - 1 + i, width)];
      }
      for (int64_t x = 0; x < stride_; x += kStrip) {
        SumLines([&](int64_t k) { return first + x + k; }, along_x,
                 rows.data() + y * stride_ + x);
      }
    }
    // `By` multiplies numbers after the last row by 0.
    by_[axis].resize(rows.size() + stride_ + 1);
    for (int64_t x = 0; x < stride_; x += kStrip) {
      for (int64_t y = 0; y < height; ++y) {
        const auto line = [&](int64_t k) {
          return rows.data() + Reflected(y + k, height) * stride_ + x;
        };
        SumLines(line, along_y, by_[axis].data() + y * stride_ + x);
      }
    }
  }
}

ImagePlace DisplacementField::By(ImagePlace place) const {
  const double y =
      std::clamp(place.y - 0.5, 0.0, static_cast<double>(size_.height - 1));
  const double x =
      std::clamp(place.x - 0.5, 0.0, static_cast<double>(size_.width - 1));
  const int64_t top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
  const double down = y - static_cast<double>(top);
  const double across = x - static_cast<double>(left);
  const auto between = [&](const std::vector<float>& by) {
    const auto in_row = [&](const float* at) {
      return (1 - across) * at[0] + across * at[1];
    };
    const float* const at = by.data() + top * stride_ + left;
    return (1 - down) * in_row(at) + down * in_row(at + stride_);
  };
  return {between(by_[1]), between(by_[0])};
}

ImagePlace DisplacementField::Inverse(ImagePlace place) const {
  constexpr double kClose = 1e-3;
  constexpr int kMostSteps = 100;
  ImagePlace at = place;
  for (int i = 0; i < kMostSteps; ++i) {
    const ImagePlace from = (*this)(at);
    const double y = place.y - from.y, x = place.x - from.x;
    if (y * y + x * x < kClose * kClose) break;
    // Half of what is missing converges for steeper fields than all of it.
    at = {at.y + y / 2, at.x + x / 2};
  }
  return at;
}

void DisplacementField::Apply(const uint8_t* image, Pixel pixel, int64_t times,
                              uint8_t* to) const {
  const uint64_t height = size_.height * times, width = size_.width * times;
  const double scale = static_cast<double>(times);
  using Rgb = std::integral_constant<int64_t, 3>;
  [[maybe_unused]] const bool has_vectors = VectorKernels() != nullptr;
  const auto make = [&](auto value, auto channels) {
    using Value = decltype(value);
    const std::vector<Value> none(channels);
    const auto* const from = reinterpret_cast<const Value*>(image);
    [[maybe_unused]] const Value* const end = from + height * width * channels;
    // The pixel at a place, or `none`.
    const auto at = [&](int64_t y, int64_t x) {
      const bool is_inside =
          static_cast<uint64_t>(y) < height && static_cast<uint64_t>(x) < width;
      return is_inside ? from + (y * width + x) * channels : none.data();
    };
    // Only images of at most four channels have another color than black.
    const auto fill = [&](int64_t c) -> Value { return of_.fill[c % 4]; };
    auto* made = reinterpret_cast<Value*>(to);
    for (uint64_t y = 0; y < height; ++y) {
      for (uint64_t x = 0; x < width; ++x, made += channels) {
        const int64_t i = y * stride_ + x;
        const ImagePlace by = times == 1
                                  ? ImagePlace{by_[1][i], by_[0][i]}
                                  : By({(y + 0.5) / scale, (x + 0.5) / scale});
        const auto by_y = static_cast<float>(by.y * scale);
        const auto by_x = static_cast<float>(by.x * scale);
        if (of_.is_nearest) {
          const Value* const pixel =
              at(y + static_cast<int32_t>(ToWhole(by_y)),
                 x + static_cast<int32_t>(ToWhole(by_x)));
          for (int64_t c = 0; c < channels; ++c) {
            made[c] = pixel == none.data() ? fill(c) : pixel[c];
          }
          continue;
        }
        const float whole_y = Floor(by_y), whole_x = Floor(by_x);
        const int64_t top = y + static_cast<int32_t>(whole_y);
        const int64_t left = x + static_cast<int32_t>(whole_x);
        const float down = by_y - whole_y, across = by_x - whole_x;
        const float weights[] = {(1 - down) * (1 - across), (1 - down) * across,
                                 down * (1 - across), down * across};
        const Value *const first = at(top, left), *const last =
                                                      at(top + 1, left + 1);
        const bool is_inside = first != none.data() && last != none.data();
        const Value* const pixels[] = {
            first, is_inside ? first + channels : at(top, left + 1),
            is_inside ? last - channels : at(top + 1, left), last};
#if defined(__x86_64__)
        if constexpr (std::is_same_v<Value, uint8_t> &&
                      std::is_same_v<decltype(channels), Rgb>) {
          if (has_vectors && is_inside && last + 4 <= end) {
            BlendFour(pixels, weights, made);
            continue;
          }
        }
#endif
        float total = 0;
        for (int k = 0; k < 4 && !is_inside; ++k) {
          if (pixels[k] != none.data()) total += weights[k];
        }
        for (int64_t c = 0; c < channels; ++c) {
          float sum = pixels[0][c] * weights[0] + pixels[1][c] * weights[1] +
                      pixels[2][c] * weights[2] + pixels[3][c] * weights[3];
          if (!is_inside) sum = (sum - fill(c)) * total + fill(c);
          if (std::is_integral_v<Value>) sum = ToWhole(sum);
          made[c] = static_cast<Value>(sum);
        }
      }
    }
  };
  const auto make_type = [&](auto value) {
    // With a number known at compile time, loops over channels are unrolled.
    if (pixel.channels == 1) {
      make(value, std::integral_constant<int64_t, 1>());
    } else if (pixel.channels == 3) {
      make(value, Rgb());
    } else {
      make(value, pixel.channels);
    }
  };
  if (pixel.type == ValueType::kUint8) return make_type(uint8_t{});
  if (pixel.type == ValueType::kUint16) return make_type(uint16_t{});
  if (pixel.type == ValueType::kInt16) return make_type(int16_t{});
  make_type(float{});
}

}  // namespace refurbish_tf
