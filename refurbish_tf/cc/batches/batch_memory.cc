#include "refurbish_tf/cc/batches/batch_memory.h"

#include <algorithm>

#include "refurbish_tf/cc/base/status_macros.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/util/overflow.h"

namespace refurbish_tf {
namespace {

// Smaller components are not kept, because the allocator keeps their memory.
constexpr int64_t kLeastSpareBytes = 1 << 18;
// How many spare components of each size are kept.
constexpr int kMostSpareBatches = 2;

}  // namespace

class BatchMemory::Buffer : public tensorflow::TensorBuffer {
 public:
  Buffer(void* data, size_t bytes, std::shared_ptr<BatchMemory> memory)
      : TensorBuffer(data), bytes_(bytes), memory_(std::move(memory)) {}
  ~Buffer() override { memory_->Return(data(), bytes_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(bytes_);
    description->set_allocator_name(memory_->allocator_->Name());
  }

 private:
  const size_t bytes_;
  const std::shared_ptr<BatchMemory> memory_;
};

BatchMemory::~BatchMemory() { Close(); }

void BatchMemory::Close() {
  std::vector<std::pair<size_t, void*>> spare;
  {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
    spare.swap(spare_);
  }
  for (const auto& [bytes, memory] : spare) allocator_->DeallocateRaw(memory);
}

void* BatchMemory::TakeSpare(size_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found =
      std::find_if(spare_.begin(), spare_.end(),
                   [bytes](const auto& each) { return each.first == bytes; });
  if (found == spare_.end()) return nullptr;
  void* const memory = found->second;
  spare_.erase(found);
  return memory;
}

void BatchMemory::Return(void* memory, size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto same = std::count_if(
        spare_.begin(), spare_.end(),
        [bytes](const auto& each) { return each.first == bytes; });
    if (!closed_ && same < kMostSpareBatches) {
      spare_.push_back({bytes, memory});
      return;
    }
  }
  allocator_->DeallocateRaw(memory);
}

absl::Status BatchMemory::Make(DataType type, const TensorShape& shape,
                               Tensor* tensor) {
  const int64_t bytes = tensorflow::MultiplyWithoutOverflow(
      shape.num_elements(), tensorflow::DataTypeSize(type));
  if (tensorflow::DataTypeCanUseMemcpy(type) && bytes >= kLeastSpareBytes) {
    void* memory = TakeSpare(bytes);
    if (memory == nullptr) {
      memory = allocator_->AllocateRaw(
          tensorflow::Allocator::kAllocatorAlignment, bytes);
    }
    if (memory != nullptr) {
      auto* const buffer = new Buffer(memory, bytes, shared_from_this());
      *tensor = Tensor(type, shape, buffer);
      buffer->Unref();
      return absl::OkStatus();
    }
  } else if (bytes >= 0) {
    *tensor = Tensor(allocator_, type, shape);
    if (shape.num_elements() == 0 || tensor->IsInitialized()) {
      return absl::OkStatus();
    }
  }
  return ResourceExhausted("No memory for a component of a batch of ", stage_,
                           ", of shape ", shape.DebugString(),
                           ". Pass a smaller batch_size.");
}

}  // namespace refurbish_tf
