#include "refurbish_tf/cc/sample_store/disk_samples.h"

#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/sample_store/sample_codec.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"

namespace refurbish_tf {

class DiskSamples::SamplesAhead : public ReadAhead {
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

bool DiskSamples::Decode(RecordBuffer record, bool in_transit, Sample* sample,
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

void DiskSamples::LookUp(Lookup* lookups, size_t count) {
  for (Lookup* lookup = lookups; lookup < lookups + count; ++lookup) {
    RecordBuffer record;
    lookup->hit = disk_->Get(lookup->index, lookup->wanted, &record) &&
                  Decode(std::move(record), /*in_transit=*/false,
                         &lookup->sample, &lookup->generation);
  }
}

PutResult DiskSamples::Put(uint64_t index, Generation generation,
                           Sample sample) {
  EncodedSample encoded;
  // Fails only for samples above 4 GiB and for variants that hold no tensors.
  if (!EncodedSample::Encode(sample, &encoded).ok()) return PutResult::kFailed;
  return disk_->Put(index, generation, encoded.parts());
}

PutResult DiskSamples::PutInTransit(uint64_t index, Generation generation,
                                    const Sample& sample) {
  EncodedSample encoded;
  if (!EncodedSample::Encode(sample, &encoded).ok()) return PutResult::kFailed;
  return disk_->PutInTransit(index, generation, encoded.parts());
}

std::unique_ptr<DiskSamples::ReadAhead> DiskSamples::MakeReadAhead() {
  return std::make_unique<SamplesAhead>(this);
}

absl::StatusOr<std::shared_ptr<SampleStore>> DiskSamples::Open(
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

int64_t DiskSamples::Bytes(const Sample& sample) const {
  EncodedSample encoded;
  if (!EncodedSample::Encode(sample, &encoded).ok()) return 0;
  uint64_t size = sizeof(RecordHeader);
  for (const iovec& part : encoded.parts()) size += part.iov_len;
  return RecordSpace(size);
}

int64_t DiskSamples::FixedBytes(const SampleTypes& types) const {
  const int64_t bytes = FixedEncodedBytes(types);
  return bytes < 0 ? bytes : RecordSpace(sizeof(RecordHeader) + bytes);
}

absl::Status DiskSamples::Reserve(const std::string& /*stage*/,
                                  std::weak_ptr<void> /*alive*/,
                                  const SampleTypes& types) {
  RTF_RETURN_IF_ERROR(CheckEncodable(types.dtypes));
  auto own = std::make_unique<const SampleTypes>(types);
  const SampleTypes* before = nullptr;
  if (types_.compare_exchange_strong(before, own.get())) before = own.release();
  if (*before == types) return CheckDirectory();
  return FailedPrecondition(
      "This CacheStore is in use by a refurbish stage whose samples have other "
      "types or shapes. Use one CacheStore for one kind of sample.");
}

NamedNumbers DiskSamples::Counts() {
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

absl::StatusOr<PutResult> DiskSamples::PutNow(uint64_t index,
                                              Generation generation,
                                              Sample sample) {
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
  return StoredGeneration(index) == kNoGeneration ? PutResult::kFailed : result;
}

}  // namespace refurbish_tf
