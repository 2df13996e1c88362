#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>

#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Deletes this process's segments without live records, and empties those with
// few by moving these to other segments, until the segments take not much more
// space than their live records. (Dead large records give back their space
// before that, by punched holes.)
//
// For one thread, except `IsDue` and the counts.
class Compaction {
 public:
  explicit Compaction(Records* records) : records_(records) {}

  // Whether enough has changed since the last one. Any thread may ask.
  bool IsDue() const;
  // `go_on` is called before each record is moved; false ends it.
  void Run(const std::function<bool()>& go_on);

  // Segments emptied, and bytes moved to do so, so far.
  int64_t emptied() const { return emptied_; }
  int64_t bytes_moved() const { return bytes_moved_; }

 private:
  // The segments to empty.
  std::set<SegmentKey> Choose();
  // Moves a record to another segment. False if it cannot.
  bool Move(uint64_t index, uint64_t word);

  Records* const records_;
  std::atomic<uint64_t> began_at_{
      0};  // SharedState::changed() at the last one.
  std::atomic<int64_t> emptied_{0};
  std::atomic<int64_t> bytes_moved_{0};
};

}  // namespace refurbish_tf
