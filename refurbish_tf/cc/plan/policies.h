// The policies of a schedule: their names, and the closed form of each eviction
// policy. Add new ones at the end: checkpoints hold their numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "refurbish_tf/cc/base/status_macros.h"

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
    return InvalidArgument(kind, " must be one of '",
                           absl::StrJoin(names, "', '"), "', got '", name,
                           "'.");
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

// floor(count * samples / reuse_factor), exactly. `count` must be below 2^32.
inline uint64_t EvictionsUntil(uint64_t count, uint64_t samples,
                               double reuse_factor) {
  // A double is a whole number times a power of two, so the quotient can be
  // computed in integers. In floating point it would sometimes be rounded
  // across a whole number, and a sample would be used once too often.
  int exponent;
  const double fraction = std::frexp(reuse_factor, &exponent);
  const uint64_t mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
  const int shift = 53 - exponent;
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(count) * samples;
  if (shift >= 0) return static_cast<uint64_t>((product << shift) / mantissa);
  if (shift <= -127) return 0;
  return static_cast<uint64_t>((product >> -shift) / mantissa);
}

// The hand after `count` epochs, in an order of `length` samples.
inline EvictionHand HandAfter(Eviction policy, uint64_t count, uint64_t length,
                              double reuse_factor) {
  switch (policy) {
    case Eviction::kReferenceCount:
      return {EvictionsUntil(count, 1, reuse_factor), 0};
    case Eviction::kBalanced: {
      if (length == 0) return {};
      const uint64_t evictions = EvictionsUntil(count, length, reuse_factor);
      return {evictions / length, static_cast<uint32_t>(evictions % length)};
    }
  }
  // Unreachable: the compiler warns about a policy without a case.
  std::abort();
}

}  // namespace refurbish_tf
