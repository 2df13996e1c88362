// A store of tensors in memory that packs nothing.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/store/memory/memory_store.h"

namespace refurbish_tf {

class PlainSamples : public SampleStore {
 public:
  SampleMap<Sample>& store() override { return store_; }
  Cooperation& cooperation() override { return alone_; }
  int64_t Bytes(const Sample& sample) const override { return SampleBytes(sample); }
  int64_t FixedBytes(const SampleTypes& types) const override { return FixedSampleBytes(types); }
  absl::Status Reserve(const std::string&, std::weak_ptr<void>, const SampleTypes&) override {
    return absl::OkStatus();
  }
  PutResult PutElement(uint64_t index, Generation generation, Sample* element) override {
    return store_.Put(index, generation, *element);
  }

 protected:
  absl::StatusOr<PutResult> PutNow(uint64_t index, Generation generation, Sample sample) override {
    return store_.Put(index, generation, std::move(sample));
  }

 private:
  MemoryStore<Sample> store_{kUnlimited, SampleBytes, [](const Sample* const*, size_t) {}};
  Cooperation alone_;
};

}  // namespace refurbish_tf
