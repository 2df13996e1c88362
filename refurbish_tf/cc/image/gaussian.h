#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "refurbish_tf/cc/base/elementary.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// A Gaussian: its standard deviation, and where it is cut off, in pixels.
struct Gaussian {
  double sigma;
  int64_t radius;
};

// The point of an axis that is at `i` after reflection at the outermost points.
inline int64_t Reflected(int64_t i, int64_t size) {
  if (i >= 0 && i < size) return i;
  // After this many points a reflected image repeats.
  const int64_t period = std::max<int64_t>(2 * (size - 1), 1);
  const int64_t beyond = std::abs(i) % period;
  return std::min(beyond, period - beyond);
}

// The weights along one axis. The image is reflected at its outermost points.
class GaussianAxis {
 public:
  GaussianAxis(const Gaussian& gaussian, int64_t size)
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

  // The most points that contribute to one point.
  int64_t most() const { return most_; }
  int64_t FirstOf(int64_t i) const { return std::max<int64_t>(i - radius_, 0); }
  // Blurred point i is the sum of the points from `FirstOf(i)` on, multiplied
  // by these weights. The weights add up to 1.
  std::vector<double> WeightsOf(int64_t i) const {
    if (IsInner(i)) return weights_;
    const int64_t first = FirstOf(i);
    const int64_t last = std::min(i + radius_, size_ - 1);
    std::vector<double> folded(last - first + 1);
    for (int64_t k = -radius_; k <= radius_; ++k) {
      folded[Reflected(i + k, size_) - first] += weights_[k + radius_];
    }
    return folded;
  }
  // Whether point i needs no reflection. All such points have the same weights.
  bool IsInner(int64_t i) const { return i >= radius_ && i + radius_ < size_; }
  FloatSpans Spans() const {
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

 private:
  const int64_t size_, radius_, most_;
  // The weights at distances from -radius to radius.
  std::vector<double> weights_;
};

}  // namespace refurbish_tf
