#pragma once

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Null where the processor has no AVX2.
const PixelKernels* VectorKernels();

inline const PixelKernels& BestKernels() {
  const PixelKernels* const vector = VectorKernels();
  return vector != nullptr ? *vector : PlainKernels();
}

}  // namespace refurbish_tf
