// Bilinear resizing of a part of an image, as `tf.image.resize` does it; and
// blur, which is a resize to the same size with other weights.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "refurbish_tf/cc/image/gaussian.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// A part of an image in which pixel i goes from i to i + 1.
struct ResizeWindow {
  double y, x, height, width;
};

// The weights that make `output` points of `input` ones, or of the part of them
// of `length` from `begin` on. In the form of PixelKernels.
class Blend {
 public:
  Blend(int64_t input, double begin, double length, int64_t output,
        bool antialias);
  explicit Blend(const GaussianAxis& axis, int64_t size);

  // Reverses the order of the output.
  void Reverse();

  int64_t pairs() const { return pairs_; }
  const std::vector<int32_t>& start() const { return start_; }
  const std::vector<int16_t>& weights() const { return weights_; }
  // The weights of one point, pair after pair.
  void WeightsOf(int64_t point, int16_t* weights) const;

 private:
  // Sets those of a point, which must add up to `total`: `weight(k)` of the
  // k-th of `count` points.
  template <class Weight>
  void Set(int64_t point, int64_t count, double total, const Weight& weight);

  int64_t pairs_;
  std::vector<int32_t> start_;
  std::vector<int16_t> weights_;
};

// Makes rows of a resized part of an image.
class Resizer {
 public:
  virtual ~Resizer() = default;

  // Reverses the columns.
  virtual void Mirror() = 0;
  virtual void Rows(int64_t begin, int64_t count, uint8_t* to) = 0;
};

// Pixels in memory, which must outlive what reads them.
struct PixelRows {
  const uint8_t* memory;
  int64_t width;
  Pixel pixel;
};

// Resizes a window in a box of the image, and takes pixels of the box alone.
// Bytes are resized in fixed point. Others as floats, and all of the box.
std::unique_ptr<Resizer> MakeResizer(const PixelRows& image, const Box& box,
                                     const ResizeWindow& window, ImageSize size,
                                     bool antialias,
                                     const PixelKernels& kernels);

// Blurs all of an image.
std::unique_ptr<Resizer> MakeBlur(const PixelRows& image, ImageSize size,
                                  const Gaussian& gaussian,
                                  const PixelKernels& kernels);

// Of bytes.
class ByteResizer : public Resizer {
 public:
  ByteResizer(const PixelRows& image, const Box& box,
              const ResizeWindow& window, ImageSize size, bool antialias,
              const PixelKernels& kernels);
  // Of a box, with the weights of these rows and columns.
  ByteResizer(const PixelRows& image, const Box& box, Blend rows, Blend columns,
              const PixelKernels& kernels);

  void Mirror() override { columns_.Reverse(); }
  void Rows(int64_t begin, int64_t count, uint8_t* to) override;

 private:
  // Writes a row of the result in words, as wide as the box.
  void BlendRow(int64_t row, int16_t* to);

  const uint8_t* const part_;
  const int64_t stride_, channels_, width_;
  const Box box_;
  const PixelKernels& kernels_;
  const Blend rows_;
  Blend columns_;
  // Two rows.
  std::vector<int16_t> blended_;
  std::vector<const uint8_t*> sources_;
  std::vector<int16_t> weights_;
};

}  // namespace refurbish_tf
