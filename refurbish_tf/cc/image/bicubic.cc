#include "refurbish_tf/cc/image/bicubic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "refurbish_tf/cc/base/elementary.h"
#include "refurbish_tf/cc/image/float_resizer.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kRgb = 3;
constexpr float kRadius = 2;

float Keys(float x) {
  if (x >= 2) return 0;
  if (x >= 1) return ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f;
  return ((1.5f * x - 2.5f) * x) * x + 1.0f;
}

FloatSpans BicubicSpans(int64_t size, int64_t part, int64_t corner) {
  const float scale = static_cast<float>(size) / static_cast<float>(part);
  // TensorFlow's op receives a translation, and multiplies it by the inverse
  // scale. Doing the same here makes the rounding errors equal.
  const float translation = -static_cast<float>(corner) * scale;
  const float inverse = static_cast<float>(1.0 / scale);
  return SpansOf(size, size, inverse, -inverse * translation, kRadius, Keys);
}

void Pair(FloatSpans* spans) {
  const int64_t size = static_cast<int64_t>(spans->start.size());
  spans->paired.reserve((size + 1) * spans->most * 4);
  for (int64_t i = 0; i < size; i += 2) {
    for (int64_t k = 0; k < spans->most; ++k) {
      for (const int64_t point : {i, std::min(i + 1, size - 1)}) {
        spans->paired.insert(spans->paired.end(), 4,
                             spans->weights[point * spans->most + k]);
      }
    }
  }
}

}  // namespace

Box BicubicBox(const int32_t* draws, ImageSize size) {
  const auto unit = [draws](int i) {
    return static_cast<float>(draws[i]) / (1 << 23);
  };
  const float height = static_cast<float>(size.height);
  const float width = static_cast<float>(size.width);
  const float area = height * width * (0.08f + 0.92f * unit(0));
  constexpr float kLogOfWidest = 0.28768208f;  // log(4 / 3).
  const float aspect =
      static_cast<float>(Exp(kLogOfWidest * (2 * unit(1) - 1)));
  float box_height = std::nearbyint(std::sqrt(area / aspect));
  float box_width = std::nearbyint(std::sqrt(area * aspect));
  const bool fits = box_height <= height && box_height > 0 &&
                    box_width <= width && box_width > 0;
  float unit_y = unit(2), unit_x = unit(3), more = 1;
  if (!fits) {
    // Uses the largest centered box with an allowed aspect ratio.
    constexpr float kWidest = static_cast<float>(4.0 / 3);
    box_height = std::min(height, std::nearbyint(width * kWidest));
    box_width = std::min(width, std::nearbyint(height * kWidest));
    unit_y = unit_x = 0.5f;
    more = 0;
  }
  const auto begin = [more](float unit, float side, float part) {
    return static_cast<int64_t>(std::floor(unit * (side - part + more)));
  };
  return {begin(unit_y, height, box_height), begin(unit_x, width, box_width),
          static_cast<int64_t>(box_height), static_cast<int64_t>(box_width)};
}

void ResizeBicubic(const uint8_t* image, ImageSize size, const Box& box,
                   const PixelKernels& kernels, uint8_t* to) {
  const FloatSpans rows = BicubicSpans(size.height, box.height, box.y);
  FloatSpans columns = BicubicSpans(size.width, box.width, box.x);
  Pair(&columns);
  const int64_t row_size = size.width * kRgb;
  std::vector<float> row(row_size + columns.most * kRgb + 1);
  for (int64_t y = 0; y < size.height; ++y) {
    kernels.sum_rows(image + rows.start[y] * row_size, row_size,
                     rows.weights.data() + y * rows.most, rows.count[y],
                     row.data());
    kernels.sum_pixels(row.data(), columns, size.width, to + y * row_size);
  }
}

}  // namespace refurbish_tf
