// Reads seeds and layers from the inputs and attributes of image ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace refurbish_tf {

inline absl::StatusOr<ImageSeed> ParseSeed(const Tensor& tensor) {
  if (tensor.dims() != 1 || tensor.dim_size(0) != 2) {
    return InvalidArgument("`seed` must be of shape [2], got ",
                           tensor.shape().DebugString(), ".");
  }
  if (tensor.dtype() == tensorflow::DT_INT32) {
    const auto values = tensor.vec<int32_t>();
    return ImageSeed(values(0), values(1));
  }
  const auto values = tensor.vec<int64_t>();
  return ImageSeed(values(0), values(1));
}

inline absl::Status ParseLayers(tensorflow::AttrSlice attributes,
                                LayerChain* chain) {
  std::vector<std::string> texts;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attributes, "layers", &texts));
  TF_ASSIGN_OR_RETURN(*chain, LayerChain::Parse(texts));
  return absl::OkStatus();
}

}  // namespace refurbish_tf
