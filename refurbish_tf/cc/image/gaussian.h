// The weights of a Gaussian blur.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// A Gaussian of this standard deviation, in pixels, cut off beyond `radius`
// pixels to each side.
struct Gaussian {
  double sigma;
  int64_t radius;
};

// The weights along one axis of an image, which is reflected about the middle
// of its outermost points.
class GaussianAxis {
 public:
  GaussianAxis(const Gaussian& gaussian, int64_t size);

  // The most points that contribute to one point.
  int64_t most() const { return most_; }
  int64_t FirstOf(int64_t i) const;
  // The weights of the points from `FirstOf(i)` on in the blurred point i. They
  // add up to 1.
  std::vector<double> WeightsOf(int64_t i) const;
  // Whether no reflected point contributes to point i. All such points have the
  // same weights.
  bool IsInner(int64_t i) const { return i >= radius_ && i + radius_ < size_; }
  FloatSpans Spans() const;

 private:
  const int64_t size_, radius_, most_;
  // From -radius to radius.
  std::vector<double> weights_;
};

}  // namespace refurbish_tf
