// The cache store in memory, used by one stage.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "refurbish_tf/cc/sample_store/packed_memory.h"
#include "refurbish_tf/cc/sample_store/sample_memory.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/store/memory/memory_store.h"

namespace refurbish_tf {

// Keeps small tensors in PackedMemory.
class PackedSamples : public MemoryStore<Sample> {
 public:
  explicit PackedSamples(int64_t max_bytes);
  ~PackedSamples() override { Clear(); }

  PutResult Put(uint64_t index, Generation generation, Sample sample) override;
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
      ABSL_LOCKS_EXCLUDED(mu_);
  PutResult PutElement(uint64_t index, Generation generation,
                       Sample* element) override;

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
