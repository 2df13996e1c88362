// Detects from a few elements whether a source has changed its order, or does
// not end.
//
// It remembers elements by their checksums, and the checksums decide which
// ones: multiples of a power of two, which doubles when there are too many. So
// it remembers all or none of several equal elements, whichever come first, and
// can distinguish elements that a source really has twice from those that
// moved.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {

// Checksums of elements, and the position of each.
struct WatchedElements {
  struct Seen {
    uint32_t first, last;  // The lowest and the highest of its positions.
    uint32_t times = 1;
    uint32_t later = 0;  // How often it came in later epochs.
  };

  // Returns whether the element has come at another position.
  bool Add(uint32_t index, uint32_t sum);
  bool IsWatched(uint32_t sum) const { return sum % every == 0; }
  // Whether the element at this position was added.
  bool HasRead(uint32_t index) const {
    return index < read.size() && read[index];
  }

  uint32_t every = 1;
  std::unordered_map<uint32_t, Seen> seen;
  std::vector<bool> read;
  uint32_t num_read = 0;
};

// Thread-safe. It notices less if two iterators are in different epochs.
class OrderWatch {
 public:
  struct Moved {
    uint32_t from, to;
  };
  struct Noted {
    // An element that has moved, if the order has certainly changed. Values
    // that are drawn again may also come at other positions by chance.
    std::optional<Moved> moved;
    // The number of elements after which they repeat, for at least the fourth
    // time, as from a generator that never ends; 0 if in no fixed order.
    // Reported once.
    std::optional<uint32_t> period;
  };
  // Notes that in this epoch the source has yielded an element with this
  // checksum.
  Noted Note(uint64_t epoch, uint32_t index, uint32_t sum)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // `again`: whether the element came in this epoch before.
  std::optional<Moved> FindMoved(uint32_t index, uint32_t sum, bool again)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<uint32_t> FindPeriod() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::mutex mu_;
  // The epoch in which most was read, and the present one.
  WatchedElements known_ ABSL_GUARDED_BY(mu_);
  WatchedElements present_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> epoch_ ABSL_GUARDED_BY(mu_);
  std::optional<Moved> moved_ ABSL_GUARDED_BY(mu_);
  // How many elements came at another position than in `known_`; and how many
  // came at the same one, or are new at a position that was known.
  uint32_t num_moved_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t num_others_ ABSL_GUARDED_BY(mu_) = 0;
  // Logarithmic odds, which add up over epochs.
  double evidence_ ABSL_GUARDED_BY(mu_) = 0;
  bool period_told_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refurbish_tf
