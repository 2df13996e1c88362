#include "refurbish_tf/cc/sample_store/disk_samples.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/cooperation/shared/shared_cooperation.h"
#include "refurbish_tf/cc/sample_store/sample_codec.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"

namespace refurbish_tf {
namespace {

class DiskSamples : public SampleStore, private SampleMap<Sample> {
 public:
  explicit DiskSamples(std::unique_ptr<DiskStore> disk)
      : disk_(std::move(disk)), shared_(MakeSharedCooperation(disk_.get())) {}
  ~DiskSamples() override { delete types_.load(); }

  // Implements SampleStore.
  SampleMap<Sample>& store() override { return *this; }
  Cooperation& cooperation() override { return *shared_; }
  Shard Keys(const Shard& shard) const override { return shard; }
  PutResult PutInTransit(uint64_t index, Generation generation,
                         const Sample& sample) override {
    EncodedSample encoded;
    if (!EncodedSample::Encode(sample, &encoded).ok())
      return PutResult::kFailed;
    return disk_->PutInTransit(index, generation, encoded.parts());
  }
  int64_t Bytes(const Sample& sample) const override {
    EncodedSample encoded;
    if (!EncodedSample::Encode(sample, &encoded).ok()) return 0;
    uint64_t size = sizeof(RecordHeader);
    for (const iovec& part : encoded.parts()) size += part.iov_len;
    return RecordSpace(size);
  }
  int64_t FixedBytes(const SampleTypes& types) const override {
    const int64_t bytes = FixedEncodedBytes(types);
    return bytes < 0 ? bytes : RecordSpace(sizeof(RecordHeader) + bytes);
  }
  Limits limits() const override {
    return {Index::kMaxSamples, static_cast<int64_t>(kMaxRecord)};
  }
  absl::Status Reserve(const std::string& /*stage*/,
                       std::weak_ptr<void> /*alive*/,
                       const SampleTypes& types) override {
    RTF_RETURN_IF_ERROR(CheckEncodable(types.dtypes));
    auto own = std::make_unique<const SampleTypes>(types);
    const SampleTypes* before = nullptr;
    if (types_.compare_exchange_strong(before, own.get()))
      before = own.release();
    if (*before == types) return CheckDirectory();
    return FailedPrecondition(
        "This CacheStore is in use by a refurbish stage whose samples have other "
        "types or shapes. Use a separate CacheStore for each kind of sample.");
  }
  absl::Status CheckDirectory() const override {
    return disk_->CheckDirectory();
  }
  SourceChecksums* source_sums() override { return &disk_->source_sums(); }
  PutResult PutElement(uint64_t index, Generation generation,
                       Sample* element) override {
    return Put(index, generation, *element);
  }
  NamedNumbers Counts() override {
    const Records::Counts& counts = disk_->counts();
    const Segments::Usage usage = disk_->DiskUsage();
    NamedNumbers all = SampleStore::Counts();
    all.insert(all.end(), {{"disk_bytes", usage.disk_bytes},
                           {"segments", usage.segments},
                           {"compactions", counts.compactions},
                           {"moved_bytes", counts.bytes_moved},
                           {"corrupt", counts.corrupt},
                           {"from_other_jobs", counts.from_other_jobs},
                           {"failed_writes", counts.failed_writes},
                           {"epochs", disk_->state().epochs()},
                           {"ring_bytes", disk_->ring_bytes()},
                           {"transit_bytes_put", counts.transit_bytes_put}});
    return all;
  }
  absl::StatusOr<std::pair<int64_t, int64_t>> Verify() override {
    return disk_->Verify();
  }

 private:
  class SamplesAhead : public ReadAhead {
   public:
    explicit SamplesAhead(DiskSamples* samples)
        : samples_(*samples), ahead_(samples->disk_.get()) {}

    size_t Room() const override { return ahead_.Room(); }
    void Want(const std::vector<WantedSample>& wanted) override {
      ahead_.Want(wanted);
    }
    void Start() override { ahead_.Start(); }
    bool Get(const WantedSample& wanted, Sample* sample, Generation* found,
             bool* foreign) override {
      RecordBuffer record;
      if (!ahead_.Get(wanted, &record)) return false;
      *foreign = record.foreign;
      return samples_.Decode(std::move(record), wanted.position.has_value(),
                             sample, found);
    }

