// The random resized crop of Deep AutoAugment. It repeats the float32
// arithmetic of TensorFlow's `ScaleAndTranslate` op (cubic kernel of Keys, with
// antialiasing) step by step.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Returns the crop of an image. `draws`: four numbers below 2^23, for the area,
// the aspect ratio, y and x.
Box BicubicBox(const int32_t* draws, ImageSize size);

// Resizes the box to the size of the whole image, which has 3 channels.
void ResizeBicubic(const uint8_t* image, ImageSize size, const Box& box,
                   const PixelKernels& kernels, uint8_t* to);

}  // namespace refurbish_tf
