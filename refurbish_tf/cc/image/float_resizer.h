// Bilinear resizing of values other than bytes, with the points and weights of
// `tf.image.resize`, in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

// Computes which points of the input contribute to each point of the output,
// and their weights. Repeats the float32 arithmetic of TensorFlow's
// `ScaleAndTranslate` step by step. The middle of output point i is at (i +
// 0.5) * inverse + offset in the input. `kernel` is 0 beyond `radius`; if the
// output is smaller, the kernel is widened by `inverse`.
template <class Kernel>
FloatSpans SpansOf(int64_t input, int64_t output, float inverse, float offset,
                   float radius, const Kernel& kernel) {
  const float kernel_scale = std::max(inverse, 1.0f);
  const float one_over_scale = 1.0f / kernel_scale;
  const float reach = radius * kernel_scale;
  FloatSpans spans;
  spans.most = std::min<int64_t>(2 * std::ceil(reach) + 1, input);
  spans.start.assign(output, 0);
  spans.count.assign(output, 0);
  spans.weights.resize(output * spans.most);
  for (int64_t point = 0; point < output; ++point) {
    const float middle = (static_cast<float>(point) + 0.5f) * inverse + offset;
    if (middle < 0 || middle > static_cast<float>(input)) continue;
    const int64_t first = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(middle - reach - 0.5f)), 0, input - 1);
    const int64_t last = std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(middle + reach - 0.5f)), 0,
        std::min(input, first + spans.most) - 1);
    float* const weights = spans.weights.data() + point * spans.most;
    float total = 0;
    for (int64_t source = first; source <= last; ++source) {
      const float distance = static_cast<float>(source) + 0.5f - middle;
      const float weight = kernel(std::abs(distance * one_over_scale));
      weights[source - first] = weight;
      total += weight;
    }
    const bool usable =
        std::abs(total) >= 1000 * std::numeric_limits<float>::min();
    const float one_over_total = usable ? 1.0f / total : 0.0f;
    spans.start[point] = static_cast<int32_t>(first);
    spans.count[point] = static_cast<int32_t>(last - first + 1);
    for (int64_t k = 0; k <= last - first; ++k) weights[k] *= one_over_total;
  }
  return spans;
}

// The spans of one axis, without points of weight 0, because 0 * NaN is NaN.
FloatSpans BilinearSpans(int64_t input, int64_t output, bool antialias);
// Reverses the order of the output.
void Reverse(FloatSpans* spans);

// Resizes values in memory, with any number of channels. Sums are in double,
// which holds the product of two float32 exactly. So a compiler that fuses
// product and sum changes nothing, unless `Value` is double.
template <class Value>
class ValueResizer : public Resizer {
 public:
  ValueResizer(const Value* image, int64_t width, int64_t channels,
               const Box& box, FloatSpans rows, FloatSpans columns)
      : part_(image + (box.y * width + box.x) * channels),
        stride_(width * channels),
        channels_(channels),
        width_(static_cast<int64_t>(columns.start.size())),
        rows_(std::move(rows)),
        columns_(std::move(columns)),
        sums_(box.width * channels_),
        row_(sums_.size()) {}

  void Mirror() override { Reverse(&columns_); }
  void Rows(int64_t begin, int64_t count, uint8_t* bytes) override {
    Value* to = reinterpret_cast<Value*>(bytes);
    for (int64_t y = begin; y < begin + count; ++y) {
      SumRows(y);
      for (int64_t x = 0; x < width_; ++x, to += channels_) SumPixels(x, to);
    }
  }

 private:
  // The type to which values are converted, and in which the sums over rows are
  // kept until columns are summed.
  using Held = std::conditional_t<std::is_same_v<Value, double>, double, float>;

  void SumRows(int64_t y) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    const float* const weights = rows_.weights.data() + y * rows_.most;
    for (int64_t k = 0; k < rows_.count[y]; ++k) {
      const Value* const from = part_ + (rows_.start[y] + k) * stride_;
      const double weight = weights[k];
      for (size_t i = 0; i < sums_.size(); ++i) {
        sums_[i] += weight * static_cast<Held>(from[i]);
      }
    }
    for (size_t i = 0; i < sums_.size(); ++i) {
      row_[i] = static_cast<Held>(sums_[i]);
    }
  }

  void SumPixels(int64_t x, Value* to) const {
    const float* const weights = columns_.weights.data() + x * columns_.most;
    const Held* const from = row_.data() + columns_.start[x] * channels_;
    for (int64_t c = 0; c < channels_; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < columns_.count[x]; ++k) {
        sum += static_cast<double>(weights[k]) * from[k * channels_ + c];
      }
      to[c] = Rounded(sum);
    }
  }

  static Value Rounded(double sum) {
    if constexpr (std::is_floating_point_v<Value>) {
      return static_cast<Value>(sum);
    } else {
      using Limits = std::numeric_limits<Value>;
      return static_cast<Value>(std::clamp<double>(
          std::floor(sum + 0.5), Limits::lowest(), Limits::max()));
    }
  }

  const Value* const part_;
  const int64_t stride_, channels_, width_;
  FloatSpans rows_, columns_;
  std::vector<double> sums_;
  std::vector<Held> row_;
};

}  // namespace refurbish_tf
