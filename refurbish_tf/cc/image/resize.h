// Bilinear resizing of a part of an image, as `tf.image.resize` does it.
#ifndef REFURBISH_TF_CC_IMAGE_RESIZE_H_
#define REFURBISH_TF_CC_IMAGE_RESIZE_H_

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

struct Box {
  int64_t y, x, height, width;
};

// The part of an image that a random resized crop takes.
Box ResizedCropBox(const Layer& layer, const int32_t* draws, ImageSize image);

// The weights that make `output` places of `input` ones. In the form of
// PixelKernels.
class Blend {
 public:
  Blend(int64_t input, int64_t output, bool antialias);

  // Reverses the order of the output.
  void Reverse();

  int64_t pairs() const { return pairs_; }
  const std::vector<int32_t>& start() const { return start_; }
  const std::vector<int16_t>& weights() const { return weights_; }
  // The weights of one place, pair after pair.
  void WeightsOf(int64_t place, int16_t* weights) const;

 private:
  int64_t pairs_;
  std::vector<int32_t> start_;
  std::vector<int16_t> weights_;
};

// Makes rows of the resized part.
class Resizer {
 public:
  // `image` is the whole image, which must outlive this.
  Resizer(const uint8_t* image, int64_t image_width, int64_t channels,
          const Box& box, ImageSize size, bool antialias,
          const PixelKernels& kernels);

  // Reverses the columns.
  void Mirror() { columns_.Reverse(); }

  void Rows(int64_t begin, int64_t count, uint8_t* to);

 private:
  const uint8_t* const part_;
  const int64_t stride_, channels_, width_;
  const Box box_;
  const PixelKernels& kernels_;
  const Blend rows_;
  Blend columns_;
  std::vector<int16_t> blended_;
  std::vector<const uint8_t*> sources_;
  std::vector<int16_t> weights_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_RESIZE_H_
