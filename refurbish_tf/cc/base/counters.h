// Counts that are known to Python by their names.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace refurbish_tf {

using NamedNumbers = std::vector<std::pair<const char*, int64_t>>;

// The base of a struct of counts. Each is declared with the name of its
// attribute in Python, so a new one is one line here and one there:
//
//   struct EchoCounters : Counters {
//     Count fresh{this, "fresh"};
//   };
class Counters {
 public:
  // On a cache line of its own, as some are counted by many threads.
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

}  // namespace refurbish_tf
