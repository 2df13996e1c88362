#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>

#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Deletes this process's segments that have no live records. Also empties
// segments with few live records, by moving those records to other segments,
// until the segments take little more space than their live records. (Holes are
// punched for dead large records at once.) For one thread, except `IsDue`.
class Compaction {
 public:
  explicit Compaction(Records* records) : records_(records) {}

  // Whether enough has changed since the last compaction. For any thread.
  bool IsDue() const;
  // `go_on` is called before each record is moved; false ends the compaction.
  void Run(const std::function<bool()>& go_on);

 private:
  // Chooses the segments to empty.
  std::set<SegmentKey> Choose();
  // Moves a record to another segment. False if it must stay for now.
  bool Move(uint64_t index, uint64_t word);

  Records* const records_;
  // `SharedState::changed()` at the last compaction.
  std::atomic<uint64_t> began_at_{0};
};

}  // namespace refurbish_tf
