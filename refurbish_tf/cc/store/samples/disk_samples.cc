#include "refurbish_tf/cc/store/samples/disk_samples.h"

#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/samples/sample_codec.h"

namespace refurbish_tf {
namespace {

bool Decode(DiskStore& disk, RecordBuffer record, Sample* sample,
            Generation* found) {
  const uint32_t index = record.header().index;
  *found = record.header().generation;
  if (DecodeSample(std::move(record), sample)) return true;
  // Whole, but not written by us.
  disk.Discard(index, *found);
  return false;
}

}  // namespace

class DiskSamples::SamplesAhead : public ReadAhead {
 public:
  explicit SamplesAhead(DiskStore* disk) : disk_(*disk), ahead_(disk) {}

  size_t Room() const override { return ahead_.Room(); }
  void Want(const std::vector<WantedSample>& wanted) override {
    ahead_.Want(wanted);
  }
  void Start() override { ahead_.Start(); }
  bool Get(const WantedSample& wanted, Sample* sample, Generation* found,
           bool* foreign) override {
    RecordBuffer record;
    if (!ahead_.Get(wanted, &record, foreign)) return false;
    if (!wanted.position.has_value()) {
      return Decode(disk_, std::move(record), sample, found);
    }
    *found = record.header().generation;
    return DecodeSample(std::move(record), sample);
  }

 private:
  DiskStore& disk_;
  DiskReadAhead ahead_;
};

bool DiskSamples::Get(uint64_t index, GenerationRange wanted, Sample* sample,
                      Generation* found) {
  RecordBuffer record;
  return disk_->Get(index, wanted, &record) &&
         Decode(*disk_, std::move(record), sample, found);
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
  return std::make_unique<SamplesAhead>(disk_.get());
}

}  // namespace refurbish_tf
