// The random resized crop of Deep AutoAugment: by bicubic interpolation, in the
// arithmetic of TensorFlow's `ScaleAndTranslate` with the cubic kernel of Keys
// and antialiasing, step by step in float32.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// The part of an image that a resized crop takes. `draws`: four numbers below
// 2^23.
Box BicubicBox(const int32_t* draws, ImageSize size);

// Resizes the box to the size of the image, which has 3 channels.
void ResizeBicubic(const uint8_t* image, ImageSize size, const Box& box,
                   const PixelKernels& kernels, uint8_t* to);

}  // namespace refurbish_tf
