// In place of vector_kernels.cc, for the plain loops alone.
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {

const PixelKernels* VectorKernels() { return nullptr; }

}  // namespace refurbish_tf
