// Which part of a source a stage has, where several workers divide it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/schedule.h"

namespace refurbish_tf {

struct SourceShard {
  std::string names;  // "0 of 2", by commas if several; empty for the whole.
  int64_t num_shards = 1;
  // Which samples of the whole source these are: empty where `shard` stands
  // before stages that make other elements, as it does for file names.
  std::optional<Shard> shard = Shard();
  int64_t whole = kUnknownSamples;  // How many samples the whole source has.

  // Gives each sample the number that it has in the whole source, if that is
  // known, so that workers agree on it.
  Shard numbering() const { return shard.value_or(Shard()); }
};

// How many samples the whole source has at least, for a shard of this size, or
// kUnknownSamples.
inline int64_t WholeOf(const SourceShard& shard, int64_t num_samples) {
  return num_samples <= 0
             ? shard.whole
             : std::max<int64_t>(
                   shard.whole, shard.numbering().InWhole(num_samples - 1) + 1);
}

// The schedule of a shard whose samples follow that of another number of
// shards. Empty if it cannot be made: it is not known which samples these are,
// or this machine has no memory to order all of them.
inline std::optional<MovedShard> MovedFrom(const SourceShard& shard,
                                           int64_t former) {
  if (!shard.shard.has_value() || shard.whole < 0 ||
      shard.whole > MostSamples() || former < 1 || former > kMaxShards) {
    return std::nullopt;
  }
  return MovedShard{*shard.shard, static_cast<uint32_t>(former),
                    static_cast<uint64_t>(shard.whole)};
}

}  // namespace refurbish_tf
