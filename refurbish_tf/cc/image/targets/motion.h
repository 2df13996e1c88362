// Maps whose numbers are directions in the image, or say where a pixel is in a
// second image, which layers change in the same way.
#pragma once

#include "refurbish_tf/cc/image/targets/blended_map.h"

namespace refurbish_tf {

// Optical flow: vectors of two channels, x before y, in pixels. They are
// rotated, mirrored and scaled with their images.
template <class Value>
class FlowMap : public BlendedMap<Value> {
 public:
  using BlendedMap<Value>::BlendedMap;

  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

 private:
  void Take(const Plan& plan) override;
  void MoveBy(const PreparedDistortion& distortion) override;
  // Calls change(y, x, vector) for each vector.
  template <class Change>
  void ChangeVectors(const Change& change);
  virtual bool keeps_length() const { return false; }
};

// Directions: x, y and z, where z stays, or x and y of several vectors. They
// are rotated and mirrored with their images, and keep their length.
template <class Value>
class VectorMap : public FlowMap<Value> {
 public:
  using FlowMap<Value>::FlowMap;

 private:
  bool keeps_length() const override { return true; }
};

// The disparity of two views: how far apart in a row they show the same thing.
// There is none if they are mirrored or rotated.
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
