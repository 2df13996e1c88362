// What an epoch has decided about each of its samples.
#pragma once

#include <cstdint>
#include <vector>

namespace refurbish_tf {

enum class SampleState : uint8_t {
  // Nothing is decided yet.
  kOpen,
  // Requested from the source, which yields it to be prepared.
  kAsked,
  // Not needed from the source: it was taken from the store, is being read from
  // the store or the ring, or was already yielded.
  kFound,
  // To be looked up in the store again when the order has been walked. Until
  // then, the sample is not taken from the source.
  kDeferred,
};

// Takes two bits per sample. A sample is kOpen until its state is set.
class SampleStates {
 public:
  void Resize(uint32_t num_samples) { bytes_.resize(num_samples / 4 + 1); }
  SampleState operator[](uint32_t index) const {
    return index / 4 < bytes_.size()
               ? SampleState(bytes_[index / 4] >> 2 * (index % 4) & 3)
               : SampleState::kOpen;
  }
  void Set(uint32_t index, SampleState state) {
    if (index / 4 >= bytes_.size()) bytes_.resize(index / 4 + 1);
    uint8_t& byte = bytes_[index / 4];
    const int shift = 2 * (index % 4);
    byte = (byte & ~(3 << shift)) | static_cast<uint8_t>(state) << shift;
  }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace refurbish_tf
