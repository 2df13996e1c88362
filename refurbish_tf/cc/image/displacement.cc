#include "refurbish_tf/cc/image/displacement.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "refurbish_tf/cc/image/float_resizer.h"
#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/noise.h"

namespace refurbish_tf {
namespace {

// Values of one strip of columns stay in the L1 cache for all rows of a sum.
constexpr int64_t kStrip = 32;

// Adds weights[k] * (line k before the middle one + line k after it), for k
// from 0 on, to 0, for `kStrip` values, which stay in registers.
void SumLines(const std::vector<const float*>& lines,
              const std::vector<float>& weights, float* to) {
  using Floats = float __attribute__((vector_size(16)));
  constexpr int kVectors = kStrip / 4;
  Floats sums[kVectors] = {}, before, after;
  const size_t middle = weights.size() - 1;
  for (size_t k = 0; k <= middle; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&before, lines[middle - k] + 4 * v, sizeof before);
      std::memcpy(&after, lines[middle + k] + 4 * v, sizeof after);
      sums[v] += (before + after) * weights[k];
    }
  }
  std::memcpy(to, sums, sizeof sums);
}

// The weights for `SumLines`, multiplied by `scale`, in the form of
// torchvision's kernel. The middle line is added twice.
std::vector<float> WeightsOf(double sigma, int64_t radius, double scale) {
  const GaussianAxis axis({radius > 0 ? sigma : 1, radius}, 1);
  std::vector<float> weights;
  for (int64_t k = 0; k <= radius; ++k) {
    const double weight = axis.WeightAt(k) * scale;
    weights.push_back(static_cast<float>(k == 0 ? weight / 2 : weight));
  }
  return weights;
}

// The points of an axis of `size` that are at -radius, ..., end + radius - 1.
std::vector<int64_t> ReflectedPoints(int64_t size, int64_t radius,
                                     int64_t end) {
  std::vector<int64_t> points;
  for (int64_t i = -radius; i < end + radius; ++i) {
    points.push_back(Reflected(i, size));
  }
  return points;
}

// Makes the numbers of one axis: 0 for x, 1 for y. Rows are `stride` long.
std::vector<float> DisplacementsOf(const Displacement& of, int axis,
                                   ImageSize size, int64_t stride,
                                   double scale) {
  const auto [height, width] = size;
  // torchvision's kernel has int(8 * sigma + 1) points, or one more.
  const int64_t radius =
      of.sigma[axis] > 0 ? static_cast<int64_t>(8 * of.sigma[axis] + 1) / 2 : 0;
  const int64_t points = 2 * radius + 1;
  const std::vector<float> along_x = WeightsOf(of.sigma[0], radius, 1);
  const std::vector<float> along_y =
      WeightsOf(of.sigma[1], radius, scale * of.alpha[axis] / 2);
  const ImageSeed seed(of.seed[0], of.seed[1]);
  const std::array<uint32_t, 2> key = {seed.Word(0), seed.Word(1)};
  const std::vector<int64_t> columns = ReflectedPoints(width, radius, stride);
  const std::vector<int64_t> from = ReflectedPoints(height, radius, height);
  std::vector<float> drawn(width), row(columns.size()), rows(height * stride);
  std::vector<const float*> lines(points);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      // 16 bits for each axis.
      const uint32_t bits =
          plain::HashOf(static_cast<uint32_t>(y * width + x), key);
      const auto half = static_cast<float>(bits >> 16 * axis & 0xffff);
      drawn[x] = (half - 32767.5f) * (1.0f / 32768);
    }
    for (size_t i = 0; i < row.size(); ++i) row[i] = drawn[columns[i]];
    for (int64_t x = 0; x < stride; x += kStrip) {
      for (int64_t k = 0; k < points; ++k) lines[k] = row.data() + x + k;
      SumLines(lines, along_x, rows.data() + y * stride + x);
    }
  }
  std::vector<float> numbers(rows.size());
  for (int64_t x = 0; x < stride; x += kStrip) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t k = 0; k < points; ++k) {
        lines[k] = rows.data() + from[y + k] * stride + x;
      }
      SumLines(lines, along_y, numbers.data() + y * stride + x);
    }
  }
  return numbers;
}

// Rounds half to even, if |value| is below 2^22: the sum has no fraction bits.
float ToWhole(float value) {
  constexpr float kNoFraction = 3 << 22;
  return (value + kNoFraction) - kNoFraction;
}

// Rounds down, without a branch, which would be mispredicted for half of the
// pixels. A whole number may become the one below it.
float Floor(float value) { return ToWhole(value - 0.5f); }

}  // namespace

