// Policies of a schedule, by name.
#pragma once

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

// A new one comes last, as checkpoints have their numbers.
enum class Shuffle { kCacheAware, kUniform };
inline const Policies<Shuffle> kShuffles = {"shuffle",
                                            {"cache_aware", "uniform"}};

}  // namespace refurbish_tf
