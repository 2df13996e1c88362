// Visits the tensors of a sample, finds where in memory they are, and gives
// that memory back to the system.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/ragged_tensor_variant.h"

namespace refurbish_tf {

// Calls `visit` with a tensor and, if it returns true, also with the tensors
// inside of a variant. `AnyTensor` may be const.
template <class AnyTensor, class Visit>
void ForEachTensor(AnyTensor& tensor, const Visit& visit) {
  if (!visit(tensor) || tensor.dtype() != tensorflow::DT_VARIANT) return;
  auto flat = tensor.template flat<tensorflow::Variant>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    auto& element = flat(i);
    if (auto* component = element.template get<tensorflow::Tensor>()) {
      ForEachTensor(*component, visit);
    } else if (auto* ragged =
                   element.template get<tensorflow::RaggedTensorVariant>()) {
      if constexpr (std::is_const_v<AnyTensor>) {
        ForEachTensor(ragged->values(), visit);
        for (auto& splits : ragged->nested_splits()) {
          ForEachTensor(splits, visit);
        }
      } else {
        ForEachTensor(*ragged->mutable_values(), visit);
        for (auto& splits : *ragged->mutable_nested_splits()) {
          ForEachTensor(splits, visit);
        }
      }
    }
  }
}

// The size of a huge page.
inline constexpr uint64_t kRegionBytes = 1 << 21;

// The number of the region in which the sample's largest buffer begins.
uint64_t RegionOf(const std::vector<tensorflow::Tensor>& sample);

// Gives the pages that only this sample uses back to the system. Called before
// the sample is freed: TensorFlow's pool of large tensors would keep the pages.
void ReturnPagesOf(const std::vector<tensorflow::Tensor>& sample);

}  // namespace refurbish_tf
