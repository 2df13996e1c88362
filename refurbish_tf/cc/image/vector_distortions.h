#pragma once

#include "refurbish_tf/cc/image/distortion_kernels.h"

namespace refurbish_tf {

// Only for CPUs with AVX2 or NEON.
const DistortionKernels& VectorDistortions();

}  // namespace refurbish_tf
