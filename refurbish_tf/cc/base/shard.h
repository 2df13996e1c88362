// A part of a source, as `tf.data.Dataset.shard` makes it.
#pragma once

#include <cstdint>

namespace refurbish_tf {

// So that numbers of samples in the whole source have 32 bits in practice.
inline constexpr int64_t kMaxShards = 1 << 16;

// Every `count`-th sample of the whole source, from the one at `index` on.
struct Shard {
  uint32_t index = 0;
  uint32_t count = 1;

  // The number in the whole source of the shard's `sample`-th one.
  uint64_t InWhole(uint64_t sample) const {
    return index + uint64_t{count} * sample;
  }
  bool Has(uint64_t in_whole) const { return in_whole % count == index; }
  // The number in the shard of a sample that it has.
  uint64_t InShard(uint64_t in_whole) const { return in_whole / count; }
  // How many samples the shard has of so many.
  uint64_t Size(uint64_t whole) const {
    return (whole + count - 1 - index) / count;
  }
};

}  // namespace refurbish_tf
