#pragma once

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Null where the processor has neither AVX2 nor NEON.
const PixelKernels* VectorKernels();

inline const PixelKernels& BestKernels() {
  const PixelKernels* const vector = VectorKernels();
  return vector != nullptr ? *vector : PlainKernels();
}

}  // namespace refurbish_tf