   private:
    DiskSamples& samples_;
    DiskReadAhead ahead_;
  };

  // Implements SampleMap.
  int64_t max_bytes() const override { return disk_->max_bytes(); }
  bool shared() const override { return true; }
  void LookUp(Lookup* lookups, size_t count) override {
    for (Lookup* lookup = lookups; lookup < lookups + count; ++lookup) {
      RecordBuffer record;
      lookup->hit = disk_->Get(lookup->index, lookup->wanted, &record) &&
                    Decode(std::move(record), /*in_transit=*/false,
                           &lookup->sample, &lookup->generation);
    }
  }
  bool Contains(uint64_t index, GenerationRange wanted) override {
    return disk_->Contains(index, wanted);
  }
  Generation StoredGeneration(uint64_t index) const override {
    return disk_->StoredGeneration(index);
  }
  PutResult Put(uint64_t index, Generation generation, Sample sample) override {
    EncodedSample encoded;
    // Fails only for samples above 4 GiB and for variants that hold no tensors.
    if (!EncodedSample::Encode(sample, &encoded).ok())
      return PutResult::kFailed;
    return disk_->Put(index, generation, encoded.parts());
  }
  std::vector<uint64_t> Indices() const override { return disk_->Indices(); }
  bool Remove(uint64_t index, bool evict) override {
    return disk_->Remove(index, evict);
  }
  void Clear() override { disk_->Clear(); }
  SampleMapStats Stats() const override { return disk_->Stats(); }
  std::unique_ptr<ReadAhead> MakeReadAhead() override {
    return std::make_unique<SamplesAhead>(this);
  }

  absl::StatusOr<PutResult> PutNow(uint64_t index, Generation generation,
                                   Sample sample) override {
    EncodedSample encoded;
    RTF_RETURN_IF_ERROR(EncodedSample::Encode(sample, &encoded));
    if (index >= Index::kMaxSamples) {
      return InvalidArgument(
          "index must be below 2**28 for a cache store on disk, got ", index,
          ". It is the position of the sample in the source.");
    }
    // Otherwise `DiskStore::Put` would keep a stored sample of this generation.
    Remove(index, /*evict=*/false);
    const PutResult result = disk_->Put(index, generation, encoded.parts());
    if (result != PutResult::kStored) return result;
    disk_->Flush();
    return StoredGeneration(index) == kNoGeneration ? PutResult::kFailed
                                                    : result;
  }

  // Decodes a record that was counted as a hit. If it cannot be used, counts a
  // miss instead, and removes it from the store unless it was `in_transit`.
  bool Decode(RecordBuffer record, bool in_transit, Sample* sample,
              Generation* found) {
    const uint32_t index = record.header().index;
    *found = record.header().generation;
    const SampleTypes* const types = types_.load(std::memory_order_acquire);
    if (DecodeSample(std::move(record), sample) &&
        (types == nullptr || types->Allow(*sample))) {
      return true;
    }
    // The record is intact, but holds no sample of this stage's types.
    if (!in_transit) disk_->Discard(index, *found);
    Records::Counts& counts = disk_->records().counts();
    --counts.hits;
    ++counts.misses;
    return false;
  }

  const std::unique_ptr<DiskStore> disk_;
  const std::unique_ptr<Cooperation> shared_;
  // Set by the first `Reserve`. Stored samples of other types count as missing.
  std::atomic<const SampleTypes*> types_{nullptr};
};

}  // namespace

absl::StatusOr<std::shared_ptr<SampleStore>> OpenDiskSamples(
    const std::string& directory, int64_t max_bytes, bool overwrite,
    bool must_exist) {
  DiskStoreOptions options;
  options.max_bytes = max_bytes;
  options.overwrite = overwrite;
  options.must_exist = must_exist;
  auto disk = DiskStore::Open(directory, std::move(options));
  if (disk.ok()) return std::make_shared<DiskSamples>(*std::move(disk));
  // Python raises this code as a ValueError: to the user, each of these errors
  // is a wrong argument.
  return FailedPrecondition(Printable(disk.status().message()));
}

}  // namespace refurbish_tf
