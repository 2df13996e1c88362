// Moves maps of floating numbers as layers move their image. Where a distortion
// or a resize falls between pixels, they are blended; outside is 0.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"

namespace refurbish_tf {

// After each layer the numbers are what would be stored, so that it makes no
// difference where layers are split. `Value`: float or double.
template <class Value>
class BlendedMap : public MapCanvas {
 public:
  // `values`: of `frames` maps of this size, which are moved alike. `rounded`:
  // to the nearest number that can be stored.
  BlendedMap(ImageSize size, int64_t channels, int64_t frames,
             std::vector<Value> values, Value (*rounded)(Value))
      : size_(size),
        channels_(channels),
        frames_(frames),
        values_(std::move(values)),
        rounded_(rounded) {}

  const std::vector<Value>& values() const { return values_; }

  ImageSize size() const override { return size_; }
  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

 private:
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  // Makes maps of a size: `make(from, to)` each.
  template <class Make>
  void Remake(ImageSize size, const Make& make);

  ImageSize size_;
  const int64_t channels_, frames_;
  std::vector<Value> values_;
  Value (*const rounded_)(Value);
};

}  // namespace refurbish_tf
