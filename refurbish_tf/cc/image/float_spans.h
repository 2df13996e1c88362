// Which points of an input make each point of an output, in the arithmetic of
// TensorFlow's `ScaleAndTranslate`, step by step in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Point i of the output is about (i + 0.5) * inverse + offset of the input.
// `kernel` is 0 beyond `radius`; where the output is smaller, it is as much
// wider.
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

}  // namespace refurbish_tf
