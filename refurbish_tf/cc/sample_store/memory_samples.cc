#include "refurbish_tf/cc/sample_store/memory_samples.h"

#include "tensorflow/core/common_runtime/dma_helper.h"

namespace refurbish_tf {
namespace {

using tensorflow::Tensor;

// Prefetches the tensors, then their buffers, which hold reference counts.
void PrefetchSamples(const Sample* const* samples, size_t count) {
  for (size_t i = 0; i < count; ++i) __builtin_prefetch(samples[i]->data());
  for (size_t i = 0; i < count; ++i) {
    for (const Tensor& tensor : *samples[i]) {
      __builtin_prefetch(tensorflow::DMAHelper::buffer(&tensor));
    }
  }
}

}  // namespace

PackedSamples::PackedSamples(int64_t max_bytes)
    : MemoryStore(max_bytes, SampleBytes, PrefetchSamples) {}

PutResult PackedSamples::Put(uint64_t index, Generation generation,
                             Sample sample) {
  for (Tensor& tensor : sample) tensor = memory_->Copy(tensor);
  return MemoryStore::Put(index, generation, std::move(sample));
}

absl::Status MemorySamples::Reserve(const std::string& stage,
                                    std::weak_ptr<void> alive,
                                    const SampleTypes& types) {
  absl::MutexLock lock(&mu_);
  if (!stage_alive_.expired()) {
    if (stage == stage_) return absl::OkStatus();
    return FailedPrecondition(
        "This CacheStore is in use by another refurbish stage or by cached, "
        "whose samples have the same indices. Give each stage a CacheStore of "
        "its own.");
  }
  if (stage_.empty() && store_.Stats().entries > 0) {
    return Cooperation::SamplesPutByHand();
  }
  store_.Clear();
  dtypes_ = types.dtypes;
  stage_ = stage;
  stage_alive_ = std::move(alive);
  return absl::OkStatus();
}

PutResult MemorySamples::PutElement(uint64_t index, Generation generation,
                                    Sample* element) {
  // Checked before copying, because a full store would drop the copies.
  if (!store_.HasRoom(SampleBytes(*element))) return PutResult::kNoRoom;
  OwnBuffers(element);
  return store_.PutShared(index, generation, *element);
}

}  // namespace refurbish_tf
