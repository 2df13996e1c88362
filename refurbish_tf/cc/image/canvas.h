// Layers change an image through this interface. A layer is written once:
// `Painter` applies its operations to the pixels of an image, and other
// canvases to the image's targets, so the targets always follow the image.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/prepared_distortion.h"

namespace refurbish_tf {

struct AddedNoise;
struct Displacement;

class Canvas {
 public:
  // Applies the operations of branch `number`, from 0 on.
  using Branch = absl::FunctionRef<void(int number, Canvas* canvas)>;

  virtual ~Canvas() = default;

  // The size of the image after all operations so far.
  virtual ImageSize size() const = 0;
  // The boxes whose area is above 0, if this canvas holds boxes.
  virtual std::vector<Edges> boxes() const { return {}; }

  // Crops the image to a part, which may extend beyond the edges. `border` says
  // what fills the space there: for `kEmpty`, it is `color`. A border can only
  // mirror pixels that the image has.
  virtual void Crop(const Box& part, Border border, FillColor color) = 0;
  // Drops boxes whose center is not within the part.
  virtual void KeepWithin(const Box& /*part*/) {}
  // Mirrors left and right or, if `vertically`, top and bottom.
  virtual void Flip(bool vertically) = 0;
  virtual void Transpose() = 0;
  // Fills a part with a color. The part may extend beyond the edges.
  virtual void CutOut(const Box& part, FillColor color) = 0;
  // The mean of all values of a float32 image; 0 for targets.
  virtual float Mean() { return 0; }
  // Resizes a part to a size. Pixels are interpolated bilinearly.
  virtual void Resize(const Box& part, ImageSize size, bool antialias) = 0;
  // Resizes a part to the size of the whole image, by bicubic interpolation.
  virtual void ResizeBicubic(const Box& part) = 0;
  // Blurs the image, after extending it by reflection at its outermost pixels.
  virtual void Blur(const Gaussian& gaussian) = 0;
  // The image must have three channels or one. Changes of color leave a single
  // channel unchanged. `fill` is the value of pixels from outside the image.
  virtual void Distort(const PreparedDistortion& distortion, uint8_t fill) = 0;
  // Displaces each pixel by a random field, which is the same for each frame.
  virtual void Displace(const Displacement& displacement) = 0;
  virtual void AddNoise(const AddedNoise& noise) = 0;
  // Replaces each value by value * scale + offset, as float32.
  virtual void Rescale(float scale, float offset) = 0;
  // `normalization` must outlive the canvas.
  virtual void Normalize(const Normalization& normalization) = 0;
  // Replaces an image of bytes by a sum, truncated to bytes, of what each
  // branch makes of it, by its weight. Branches keep the size of the image. The
  // weights are at least 0 and their sum is 1.
  virtual void Blend(const std::vector<float>& weights, Branch branch) = 0;
};

}  // namespace refurbish_tf
