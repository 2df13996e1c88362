// Where in memory a sample is, and how that memory goes back to the system.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

// The size of a huge page.
inline constexpr uint64_t kRegionBytes = 1 << 21;

// The region in which the sample's largest part begins.
uint64_t RegionOf(const std::vector<tensorflow::Tensor>& sample);

// Before a sample is freed, gives the pages that only it uses back to the
// system. TensorFlow's pool of large tensors would keep them.
void ReturnPagesOf(const std::vector<tensorflow::Tensor>& sample);

}  // namespace refurbish_tf
