// The policies of a schedule, by name. A new one comes last, as checkpoints
// have their numbers; `schedule.cc` does it, and `refurbish_op.py` offers it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace refurbish_tf {

enum class Eviction { kBalanced, kReferenceCount };
enum class Shuffle { kCacheAware, kUniform };

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

inline const Policies<Eviction> kEvictions = {"eviction",
                                              {"balanced", "reference_count"}};
inline const Policies<Shuffle> kShuffles = {"shuffle",
                                            {"cache_aware", "uniform"}};

}  // namespace refurbish_tf
