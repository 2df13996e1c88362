#pragma once

#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// Null if the CPU has neither AVX2 with F16C nor NEON.
const PixelKernels* VectorKernels();

inline const PixelKernels& BestKernels() {
  const PixelKernels* const vector = VectorKernels();
  return vector != nullptr ? *vector : PlainKernels();
}

}  // namespace refurbish_tf
