// What layers do. Each layer says it once, to a canvas; `Painter` does it to
// the pixels of an image, and `MaskPoints` to the places that they come from,
// so that what follows an image cannot part from it.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/prepared_distortion.h"

namespace refurbish_tf {

struct AddedNoise;

class Canvas {
 public:
  virtual ~Canvas() = default;

  // After all that has been done.
  virtual ImageSize size() const = 0;
  // The boxes with area, if this canvas holds boxes.
  virtual std::vector<Edges> boxes() const { return {}; }

  // Keeps a part of the image. The part may reach beyond its edges: `border`
  // says what is there. Mirrored pixels must be those of the image.
  virtual void Crop(const Box& part, Border border, FillColor color) = 0;
  // Gives up boxes whose middle is not within the part.
  virtual void KeepWithin(const Box& /*part*/) {}
  // Left to right, or top to bottom.
  virtual void Flip(bool vertically) = 0;
  // Swaps rows and columns.
  virtual void Transpose() = 0;
  // Empties a part, as far as it lies in the image.
  virtual void CutOut(const Box& part, FillColor color) = 0;
  // Resizes a part to a size, by bilinear interpolation.
  virtual void Resize(const Box& part, ImageSize size, bool antialias) = 0;
  // Resizes a part to the size of the image, by bicubic interpolation.
  virtual void ResizeBicubic(const Box& part) = 0;
  // Blurs it. What is beyond its edges is reflected about the outermost pixels.
  virtual void Blur(const Gaussian& gaussian) = 0;
  // Takes three channels, or one, which has no color to change.
  virtual void Distort(const PreparedDistortion& distortion, uint8_t fill) = 0;
  virtual void AddNoise(const AddedNoise& noise) = 0;
  // Makes value * scale + offset of each value, a float32.
  virtual void Rescale(float scale, float offset) = 0;
  // `normalization` must outlive this.
  virtual void Normalize(const Normalization& normalization) = 0;
};

}  // namespace refurbish_tf
