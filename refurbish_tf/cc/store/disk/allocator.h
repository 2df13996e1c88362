#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Writes records to the ends of segments. A full disk takes no more: the caller
// gives the record up.
//
// For one thread.
class Allocator {
 public:
  Allocator(Records* records, StoreEnv* env, uint64_t small_segment,
            uint64_t large_segment)
      : records_(records), env_(env), most_{small_segment, large_segment} {}

  // Writes parts, of `space` bytes. The tag of the location is 0.
  absl::StatusOr<Location> Append(bool large, uint64_t space,
                                  std::vector<iovec> parts);
  // Whether a write failed for lack of room.
  static bool IsFull(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsOutOfRange(status);
  }

 private:
  Records* const records_;
  StoreEnv* const env_;
  const uint64_t most_[2];  // Bytes of a segment, by size class.
  bool adopted_ = false;
};

}  // namespace refurbish_tf
