#include "refurbish_tf/cc/image/targets/motion.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "refurbish_tf/cc/image/targets/places.h"

namespace refurbish_tf {
namespace {

double RatioOf(int64_t made, int64_t before) {
  return static_cast<double>(made) / static_cast<double>(before);
}

// -1 for points in reversed order, otherwise 1.
std::vector<int> SignsOf(const Axis& axis) {
  std::vector<int> signs;
  for (const Strip& strip : axis.strips()) {
    signs.insert(signs.end(), strip.length, strip.step < 0 ? -1 : 1);
  }
  return signs;
}

}  // namespace

template <class Value>
template <class Change>
void FlowMap<Value>::ChangeVectors(const Change& change) {
  this->ChangePixels([&](int64_t y, int64_t x, Value* pixel) {
    for (int64_t c = 0; c + 1 < this->channels(); c += 2) {
      change(y, x, pixel + c);
    }
  });
}

template <class Value>
void FlowMap<Value>::Take(const Plan& plan) {
  BlendedMap<Value>::Take(plan);
  const std::vector<int> rows = SignsOf(plan.rows);
  const std::vector<int> columns = SignsOf(plan.columns);
  ChangeVectors([&](int64_t y, int64_t x, Value* vector) {
    if (columns[x] < 0) vector[0] = -vector[0];
    if (rows[y] < 0) vector[1] = -vector[1];
  });
}

template <class Value>
void FlowMap<Value>::Transpose() {
  BlendedMap<Value>::Transpose();
  ChangeVectors([](int64_t /*y*/, int64_t /*x*/, Value* vector) {
    std::swap(vector[0], vector[1]);
  });
}

template <class Value>
void FlowMap<Value>::Resize(const Box& part, ImageSize size, bool antialias) {
  BlendedMap<Value>::Resize(part, size, antialias);
  if (keeps_length()) return;
  const double by_x = RatioOf(size.width, part.width);
  const double by_y = RatioOf(size.height, part.height);
  ChangeVectors([&](int64_t /*y*/, int64_t /*x*/, Value* vector) {
    vector[0] = static_cast<Value>(vector[0] * by_x);
    vector[1] = static_cast<Value>(vector[1] * by_y);
  });
}

template <class Value>
void FlowMap<Value>::MoveBy(const PreparedDistortion& distortion) {
  const Projection source = SourceOf(distortion, this->size());
  const Projection to = source.Inverse();
  BlendedMap<Value>::MoveBy(distortion);
  ChangeVectors([&](int64_t y, int64_t x, Value* vector) {
    // Such vectors, including those outside the image, stay.
    if (vector[0] == 0 && vector[1] == 0) return;
    const ImagePlace by = {vector[1], vector[0]};
    const ImagePlace begin = {static_cast<double>(y) + 0.5,
                              static_cast<double>(x) + 0.5};
    // The direction that a very short vector would have in the moved image.
    const double deeper = to.wy * by.y + to.wx * by.x;
    ImagePlace moved = {to.yy * by.y + to.yx * by.x - begin.y * deeper,
                        to.xy * by.y + to.xx * by.x - begin.x * deeper};
    if (keeps_length()) {
      const double ratio = std::sqrt((by.y * by.y + by.x * by.x) /
                                     (moved.y * moved.y + moved.x * moved.x));
      moved = {moved.y * ratio, moved.x * ratio};
    } else if (to.wy != 0 || to.wx != 0) {
      const ImagePlace before = source(begin);
      const ImagePlace end = to({before.y + by.y, before.x + by.x});
      moved = {end.y - begin.y, end.x - begin.x};
    }
    vector[0] = static_cast<Value>(moved.x);
    vector[1] = static_cast<Value>(moved.y);
  });
}

template <class Value>
void DisparityMap<Value>::Scale(double by) {
  this->ChangePixels([by](int64_t /*y*/, int64_t /*x*/, Value* value) {
    *value = static_cast<Value>(*value * by);
  });
}

template <class Value>
void DisparityMap<Value>::Take(const Plan& plan) {
  BlendedMap<Value>::Take(plan);
  const std::vector<int> columns = SignsOf(plan.columns);
  if (std::find(columns.begin(), columns.end(), -1) != columns.end()) {
    this->Refuse(RowChange::kMirrored);
  }
}

template <class Value>
void DisparityMap<Value>::Transpose() {
  BlendedMap<Value>::Transpose();
  this->Refuse(RowChange::kTurned);
}

template <class Value>
void DisparityMap<Value>::Resize(const Box& part, ImageSize size,
                                 bool antialias) {
  BlendedMap<Value>::Resize(part, size, antialias);
  Scale(RatioOf(size.width, part.width));
}

template <class Value>
void DisparityMap<Value>::MoveBy(const PreparedDistortion& distortion) {
  const Projection to = SourceOf(distortion, this->size()).Inverse();
  BlendedMap<Value>::MoveBy(distortion);
  // Rows stay rows, and are not mirrored.
  if (to.yx == 0 && to.wy == 0 && to.wx == 0 && to.xx > 0) {
    Scale(to.xx);
  } else {
    this->Refuse(RowChange::kTurned);
  }
}

template class FlowMap<float>;
template class FlowMap<double>;
template class VectorMap<float>;
template class VectorMap<double>;
template class DisparityMap<float>;
template class DisparityMap<double>;

}  // namespace refurbish_tf
