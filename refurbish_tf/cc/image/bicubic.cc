#include "refurbish_tf/cc/image/bicubic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace refurbish_tf {
namespace {

constexpr int64_t kRgb = 3;
constexpr float kRadius = 2;

float Keys(float x) {
  if (x >= 2) return 0;
  if (x >= 1) return ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f;
  return ((1.5f * x - 2.5f) * x) * x + 1.0f;
}

// The places of the input that make one place of the output, and their weights.
struct Span {
  int64_t start;
  std::vector<float> weights;
};

std::vector<Span> SpansOf(int64_t size, float part, float corner) {
  const float scale = static_cast<float>(size) / part;
  // As the operation gets its arguments, before it inverts them.
  const float translation = -corner * scale;
  const float inverse = static_cast<float>(1.0 / scale);
  const float offset = -inverse * translation;
  const float kernel_scale = std::max(inverse, 1.0f);
  const float one_over_scale = 1.0f / kernel_scale;
  std::vector<Span> spans(size);
  for (int64_t place = 0; place < size; ++place) {
    const float middle = (static_cast<float>(place) + 0.5f) * inverse + offset;
    Span& span = spans[place];
    span.start = 0;
    if (middle < 0 || middle > static_cast<float>(size)) continue;
    const float reach = kRadius * kernel_scale;
    span.start = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(middle - reach - 0.5f)), 0, size - 1);
    const int64_t last = std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(middle + reach - 0.5f)), 0, size - 1);
    float total = 0;
    for (int64_t source = span.start; source <= last; ++source) {
      const float distance = static_cast<float>(source) + 0.5f - middle;
      span.weights.push_back(Keys(std::abs(distance * one_over_scale)));
      total += span.weights.back();
    }
    const bool usable =
        std::abs(total) >= 1000 * std::numeric_limits<float>::min();
    const float one_over_total = usable ? 1.0f / total : 0.0f;
    for (float& weight : span.weights) weight *= one_over_total;
  }
  return spans;
}

}  // namespace

FloatBox BicubicBox(const int32_t* draws, ImageSize size) {
  const auto unit = [draws](int i) {
    return static_cast<float>(draws[i]) / (1 << 23);
  };
  const float height = static_cast<float>(size.height);
  const float width = static_cast<float>(size.width);
  const float area = height * width * (0.08f + 0.92f * unit(0));
  const float aspect = std::exp(static_cast<float>(std::log(4.0 / 3)) *
                                (2 * unit(1) - 1));
  FloatBox box;
  box.height = std::nearbyint(std::sqrt(area / aspect));
  box.width = std::nearbyint(std::sqrt(area * aspect));
  const bool fits = box.height <= height && box.height > 0 &&
                    box.width <= width && box.width > 0;
  float unit_y = unit(2), unit_x = unit(3), more = 1;
  if (!fits) {
    // The largest in the middle.
    constexpr float kWidest = static_cast<float>(4.0 / 3);
    box.height = std::min(height, std::nearbyint(width * kWidest));
    box.width = std::min(width, std::nearbyint(height * kWidest));
    unit_y = unit_x = 0.5f;
    more = 0;
  }
  box.y = std::floor(unit_y * (height - box.height + more));
  box.x = std::floor(unit_x * (width - box.width + more));
  return box;
}

void ResizeBicubic(const uint8_t* image, ImageSize size, const FloatBox& box,
                   uint8_t* to) {
  const std::vector<Span> rows = SpansOf(size.height, box.height, box.y);
  const std::vector<Span> columns = SpansOf(size.width, box.width, box.x);
  const int64_t row_size = size.width * kRgb;
  std::vector<float> row(row_size);
  for (const Span& made : rows) {
    std::fill(row.begin(), row.end(), 0.0f);
    const uint8_t* from = image + made.start * row_size;
    for (const float weight : made.weights) {
      for (int64_t i = 0; i < row_size; ++i) {
        row[i] += weight * static_cast<float>(from[i]);
      }
      from += row_size;
    }
    for (const Span& column : columns) {
      const float* pixel = row.data() + column.start * kRgb;
      float sums[kRgb] = {0, 0, 0};
      for (const float weight : column.weights) {
        for (int64_t c = 0; c < kRgb; ++c) sums[c] += weight * pixel[c];
        pixel += kRgb;
      }
      for (const float sum : sums) {
        *to++ = static_cast<uint8_t>(
            std::clamp(std::floor(sum + 0.5f), 0.0f, 255.0f));
      }
    }
  }
}

}  // namespace refurbish_tf
