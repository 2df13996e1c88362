#include "refurbish_tf/cc/image/gaussian.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "refurbish_tf/cc/base/elementary.h"

namespace refurbish_tf {

GaussianAxis::GaussianAxis(const Gaussian& gaussian, int64_t size)
    : size_(size),
      radius_(gaussian.radius),
      most_(std::min(2 * gaussian.radius + 1, size)) {
  weights_.resize(2 * radius_ + 1);
  for (int64_t k = 0; k <= radius_; ++k) {
    const double distance = static_cast<double>(k) / gaussian.sigma;
    weights_[radius_ - k] = weights_[radius_ + k] =
        Exp(-0.5 * distance * distance);
  }
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) weight /= total;
}

int64_t GaussianAxis::FirstOf(int64_t i) const {
  return std::max<int64_t>(i - radius_, 0);
}

std::vector<double> GaussianAxis::WeightsOf(int64_t i) const {
  if (IsInner(i)) return weights_;
  const int64_t first = FirstOf(i);
  const int64_t last = std::min(i + radius_, size_ - 1);
  // After this many points a reflected image repeats.
  const int64_t period = std::max<int64_t>(2 * (size_ - 1), 1);
  std::vector<double> folded(last - first + 1);
  for (int64_t k = -radius_; k <= radius_; ++k) {
    const int64_t beyond = std::abs(i + k) % period;
    folded[std::min(beyond, period - beyond) - first] += weights_[k + radius_];
  }
  return folded;
}

FloatSpans GaussianAxis::Spans() const {
  FloatSpans spans;
  spans.most = most_;
  spans.weights.resize(size_ * most_);
  for (int64_t i = 0; i < size_; ++i) {
    const std::vector<double> weights = WeightsOf(i);
    spans.start.push_back(static_cast<int32_t>(FirstOf(i)));
    spans.count.push_back(static_cast<int32_t>(weights.size()));
    for (size_t k = 0; k < weights.size(); ++k) {
      spans.weights[i * most_ + k] = static_cast<float>(weights[k]);
    }
  }
  return spans;
}

}  // namespace refurbish_tf
