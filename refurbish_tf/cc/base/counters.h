// Counts that Python reads by name.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {

using NamedNumbers = std::vector<std::pair<const char*, int64_t>>;

// The base class for a struct of counts. Each count is declared with the name
// of its attribute in Python, so a new count needs one line in the struct and
// one in the Python class:
//
//   struct EchoCounters : Counters {
//     Count fresh{this, "fresh"};
//   };
class Counters {
 public:
  // Each count has its own cache line, because many threads increment it.
  class alignas(64) Count : public std::atomic<int64_t> {
   public:
    Count(Counters* all, const char* name) : std::atomic<int64_t>(0) {
      all->counts_.emplace_back(name, this);
    }
    using std::atomic<int64_t>::operator=;
  };

  Counters() = default;
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  NamedNumbers Read() const {
    NamedNumbers numbers;
    for (const auto& [name, count] : counts_) numbers.push_back({name, *count});
    return numbers;
  }

 private:
  std::vector<std::pair<const char*, const Count*>> counts_;
};

// The counts of a stage: one struct for each iterator that called `Begin`. The
// structs stay here when their iterators are destroyed. Thread-safe.
template <class Each>
class CountsOfIterators {
 public:
  std::shared_ptr<Each> Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return counts_.emplace_back(std::make_shared<Each>());
  }
  std::vector<std::shared_ptr<const Each>> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return {counts_.begin(), counts_.end()};
  }

 private:
  mutable std::mutex mu_;
  std::vector<std::shared_ptr<Each>> counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
