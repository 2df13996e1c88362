#ifndef REFURBISH_TF_CC_IMAGE_VECTOR_KERNELS_H_
#define REFURBISH_TF_CC_IMAGE_VECTOR_KERNELS_H_

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Null where the processor has no AVX2.
const PixelKernels* VectorKernels();

inline const PixelKernels& BestKernels() {
  const PixelKernels* const vector = VectorKernels();
  return vector != nullptr ? *vector : PlainKernels();
}

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_VECTOR_KERNELS_H_
