#pragma once

#include "refurbish_tf/cc/image/distortion_kernels.h"

namespace refurbish_tf {

// The loops only run on CPUs with AVX2 or NEON.
const DistortionKernels& VectorDistortions();

}  // namespace refurbish_tf
