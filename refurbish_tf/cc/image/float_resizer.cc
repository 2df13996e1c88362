#include "refurbish_tf/cc/image/float_resizer.h"

namespace refurbish_tf {
namespace {

float Triangle(float distance) { return std::max(0.0f, 1 - distance); }

// The two nearest points, as in TensorFlow's `ResizeBilinear`.
FloatSpans NearestTwo(int64_t input, int64_t output) {
  const float scale = static_cast<float>(input) / static_cast<float>(output);
  FloatSpans spans;
  spans.most = 2;
  for (int64_t point = 0; point < output; ++point) {
    const float middle = (static_cast<float>(point) + 0.5f) * scale - 0.5f;
    const float floor = std::floor(middle);
    const int64_t first = std::clamp<int64_t>(floor, 0, input - 1);
    const int64_t last = std::clamp<int64_t>(std::ceil(middle), 0, input - 1);
    const float share = middle - floor;
    spans.start.push_back(static_cast<int32_t>(first));
    spans.count.push_back(first == last ? 1 : 2);
    spans.weights.push_back(first == last ? 1 : 1 - share);
    spans.weights.push_back(first == last ? 0 : share);
  }
  return spans;
}

void LeaveOutWeightless(FloatSpans* spans) {
  for (size_t point = 0; point < spans->start.size(); ++point) {
    float* const weights = spans->weights.data() + point * spans->most;
    int32_t& count = spans->count[point];
    int32_t before = 0;
    while (count > 0 && weights[count - 1] == 0) --count;
    while (before < count && weights[before] == 0) ++before;
    std::copy(weights + before, weights + count, weights);
    spans->start[point] += before;
    count -= before;
  }
}

}  // namespace

FloatSpans BilinearSpans(int64_t input, int64_t output, bool antialias) {
  if (!antialias) return NearestTwo(input, output);
  const float scale = static_cast<float>(output) / static_cast<float>(input);
  FloatSpans spans = SpansOf(input, output, static_cast<float>(1.0 / scale), 0,
                             /*radius=*/1, Triangle);
  LeaveOutWeightless(&spans);
  return spans;
}

void Reverse(FloatSpans* spans) {
  const int64_t output = static_cast<int64_t>(spans->start.size());
  std::reverse(spans->start.begin(), spans->start.end());
  std::reverse(spans->count.begin(), spans->count.end());
  for (int64_t i = 0; i < output / 2; ++i) {
    const auto weights = spans->weights.begin();
    std::swap_ranges(weights + i * spans->most, weights + (i + 1) * spans->most,
                     weights + (output - 1 - i) * spans->most);
  }
}

}  // namespace refurbish_tf
