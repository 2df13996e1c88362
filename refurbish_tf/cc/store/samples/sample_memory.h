// Where in memory a sample is, and how that memory goes back to the system.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

// The memory of a huge page.
inline constexpr uint64_t kRegionBytes = 1 << 21;

// The region in which the sample's largest part begins.
uint64_t RegionOf(const std::vector<tensorflow::Tensor>& sample);

// Gives the pages of what only this sample has back to the system before it is
// freed. TensorFlow's pool of large tensors would keep them.
void ReturnPagesOf(const std::vector<tensorflow::Tensor>& sample);

}  // namespace refurbish_tf
