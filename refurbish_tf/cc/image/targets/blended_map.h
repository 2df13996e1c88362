// Moves maps of floating-point numbers as layers move their image. Distortions
// and resizes blend between pixels; outside the map, values are 0.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/image/movement.h"
#include "refurbish_tf/cc/image/targets/places.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"
#include "refurbish_tf/cc/image/targets/target_kind.h"

namespace refurbish_tf {

// The numbers are rounded to the stored type after each layer, so it makes no
// difference which layers are in one op. `Value`: float or double.
template <class Value>
class BlendedMap : public MapCanvas {
 public:
  // The forms of these maps. Numbers that are directions also change:
  // - kBlendedMap: numbers that mean the same everywhere.
  // - kFlow: optical flow, vectors of two channels, x before y, in pixels. They
  //   are rotated, mirrored and scaled with their images.
  // - kVectors: x, y and z, where z stays, or x and y of several vectors. They
  //   are rotated and mirrored with their images, and keep their length.
  // - kDisparity: how far apart in a row two side-by-side views show the same
  //   thing. If images are mirrored or rotated, they have no disparity.
  using Form = TargetKind::Form;

  // `values`: the numbers of `frames` maps of this size, which all move in the
  // same way. `rounded`: rounds to the nearest number that can be stored.
  BlendedMap(Form form, ImageSize size, int64_t channels, int64_t frames,
             std::vector<Value> values, Value (*rounded)(Value))
      : form_(form),
        size_(size),
        channels_(channels),
        frames_(frames),
        values_(std::move(values)),
        rounded_(rounded) {}

  const std::vector<Value>& values() const { return values_; }
  // The largest change by a layer that the map cannot follow.
  Movement refused() const { return refused_; }

  ImageSize size() const override { return size_; }
  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;
  void Displace(const Displacement& displacement) override {
    Blend(DisplacementField(displacement, size_));
    if (form_ != Form::kBlendedMap) Refuse(Movement::kBends);
  }

 private:
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  // Replaces all maps by maps of this size, which `make(from, to)` fills.
  template <class Make>
  void Remake(ImageSize size, const Make& make);
  // Blends each pixel from the pixels around its place in the source.
  void Blend(PlaceMap source);

  bool has_vectors() const {
    return form_ == Form::kFlow || form_ == Form::kVectors;
  }
  // Calls change(y, x, vector) for each vector, then rounds all numbers.
  template <class Change>
  void ChangeVectors(const Change& change);
  void MoveVectors(const Projection& source, const Projection& to);
  void ScaleDisparity(double by);
  void RoundAll();
  void Refuse(Movement movement);

  const Form form_;
  ImageSize size_;
  const int64_t channels_, frames_;
  std::vector<Value> values_;
  Value (*const rounded_)(Value);
  Movement refused_ = Movement::kNone;
};

}  // namespace refurbish_tf
