// The part of a source that a stage reads when several workers divide it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/plan/schedule.h"

namespace refurbish_tf {

struct SourceShard {
  std::string names;  // "0 of 2", comma-separated; empty for the whole source.
  int64_t num_shards = 1;
  // Which samples of the whole source these are. Empty (unknown) if stages
  // after `shard` make other elements, for example records of sharded files.
  std::optional<Shard> shard = Shard();
  int64_t whole = kUnknownSamples;  // How many samples the whole source has.

  // Numbers samples as in the whole source, so that workers agree on the
  // numbers. If these are unknown, numbers samples as in the shard.
  Shard numbering() const { return shard.value_or(Shard()); }
  // How many shards may share a store: 1 if it is unknown how they divide the
  // samples.
  uint32_t num_sharing() const { return whole < 0 ? 1 : numbering().count; }
};

// The least number of samples that the whole source can have, given the size of
// this shard. kUnknownSamples if it is unknown.
inline int64_t WholeOf(const SourceShard& shard, int64_t num_samples) {
  return num_samples <= 0
             ? shard.whole
             : std::max<int64_t>(
                   shard.whole, shard.numbering().InWhole(num_samples - 1) + 1);
}

// How this shard follows a schedule that began with `former` shards. Empty if
// it is unknown which samples the shard has, if this machine lacks the memory
// for the whole source, or if `former` is not valid.
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
