// A store of samples that keeps them on disk: encodes tensors as records.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/cooperation/shared/shared_cooperation.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {

class DiskSamples : public SampleStore, private SampleMap<Sample> {
 public:
  static absl::StatusOr<std::shared_ptr<SampleStore>> Open(
      const std::string& directory, int64_t max_bytes, bool overwrite,
      bool must_exist);
  explicit DiskSamples(std::unique_ptr<DiskStore> disk)
      : disk_(std::move(disk)), shared_(disk_.get()) {}
  ~DiskSamples() override { delete types_.load(); }

  // Implements SampleStore.
  SampleMap<Sample>& store() override { return *this; }
  Cooperation& cooperation() override { return shared_; }
  Shard Keys(const Shard& shard) const override { return shard; }
  PutResult PutInTransit(uint64_t index, Generation generation,
                         const Sample& sample) override;
  int64_t Bytes(const Sample& sample) const override;
  int64_t FixedBytes(const SampleTypes& types) const override;
  Limits limits() const override {
    return {Index::kMaxSamples, static_cast<int64_t>(kMaxRecord)};
  }
  absl::Status Reserve(const std::string& stage, std::weak_ptr<void> alive,
                       const SampleTypes& types) override;
  absl::Status CheckDirectory() const override {
    return disk_->CheckDirectory();
  }
  SourceChecksums* source_sums() override { return &disk_->source_sums(); }
  PutResult PutElement(uint64_t index, Generation generation,
                       Sample* element) override {
    return Put(index, generation, *element);
  }
  NamedNumbers Counts() override;
  absl::StatusOr<std::pair<int64_t, int64_t>> Verify() override {
    return disk_->Verify();
  }

 private:
  class SamplesAhead;

  // Implements SampleMap.
  int64_t max_bytes() const override { return disk_->max_bytes(); }
  bool shared() const override { return true; }
  void LookUp(Lookup* lookups, size_t count) override;
  bool Contains(uint64_t index, GenerationRange wanted) override {
    return disk_->Contains(index, wanted);
  }
  Generation StoredGeneration(uint64_t index) const override {
    return disk_->StoredGeneration(index);
  }
  PutResult Put(uint64_t index, Generation generation, Sample sample) override;
  std::vector<uint64_t> Indices() const override { return disk_->Indices(); }
  bool Remove(uint64_t index, bool evict) override {
    return disk_->Remove(index, evict);
  }
  void Clear() override { disk_->Clear(); }
  SampleMapStats Stats() const override { return disk_->Stats(); }
  std::unique_ptr<ReadAhead> MakeReadAhead() override;

  absl::StatusOr<PutResult> PutNow(uint64_t index, Generation generation,
                                   Sample sample) override;

  // Decodes a record that was counted as a hit. If it cannot be used, counts a
  // miss instead, and removes it from the store unless it was `in_transit`.
  bool Decode(RecordBuffer record, bool in_transit, Sample* sample,
              Generation* found);

  const std::unique_ptr<DiskStore> disk_;
  SharedCooperation shared_;
  // Set by the first `Reserve`. Stored samples of other types count as missing.
  std::atomic<const SampleTypes*> types_{nullptr};
};

}  // namespace refurbish_tf
