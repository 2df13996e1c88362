// Canvases of targets, which follow the pixels of an image. Colors, blur, noise
// and cutouts do not change them: a cutout only hides what an image shows.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/displacement.h"
#include "refurbish_tf/cc/image/plan.h"

namespace refurbish_tf {

class TargetCanvas : public Canvas {
 public:
  void CutOut(const Box& /*part*/, FillColor /*color*/) final {}
  void Blur(const Gaussian& /*gaussian*/) final {}
  void AddNoise(const AddedNoise& /*noise*/) final {}
  void Rescale(float /*scale*/, float /*offset*/) final {}
  void Normalize(const Normalization& /*normalization*/) final {}
  // Targets cannot follow, so Python code refuses them with such a layer.
  void Blend(const std::vector<float>& /*weights*/, Branch /*branch*/) final {}
  // Only images are resized bicubically.
  void ResizeBicubic(const Box& part) final {
    Resize(part, size(), /*antialias=*/true);
  }
  void Distort(const PreparedDistortion& distortion, uint8_t /*fill*/) final {
    if (MovesPixels(distortion.distortion)) MoveBy(distortion);
  }

 private:
  // Applies a distortion that moves pixels.
  virtual void MoveBy(const PreparedDistortion& distortion) = 0;
};

// A map, whose values move like pixels.
class MapCanvas : public TargetCanvas {
 public:
  void Crop(const Box& part, Border border, FillColor /*color*/) final {
    Plan plan(size());
    plan.Crop(part, border);
    Take(plan);
  }
  void Flip(bool vertically) final {
    Plan plan(size());
    plan.Flip(vertically);
    Take(plan);
  }

 private:
  // Makes a map of the rows and columns of a plan. Empty places become 0.
  virtual void Take(const Plan& plan) = 0;
};

}  // namespace refurbish_tf
