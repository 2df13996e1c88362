#include "refurbish_tf/cc/store/samples/disk_samples.h"

#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/samples/sample_codec.h"

namespace refurbish_tf {

class DiskSamples::SamplesAhead : public ReadAhead {
 public:
  explicit SamplesAhead(DiskSamples* samples)
      : samples_(*samples), ahead_(&samples->disk()) {}

  size_t Room() const override { return ahead_.Room(); }
  void Want(const std::vector<WantedSample>& wanted) override {
    ahead_.Want(wanted);
  }
  void Start() override { ahead_.Start(); }
  bool Get(const WantedSample& wanted, Sample* sample, Generation* found,
           bool* foreign) override {
    RecordBuffer record;
    return ahead_.Get(wanted, &record, foreign) &&
           samples_.Decode(std::move(record), wanted.position.has_value(),
                           sample, found);
  }

 private:
  DiskSamples& samples_;
  DiskReadAhead ahead_;
};

bool DiskSamples::Expect(const SampleTypes& types) {
  auto own = std::make_unique<const SampleTypes>(types);
  const SampleTypes* before = nullptr;
  if (!types_.compare_exchange_strong(before, own.get())) {
    return *before == types;
  }
  own.release();
  return true;
}

bool DiskSamples::Decode(RecordBuffer record, bool in_transit, Sample* sample,
                         Generation* found) {
  const uint32_t index = record.header().index;
  *found = record.header().generation;
  const SampleTypes* const types = types_.load(std::memory_order_acquire);
  if (DecodeSample(std::move(record), sample) &&
      (types == nullptr || types->Allow(*sample))) {
    return true;
  }
  // Whole, but not written by a stage like this one.
  if (!in_transit) disk_->Discard(index, *found);
  Records::Counts& counts = disk_->records().counts();
  --counts.hits;
  ++counts.misses;
  return false;
}

bool DiskSamples::Get(uint64_t index, GenerationRange wanted, Sample* sample,
                      Generation* found) {
  RecordBuffer record;
  return disk_->Get(index, wanted, &record) &&
         Decode(std::move(record), /*in_transit=*/false, sample, found);
}

PutResult DiskSamples::Put(uint64_t index, Generation generation,
                           Sample sample) {
  EncodedSample encoded;
  // What cannot be encoded was refused when the stage was built.
  if (!EncodedSample::Encode(sample, &encoded).ok()) return PutResult::kFailed;
  return disk_->Put(index, generation, encoded.parts().data(),
                    encoded.parts().size());
}

PutResult DiskSamples::PutInTransit(uint64_t index, Generation generation,
                                    const Sample& sample) {
  EncodedSample encoded;
  if (!EncodedSample::Encode(sample, &encoded).ok()) return PutResult::kFailed;
  return disk_->PutInTransit(index, generation, encoded.parts().data(),
                             encoded.parts().size());
}

std::unique_ptr<DiskSamples::ReadAhead> DiskSamples::MakeReadAhead() {
  return std::make_unique<SamplesAhead>(this);
}

}  // namespace refurbish_tf
