#include "refurbish_tf/cc/sample_store/sample_memory.h"

#include <string>

#include "refurbish_tf/cc/base/memory.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace refurbish_tf {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::tstring;

// Smaller buffers come from the C library, which gives back memory itself once
// a region is free.
constexpr size_t kLeastReturned = 1 << 15;

// Whether TensorFlow's CPU allocator made the buffer. Memory of devices or
// files may still be in use.
bool IsOfProcessor(const TensorBuffer& buffer) {
  tensorflow::AllocationDescription description;
  buffer.FillAllocationDescription(&description);
  const std::string& name = description.allocator_name();
  return name == "cpu" || name == "mklcpu";
}

}  // namespace

uint64_t RegionOf(const std::vector<Tensor>& sample) {
  const void* largest = nullptr;
  size_t most = 0;
  const auto compare = [&](const void* data, size_t bytes) {
    if (bytes <= most) return;
    largest = data;
    most = bytes;
  };
  for (const Tensor& each : sample) {
    ForEachTensor(each, [&](const Tensor& tensor) {
      const TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(&tensor);
      if (buffer == nullptr) return false;
      compare(buffer->data(), buffer->size());
      if (tensor.dtype() == tensorflow::DT_STRING) {
        const auto flat = tensor.flat<tstring>();
        for (int64_t i = 0; i < flat.size(); ++i) {
          compare(flat(i).data(), flat(i).size());
        }
      }
      return true;
    });
  }
  return reinterpret_cast<uintptr_t>(largest) / kRegionBytes;
}

void ReturnPagesOf(const std::vector<Tensor>& sample) {
  for (const Tensor& each : sample) {
    ForEachTensor(each, [](const Tensor& tensor) {
      if (!tensor.RefCountIsOne()) return false;
      if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
        const TensorBuffer& buffer = *tensorflow::DMAHelper::buffer(&tensor);
        if (buffer.size() >= kLeastReturned && IsOfProcessor(buffer)) {
          ReturnPages(buffer.data(), buffer.size());
        }
      }
      return true;
    });
  }
}

}  // namespace refurbish_tf
