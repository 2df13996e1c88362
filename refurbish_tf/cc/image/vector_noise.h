#pragma once

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf::vectors {

// Sets the loops that add noise. They only run on CPUs with AVX2 or NEON.
void SetNoise(PixelKernels* kernels);

}  // namespace refurbish_tf::vectors
