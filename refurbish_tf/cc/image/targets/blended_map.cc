#include "refurbish_tf/cc/image/targets/blended_map.h"

#include <algorithm>
#include <cmath>

#include "refurbish_tf/cc/image/float_resizer.h"

namespace refurbish_tf {
namespace {

double RatioOf(int64_t made, int64_t before) {
  return static_cast<double>(made) / static_cast<double>(before);
}

// For each point of the axis: -1 if it is mirrored, otherwise 1.
std::vector<int> SignsOf(const Axis& axis) {
  std::vector<int> signs;
  for (const Strip& strip : axis.strips()) {
    signs.insert(signs.end(), strip.length, strip.step < 0 ? -1 : 1);
  }
  return signs;
}

}  // namespace

template <class Value>
template <class Make>
void BlendedMap<Value>::Remake(ImageSize size, const Make& make) {
  const int64_t before = size_.height * size_.width * channels_;
  const int64_t now = size.height * size.width * channels_;
  std::vector<Value> made(frames_ * now);
  for (int64_t frame = 0; frame < frames_; ++frame) {
    make(values_.data() + frame * before, made.data() + frame * now);
  }
  values_ = std::move(made);
  size_ = size;
}

template <class Value>
void BlendedMap<Value>::Take(const Plan& plan) {
  const std::vector<int32_t> columns = plan.columns.Sources();
  Remake(plan.size(), [&](const Value* from, Value* to) {
    for (const int32_t row : plan.rows.Sources()) {
      const Value* const line =
          from + std::max<int64_t>(row, 0) * size_.width * channels_;
      for (const int32_t column : columns) {
        if (row >= 0 && column >= 0) {
          for (int64_t c = 0; c < channels_; ++c) {
            to[c] = line[column * channels_ + c];
          }
        }
        to += channels_;
      }
    }
  });
  if (form_ == Form::kBlendedMap) return;
  const std::vector<int> x_signs = SignsOf(plan.columns);
  if (form_ == Form::kDisparity) {
    const bool mirrors =
        std::find(x_signs.begin(), x_signs.end(), -1) != x_signs.end();
    if (mirrors) Refuse(Movement::kMirrors);
    return;
  }
  const std::vector<int> y_signs = SignsOf(plan.rows);
  ChangeVectors([&](int64_t y, int64_t x, Value* vector) {
    if (x_signs[x] < 0) vector[0] = -vector[0];
    if (y_signs[y] < 0) vector[1] = -vector[1];
  });
}

template <class Value>
void BlendedMap<Value>::Transpose() {
  const ImageSize before = size_;
  Remake({before.width, before.height}, [&](const Value* from, Value* to) {
    for (int64_t x = 0; x < before.width; ++x) {
      for (int64_t y = 0; y < before.height; ++y) {
        to = std::copy_n(from + (y * before.width + x) * channels_, channels_,
                         to);
      }
    }
  });
  if (form_ == Form::kDisparity) Refuse(Movement::kTurns);
  if (!has_vectors()) return;
  ChangeVectors([](int64_t /*y*/, int64_t /*x*/, Value* vector) {
    std::swap(vector[0], vector[1]);
  });
}

template <class Value>
void BlendedMap<Value>::Resize(const Box& part, ImageSize size,
                               bool antialias) {
  const ImageSize before = size_;
  Remake(size, [&](const Value* from, Value* to) {
    ValueResizer<Value>(from, before.width, channels_, part,
                        BilinearSpans(part.height, size.height, antialias),
                        BilinearSpans(part.width, size.width, antialias))
        .Rows(0, size.height, reinterpret_cast<uint8_t*>(to));
  });
  RoundAll();
  const double by_x = RatioOf(size.width, part.width);
  if (form_ == Form::kDisparity) ScaleDisparity(by_x);
  if (form_ != Form::kFlow) return;
  const double by_y = RatioOf(size.height, part.height);
  ChangeVectors([&](int64_t /*y*/, int64_t /*x*/, Value* vector) {
    vector[0] = static_cast<Value>(vector[0] * by_x);
    vector[1] = static_cast<Value>(vector[1] * by_y);
  });
}

template <class Value>
void BlendedMap<Value>::MoveBy(const PreparedDistortion& distortion) {
  const Projection source = SourceOf(distortion, size_);
  Blend(source);
  if (form_ == Form::kBlendedMap) return;
  const Projection to = source.Inverse();
  if (has_vectors()) {
    MoveVectors(source, to);
  } else if (to.yx == 0 && to.wy == 0 && to.wx == 0 && to.xx > 0) {
    // Rows stay rows, and are not mirrored.
    ScaleDisparity(to.xx);
  } else {
    Refuse(Movement::kTurns);
  }
}

template <class Value>
void BlendedMap<Value>::Blend(PlaceMap source) {
  const int64_t height = size_.height, width = size_.width;
  // The two pixels around a place, and the weight of the second. At the edge of
  // an image, both are the same pixel.
  struct Pair {
    int64_t first, second;
    double share;
  };
  const auto around = [](double place, int64_t size) {
    const double floor = std::floor(place - 0.5);
    const int64_t first = static_cast<int64_t>(floor);
    return Pair{std::max<int64_t>(first, 0), std::min(first + 1, size - 1),
                place - 0.5 - floor};
  };
  Remake(size_, [&](const Value* from, Value* to) {
    for (int64_t i = 0; i < height * width; ++i, to += channels_) {
      const ImagePlace place = source({static_cast<double>(i / width) + 0.5,
                                       static_cast<double>(i % width) + 0.5});
      if (!(place.y >= 0 && place.x >= 0 &&
            place.y < static_cast<double>(height) &&
            place.x < static_cast<double>(width))) {
        continue;
      }
      const Pair rows = around(place.y, height);
      const Pair columns = around(place.x, width);
      const double shares[] = {(1 - rows.share) * (1 - columns.share),
                               (1 - rows.share) * columns.share,
                               rows.share * (1 - columns.share),
                               rows.share * columns.share};
      const Value* const pixels[] = {
          from + (rows.first * width + columns.first) * channels_,
          from + (rows.first * width + columns.second) * channels_,
          from + (rows.second * width + columns.first) * channels_,
          from + (rows.second * width + columns.second) * channels_};
      for (int64_t c = 0; c < channels_; ++c) {
        double sum = 0;
        for (int k = 0; k < 4; ++k) {
          // A NaN of weight 0 must not spread.
          if (shares[k] > 0) sum += shares[k] * pixels[k][c];
        }
        to[c] = rounded_(static_cast<Value>(sum));
      }
    }
  });
}

template <class Value>
template <class Change>
void BlendedMap<Value>::ChangeVectors(const Change& change) {
  Value* pixel = values_.data();
  for (int64_t row = 0; row < frames_ * size_.height; ++row) {
    for (int64_t x = 0; x < size_.width; ++x, pixel += channels_) {
      for (int64_t c = 0; c + 1 < channels_; c += 2) {
        change(row % size_.height, x, pixel + c);
      }
    }
  }
  RoundAll();
}

template <class Value>
void BlendedMap<Value>::MoveVectors(const Projection& source,
                                    const Projection& to) {
  ChangeVectors([&](int64_t y, int64_t x, Value* vector) {
    // Zero vectors stay, including those of pixels from outside the image.
    if (vector[0] == 0 && vector[1] == 0) return;
    const ImagePlace by = {vector[1], vector[0]};
    const ImagePlace begin = {static_cast<double>(y) + 0.5,
                              static_cast<double>(x) + 0.5};
    // The vector as `to` would move it if it were very short. For perspective,
    // only its direction is right.
    const double deeper = to.wy * by.y + to.wx * by.x;
    ImagePlace moved = {to.yy * by.y + to.yx * by.x - begin.y * deeper,
                        to.xy * by.y + to.xx * by.x - begin.x * deeper};
    if (form_ == Form::kVectors) {
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
void BlendedMap<Value>::ScaleDisparity(double by) {
  for (Value& value : values_) {
    value = rounded_(static_cast<Value>(value * by));
  }
}

template <class Value>
void BlendedMap<Value>::RoundAll() {
  for (Value& value : values_) value = rounded_(value);
}

template <class Value>
void BlendedMap<Value>::Refuse(Movement movement) {
  refused_ = std::max(refused_, movement);
}

template class BlendedMap<float>;
template class BlendedMap<double>;

}  // namespace refurbish_tf
