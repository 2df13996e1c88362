// The cache store on disk as a store of samples: encodes tensors as records.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

class DiskSamples : public CacheStore<Sample> {
 public:
  explicit DiskSamples(std::unique_ptr<DiskStore> disk)
      : disk_(std::move(disk)) {}
  ~DiskSamples() override { delete types_.load(); }

  DiskStore& disk() { return *disk_; }

  // From the first call on, a sample that `types` do not allow is missing.
  // False if another call has given others.
  bool Expect(const SampleTypes& types);

  int64_t max_bytes() const override { return disk_->max_bytes(); }
  bool shared() const override { return true; }
  bool Get(uint64_t index, GenerationRange wanted, Sample* sample,
           Generation* found) override;
  bool Take(uint64_t index, GenerationRange wanted, Sample* sample,
            Generation* found) override {
    return Get(index, wanted, sample, found);
  }
  bool Contains(uint64_t index, GenerationRange wanted) override {
    return disk_->Contains(index, wanted);
  }
  Generation StoredGeneration(uint64_t index) const override {
    return disk_->StoredGeneration(index);
  }
  PutResult Put(uint64_t index, Generation generation, Sample sample) override;
  PutResult PutInTransit(uint64_t index, Generation generation,
                         const Sample& sample);
  std::vector<uint64_t> Indices() const override { return disk_->Indices(); }
  bool Evict(uint64_t index) override { return disk_->Remove(index, true); }
  bool Remove(uint64_t index) override { return disk_->Remove(index, false); }
  void Clear() override { disk_->Clear(); }
  CacheStoreStats Stats() const override { return disk_->StoreStats(); }
  std::unique_ptr<ReadAhead> MakeReadAhead() override;

 private:
  class SamplesAhead;

  // Decodes a record that was a hit. Where it cannot be used, which then is a
  // miss, removes it from the store, unless it was `in_transit`.
  bool Decode(RecordBuffer record, bool in_transit, Sample* sample,
              Generation* found);

  const std::unique_ptr<DiskStore> disk_;
  std::atomic<const SampleTypes*> types_{nullptr};  // Set once.
};

}  // namespace refurbish_tf
