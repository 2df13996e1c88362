#pragma once

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf::vectors {

// Only for processors with AVX2.
void SetMixing(PixelKernels* kernels);

}  // namespace refurbish_tf::vectors
