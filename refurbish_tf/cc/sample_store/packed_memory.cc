#include "refurbish_tf/cc/sample_store/packed_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "refurbish_tf/cc/base/memory.h"
#include "refurbish_tf/cc/sample_store/sample_memory.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

using tensorflow::Tensor;

namespace {

constexpr size_t kSlotAlignment = tensorflow::Allocator::kAllocatorAlignment;
// Smaller tensors are not packed: their bookkeeping takes more than the data.
constexpr size_t kLeastPacked = 512;
// Tensors of up to kMostOfAnySize bytes are packed. Larger ones, which only
// large pages allow, are packed while they have few sizes: with many sizes,
// most slots would stay empty, while the C library fills its holes.
constexpr size_t kMostOfAnySize = 8192, kFewSizes = 16;
constexpr size_t kSlabBytes = 1 << 20;
static_assert(kRegionBytes % kSlabBytes == 0);

// Memory for a slab, aligned so that it is in one region. Null without memory.
char* MapSlab() {
  void* const mapped = mmap(nullptr, 2 * kSlabBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  // If aligned, keeps the second half: the next slab then fits into the first.
  const size_t before =
      kSlabBytes - reinterpret_cast<uintptr_t>(mapped) % kSlabBytes;
  munmap(begin, before);
  if (before < kSlabBytes) {
    munmap(begin + before + kSlabBytes, kSlabBytes - before);
  }
  return begin + before;
}

}  // namespace

struct PackedMemory::Slab {
  explicit Slab(size_t slot_bytes)
      : slot_bytes(slot_bytes), memory(MapSlab()) {}
  ~Slab() {
    if (memory == nullptr) return;
    // Returns the pages even if the process has too many mappings for munmap.
    ReturnPages(memory, kSlabBytes);
    munmap(memory, kSlabBytes);
  }

  size_t num_slots() const { return kSlabBytes / slot_bytes; }

  const size_t slot_bytes;
  char* const memory;
  size_t num_used = 0;
  // How many slots were ever used. The others have no pages yet.
  size_t num_begun = 0;
  // The head of the list of returned slots. Each holds the next one's address.
  char* free = nullptr;
  // Its index among the slabs of this size in `with_room_`.
  size_t place = 0;
};

class PackedMemory::Buffer : public tensorflow::TensorBuffer {
 public:
  Buffer(char* slot, size_t bytes, Slab* slab,
         std::shared_ptr<PackedMemory> memory)
      : TensorBuffer(slot),
        bytes_(bytes),
        slab_(slab),
        memory_(std::move(memory)) {}
  ~Buffer() override { memory_->Return(slab_, base<char>()); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(bytes_);
  }

 private:
  const size_t bytes_;
  Slab* const slab_;
  const std::shared_ptr<PackedMemory> memory_;
};

PackedMemory::~PackedMemory() {
  for (const auto& [_, slabs] : with_room_) {
    for (Slab* slab : slabs) delete slab;
  }
}

Tensor PackedMemory::Copy(const Tensor& tensor) {
  const size_t bytes = tensor.TotalBytes();
  if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) ||
      bytes < kLeastPacked || bytes > most_packed_) {
    return tensor;
  }
  char* slot;
  Slab* const slab = Take(bytes, &slot);
  if (slab == nullptr) return tensor;
  std::memcpy(slot, tensor.data(), bytes);
  auto* const buffer = new Buffer(slot, bytes, slab, shared_from_this());
  Tensor packed(tensor.dtype(), tensor.shape(), buffer);
  buffer->Unref();
  return packed;
}

PackedMemory::Slab* PackedMemory::Take(size_t bytes, char** slot) {
  const size_t slot_bytes =
      (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  std::lock_guard<std::mutex> lock(mu_);
  if (bytes > kMostOfAnySize && with_room_.count(slot_bytes) == 0) {
    const auto large = with_room_.upper_bound(kMostOfAnySize);
    const auto num_large = std::distance(large, with_room_.end());
    if (num_large >= static_cast<int64_t>(kFewSizes)) return nullptr;
  }
  std::vector<Slab*>& slabs = with_room_[slot_bytes];
  if (slabs.empty()) {
    auto made = std::make_unique<Slab>(slot_bytes);
    if (made->memory == nullptr) return nullptr;
    slabs.push_back(made.release());
  }
  Slab* const slab = slabs.back();
  if (slab->free == nullptr) {
    *slot = slab->memory + slab->num_begun++ * slot_bytes;
  } else {
    *slot = slab->free;
    std::memcpy(&slab->free, *slot, sizeof(slab->free));
  }
  if (++slab->num_used == slab->num_slots()) slabs.pop_back();
  return slab;
}

void PackedMemory::Return(Slab* slab, char* slot) {
  std::unique_ptr<Slab> empty;
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<Slab*>& slabs = with_room_[slab->slot_bytes];
  if (slab->num_used == slab->num_slots()) {
    slab->place = slabs.size();
    slabs.push_back(slab);
  }
  std::memcpy(slot, &slab->free, sizeof(slab->free));
  slab->free = slot;
  if (--slab->num_used > 0 || slabs.size() == 1) return;
  // Frees the empty slab, because another one of this size has room.
  slabs.back()->place = slab->place;
  slabs[slab->place] = slabs.back();
  slabs.pop_back();
  empty.reset(slab);
}

}  // namespace refurbish_tf
