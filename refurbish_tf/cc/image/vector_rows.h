#ifndef REFURBISH_TF_CC_IMAGE_VECTOR_ROWS_H_
#define REFURBISH_TF_CC_IMAGE_VECTOR_ROWS_H_

#include "refurbish_tf/cc/image/distortion_kernels.h"

namespace refurbish_tf {
namespace vectors {
namespace distortions {

// Only for processors with AVX2.
void SetRows(DistortionKernels* kernels);

}  // namespace distortions
}  // namespace vectors
}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_VECTOR_ROWS_H_
