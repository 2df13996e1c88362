// Moves maps of floating-point numbers as layers move their image. Distortions
// and resizes blend between pixels; outside the map, values are 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/row_change.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"

namespace refurbish_tf {

// After each layer the numbers are rounded to the stored type, so it makes no
// difference where layers are split. `Value`: float or double.
template <class Value>
class BlendedMap : public MapCanvas {
 public:
  // `values`: those of `frames` maps of this size, which move in the same way.
  // `rounded`: rounds to the nearest number that can be stored.
  BlendedMap(ImageSize size, int64_t channels, int64_t frames,
             std::vector<Value> values, Value (*rounded)(Value))
      : size_(size),
        channels_(channels),
        frames_(frames),
        values_(std::move(values)),
        rounded_(rounded) {}

  const std::vector<Value>& values() const { return values_; }
  // The largest change by a layer that the map cannot follow.
  RowChange refused() const { return refused_; }

  ImageSize size() const override { return size_; }
  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

 protected:
  int64_t channels() const { return channels_; }
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  // Calls change(y, x, values) for each pixel, and rounds the changed values.
  template <class Change>
  void ChangePixels(const Change& change) {
    Value* values = values_.data();
    for (int64_t row = 0; row < frames_ * size_.height; ++row) {
      for (int64_t x = 0; x < size_.width; ++x, values += channels_) {
        change(row % size_.height, x, values);
      }
    }
    for (Value& value : values_) value = rounded_(value);
  }
  void Refuse(RowChange change) { refused_ = std::max(refused_, change); }

 private:
  // Replaces all maps by maps of this size, which `make(from, to)` fills.
  template <class Make>
  void Remake(ImageSize size, const Make& make);

  ImageSize size_;
  const int64_t channels_, frames_;
  std::vector<Value> values_;
  Value (*const rounded_)(Value);
  RowChange refused_ = RowChange::kKept;
};

}  // namespace refurbish_tf
