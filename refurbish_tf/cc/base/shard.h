// A part of a source, as `tf.data.Dataset.shard` makes it.
#pragma once

#include <cstdint>

namespace refurbish_tf {

// The maximum number of shards. It is so small that in practice the number of a
// sample in the whole source fits into 32 bits.
inline constexpr int64_t kMaxShards = 1 << 16;

// Every `count`-th sample of the whole source, starting at `index`.
struct Shard {
  uint32_t index = 0;
  uint32_t count = 1;

  // The number of the shard's `sample`-th sample in the whole source.
  uint64_t InWhole(uint64_t sample) const {
    return index + uint64_t{count} * sample;
  }
  bool Has(uint64_t in_whole) const { return in_whole % count == index; }
  // The reverse of `InWhole`, for a sample that the shard has.
  uint64_t InShard(uint64_t in_whole) const { return in_whole / count; }
  // How many samples the shard has if the source has `whole`.
  uint64_t Size(uint64_t whole) const {
    return (whole + count - 1 - index) / count;
  }
};

}  // namespace refurbish_tf
