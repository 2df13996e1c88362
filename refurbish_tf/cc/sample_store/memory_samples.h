// The cache store in memory, used by one stage.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "refurbish_tf/cc/sample_store/packed_memory.h"
#include "refurbish_tf/cc/sample_store/sample_memory.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/store/memory/memory_store.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace refurbish_tf {

using tensorflow::Tensor;

// Prefetches the tensors, then their buffers, which hold reference counts.
inline void PrefetchSamples(const Sample* const* samples, size_t count) {
  for (size_t i = 0; i < count; ++i) __builtin_prefetch(samples[i]->data());
  for (size_t i = 0; i < count; ++i) {
    for (const Tensor& tensor : *samples[i]) {
      __builtin_prefetch(tensorflow::DMAHelper::buffer(&tensor));
    }
  }
}

// Keeps small tensors in PackedMemory.
class PackedSamples : public MemoryStore<Sample> {
 public:
  explicit PackedSamples(int64_t max_bytes)
      : MemoryStore(max_bytes, SampleBytes, PrefetchSamples) {}
  ~PackedSamples() override { Clear(); }

  PutResult Put(uint64_t index, Generation generation, Sample sample) override {
    for (Tensor& tensor : sample) tensor = memory_->Copy(tensor);
    return MemoryStore::Put(index, generation, std::move(sample));
  }
  // Shares the sample's memory instead of copying it.
  PutResult PutShared(uint64_t index, Generation generation, Sample sample) {
    return MemoryStore<Sample>::Put(index, generation, std::move(sample));
  }

 protected:
  uint64_t Region(const Sample& sample) const override {
    return RegionOf(sample);
  }
  void ReturnPages(const Sample& sample) const override {
    ReturnPagesOf(sample);
  }

 private:
  const std::shared_ptr<PackedMemory> memory_ =
      std::make_shared<PackedMemory>();
};

class MemorySamples : public SampleStore {
 public:
  explicit MemorySamples(int64_t max_bytes) : store_(max_bytes) {}

  SampleMap<Sample>& store() override { return store_; }
  Cooperation& cooperation() override { return alone_; }
  int64_t Bytes(const Sample& sample) const override {
    return SampleBytes(sample);
  }
  int64_t FixedBytes(const SampleTypes& types) const override {
    return FixedSampleBytes(types);
  }
  absl::Status Reserve(const std::string& stage, std::weak_ptr<void> alive,
                       const SampleTypes& types) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!stage_alive_.expired()) {
      if (stage == stage_) return absl::OkStatus();
      return FailedPrecondition(
          "This CacheStore is in use by another refurbish stage or by cached, "
          "whose samples have the same indices. Give each stage its own "
          "CacheStore.");
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
  PutResult PutElement(uint64_t index, Generation generation,
                       Sample* element) override {
    // Checked before copying, because a full store would drop the copies.
    if (!store_.HasRoom(SampleBytes(*element))) return PutResult::kNoRoom;
    OwnBuffers(element);
    return store_.PutShared(index, generation, *element);
  }

 protected:
  absl::StatusOr<PutResult> PutNow(uint64_t index, Generation generation,
                                   Sample sample) override {
    OwnBuffers(&sample);
    return store_.PutShared(index, generation, std::move(sample));
  }

 private:
  PackedSamples store_;
  Cooperation alone_;
  std::string stage_ ABSL_GUARDED_BY(mu_);
  std::weak_ptr<void> stage_alive_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
