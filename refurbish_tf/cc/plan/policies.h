// The policies of a schedule: their names, and the closed form of each eviction
// policy. Add new ones at the end: checkpoints hold their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace refurbish_tf {

template <class Policy>
struct Policies {
  const char* kind;
  std::vector<const char*> names;

  const char* NameOf(Policy policy) const {
    return names[static_cast<size_t>(policy)];
  }
  absl::Status Find(const std::string& name, Policy* policy) const {
    for (size_t i = 0; i < names.size(); ++i) {
      *policy = static_cast<Policy>(i);
      if (name == names[i]) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(kind, " must be one of '",
                                                   absl::StrJoin(names, "', '"),
                                                   "', got '", name, "'."));
  }
};

enum class Shuffle { kCacheAware, kUniform };
inline const Policies<Shuffle> kShuffles = {"shuffle",
                                            {"cache_aware", "uniform"}};

// Determines how often each sample was evicted before an epoch.
enum class Eviction { kBalanced, kReferenceCount };
inline const Policies<Eviction> kEvictions = {"eviction",
                                              {"balanced", "reference_count"}};

// How far an eviction policy has come in its order of samples (balanced
// eviction: Lee et al., USENIX ATC 2021, section 5.2): samples before
// `position` have been evicted `rounds + 1` times, the others `rounds` times.
struct EvictionHand {
  uint64_t rounds = 0;
  uint32_t position = 0;

  // How often the sample at a position of the order was evicted.
  uint64_t Evictions(uint32_t standing) const {
    return rounds + (standing < position);
  }
};

// The hand after `count` epochs, in an order of `length` samples.
EvictionHand HandAfter(Eviction policy, uint64_t count, uint64_t length,
                       double reuse_factor);

// floor(count * samples / reuse_factor), exactly. `count` must be below 2^32.
uint64_t EvictionsUntil(uint64_t count, uint64_t samples, double reuse_factor);

}  // namespace refurbish_tf
