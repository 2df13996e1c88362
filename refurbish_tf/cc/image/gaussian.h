#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// A Gaussian: its standard deviation, and where it is cut off, in pixels.
struct Gaussian {
  double sigma;
  int64_t radius;
};

// The weights along one axis. The image is reflected at its outermost points.
class GaussianAxis {
 public:
  GaussianAxis(const Gaussian& gaussian, int64_t size);

  // The most points that contribute to one point.
  int64_t most() const { return most_; }
  int64_t FirstOf(int64_t i) const;
  // Blurred point i is the sum of the points from `FirstOf(i)` on, multiplied
  // by these weights. The weights add up to 1.
  std::vector<double> WeightsOf(int64_t i) const;
  // Whether point i needs no reflection. All such points have the same weights.
  bool IsInner(int64_t i) const { return i >= radius_ && i + radius_ < size_; }
  FloatSpans Spans() const;

 private:
  const int64_t size_, radius_, most_;
  // The weights at distances from -radius to radius.
  std::vector<double> weights_;
};

}  // namespace refurbish_tf
