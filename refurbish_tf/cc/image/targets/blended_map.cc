#include "refurbish_tf/cc/image/targets/blended_map.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "refurbish_tf/cc/image/float_resizer.h"
#include "refurbish_tf/cc/image/targets/places.h"

namespace refurbish_tf {

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
  for (Value& value : values_) value = rounded_(value);
}

template <class Value>
void BlendedMap<Value>::MoveBy(const PreparedDistortion& distortion) {
  const Projection source = SourceOf(distortion, size_);
  const int64_t height = size_.height, width = size_.width;
  // The two pixels around a place, and the share of the second. At an edge both
  // are the same pixel.
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
          // NaN only reaches pixels that it is part of.
          if (shares[k] > 0) sum += shares[k] * pixels[k][c];
        }
        to[c] = rounded_(static_cast<Value>(sum));
      }
    }
  });
}

template class BlendedMap<float>;
template class BlendedMap<double>;

}  // namespace refurbish_tf
