// Replaces vector_kernels.cc, so that only the plain loops are used.
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {

const PixelKernels* VectorKernels() { return nullptr; }

}  // namespace refurbish_tf
