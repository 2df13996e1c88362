// Maps whose numbers are directions in the image, or say where a pixel is in a
// second image, which is cropped, flipped, resized and turned alike.
#pragma once

#include "refurbish_tf/cc/image/targets/blended_map.h"

namespace refurbish_tf {

// An optical flow: vectors of two channels, x before y, in pixels. They turn,
// are mirrored and become longer with their images.
template <class Value>
class FlowMap : public BlendedMap<Value> {
 public:
  using BlendedMap<Value>::BlendedMap;

  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

 private:
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  // Calls change(y, x, vector) of each vector.
  template <class Change>
  void ChangeVectors(const Change& change);
  virtual bool keeps_length() const { return false; }
};

// Directions: x, y and z, of which z stays, or x and y of each of several. They
// turn and are mirrored with their images, and keep their length.
template <class Value>
class VectorMap : public FlowMap<Value> {
 public:
  using FlowMap<Value>::FlowMap;

 private:
  bool keeps_length() const override { return true; }
};

// The disparity of two views: how far apart in a row both show the same. There
// is none once they are mirrored or turned.
template <class Value>
class DisparityMap : public BlendedMap<Value> {
 public:
  using BlendedMap<Value>::BlendedMap;

  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

 private:
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  void Scale(double by);
};

}  // namespace refurbish_tf
