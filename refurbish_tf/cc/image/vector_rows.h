#pragma once

#include "refurbish_tf/cc/image/distortion_kernels.h"

namespace refurbish_tf::vectors::distortions {

// Sets loops that only run on CPUs with AVX2 or NEON.
void SetRows(DistortionKernels* kernels);

}  // namespace refurbish_tf::vectors::distortions