DisplacementField::DisplacementField(const Displacement& displacement,
                                     ImageSize size, int64_t times)
    : of_(displacement), size_{size.height * times, size.width * times} {
  const auto [height, width] = size;
  const int64_t stride = (width + kStrip - 1) / kStrip * kStrip;
  stride_ = times == 1 ? stride : size_.width;
  for (const int axis : {0, 1}) {
    by_[axis] =
        DisplacementsOf(of_, axis, size, stride, static_cast<double>(times));
    if (times == 1) continue;
    std::vector<float> enlarged(size_.height * stride_);
    ValueResizer<float>(by_[axis].data(), stride, 1, {0, 0, height, width},
                        BilinearSpans(height, size_.height, true),
                        BilinearSpans(width, size_.width, true))
        .Rows(0, size_.height, reinterpret_cast<uint8_t*>(enlarged.data()));
    by_[axis] = std::move(enlarged);
  }
}

ImagePlace DisplacementField::operator()(ImagePlace place) const {
  const double y =
      std::clamp(place.y - 0.5, 0.0, static_cast<double>(size_.height - 1));
  const double x =
      std::clamp(place.x - 0.5, 0.0, static_cast<double>(size_.width - 1));
  const int64_t top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
  const int64_t bottom = std::min(top + 1, size_.height - 1);
  const int64_t right = std::min(left + 1, size_.width - 1);
  const double down = y - static_cast<double>(top);
  const double across = x - static_cast<double>(left);
  const auto between = [&](const float* by) {
    const auto in_row = [&](int64_t row) {
      return (1 - across) * by[row * stride_ + left] +
             across * by[row * stride_ + right];
    };
    return (1 - down) * in_row(top) + down * in_row(bottom);
  };
  return {place.y + between(by_[1].data()), place.x + between(by_[0].data())};
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

int64_t DisplacementField::NearestOf(int64_t y, int64_t x) const {
  const int64_t i = y * stride_ + x;
  y += static_cast<int64_t>(ToWhole(by_[1][i]));
  x += static_cast<int64_t>(ToWhole(by_[0][i]));
  const bool is_inside =
      y >= 0 && x >= 0 && y < size_.height && x < size_.width;
  return is_inside ? y * size_.width + x : -1;
}

template <class Value, int known>
void DisplacementField::ApplyTo(const Value* image, int64_t any,
                                Value* to) const {
  const auto [height, width] = size_;
  const int64_t channels = known > 0 ? known : any;
  const auto rounded = [](float value) {
    if constexpr (std::is_integral_v<Value>) {
      return static_cast<Value>(static_cast<int>(ToWhole(value)));
    } else {
      return value;
    }
  };
  // Only images of at most four channels have another color than black.
  const auto fill = [this](int64_t c) {
    return static_cast<float>(of_.fill[c % 4]);
  };
  const bool is_nearest = of_.is_nearest;
  for (int64_t y = 0; y < height; ++y) {
    const float* const row_y = by_[1].data() + y * stride_;
    const float* const row_x = by_[0].data() + y * stride_;
    for (int64_t x = 0; x < width; ++x, to += channels) {
      if (is_nearest) {
        const int64_t pixel = NearestOf(y, x);
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = pixel < 0 ? rounded(fill(c)) : image[pixel * channels + c];
        }
        continue;
      }
      const float whole_y = Floor(row_y[x]), whole_x = Floor(row_x[x]);
      const float down = row_y[x] - whole_y, across = row_x[x] - whole_x;
      const float weights[] = {(1 - down) * (1 - across), (1 - down) * across,
                               down * (1 - across), down * across};
      const int64_t top = y + static_cast<int32_t>(whole_y);
      const int64_t left = x + static_cast<int32_t>(whole_x);
      if (top >= 0 && left >= 0 && top + 1 < height && left + 1 < width) {
        const Value* const upper = image + (top * width + left) * channels;
        const Value* const lower = upper + width * channels;
        for (int64_t c = 0; c < channels; ++c) {
          to[c] =
              rounded(upper[c] * weights[0] + upper[c + channels] * weights[1] +
                      lower[c] * weights[2] + lower[c + channels] * weights[3]);
        }
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0, total = 0;
        for (int k = 0; k < 4; ++k) {
          const int64_t row = top + k / 2, column = left + k % 2;
          if (row < 0 || column < 0 || row >= height || column >= width) {
            continue;
          }
          sum += image[(row * width + column) * channels + c] * weights[k];
          total += weights[k];
        }
        to[c] = rounded((sum - fill(c)) * total + fill(c));
      }
    }
  }
}

void DisplacementField::Apply(const uint8_t* image, Pixel pixel,
                              uint8_t* to) const {
  const auto apply = [&](auto value) {
    using Value = decltype(value);
    const auto* const from = reinterpret_cast<const Value*>(image);
    auto* const made = reinterpret_cast<Value*>(to);
    if (pixel.channels == 1) return ApplyTo<Value, 1>(from, 1, made);
    if (pixel.channels == 3) return ApplyTo<Value, 3>(from, 3, made);
    ApplyTo<Value, 0>(from, pixel.channels, made);
  };
  switch (pixel.type) {
    case ValueType::kUint8:
      return apply(uint8_t{});
    case ValueType::kUint16:
      return apply(uint16_t{});
    case ValueType::kInt16:
      return apply(int16_t{});
    default:
      return apply(float{});
  }
}

}  // namespace refurbish_tf
