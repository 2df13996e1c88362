#ifndef REFURBISH_TF_CC_STORE_DISK_PLACES_H_
#define REFURBISH_TF_CC_STORE_DISK_PLACES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Where records are written: at the end of a segment while the disk has room. Else a
// small one is written over dead records of our own segments: a reader that is late
// finds another record there, by its checksum, and looks again. (The space of large
// ones is the file system's as soon as they are dead, so there is nothing to write
// over: whoever gives it back, perhaps another process, would do so too late.)
//
// Where there is no dead record either, one that is worth less makes room: by the
// rank of its sample, so that the same samples stay as long as the disk is full.
//
// For one thread.
class Places {
 public:
  Places(Records* records, StoreEnv* env, uint64_t small_segment,
         uint64_t large_segment)
      : records_(records),
        env_(env),
        most_{small_segment, large_segment} {}

  // Writes parts to the end of a segment.
  absl::StatusOr<SegmentPlace> Append(bool large, uint64_t space,
                               std::vector<iovec> parts);
  // Writes a record where there is room. Where one could not be appended it is not
  // tried again, until `TryToAppend` or until one was released.
  absl::StatusOr<Location> Write(bool large, uint64_t space, Generation generation,
                                 const std::vector<iovec>& parts);
  void TryToAppend() { full_[0] = full_[1] = absl::OkStatus(); }
  // Whether nothing could be written as there is no room for it.
  static bool IsFull(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsOutOfRange(status);
  }

  // The record of a word is dead: its space may be written over, or is given back.
  void Release(uint64_t word);
  // Releases a record of our own that is worth less than one of this sample. False
  // if there is none.
  bool MakeRoom(uint32_t index, bool large, uint64_t space);
  // Where there was no room all the same, none is made until something could be
  // written.
  bool RoomHelps(bool large) const { return helps_[large]; }
  void RoomDidNotHelp(bool large) { helps_[large] = false; }
  // A record of this sample can be released from now on.
  void Published(uint32_t index, bool large);

  // Nothing is written into these segments any more, as they are being emptied.
  void Close(std::set<SegmentKey> segments);
  void Open() { closed_.clear(); }

 private:
  struct Dead {
    uint32_t segment;
    uint64_t offset;
  };

  // Looks at all records of our own, if enough may have changed since.
  bool Look();
  // What was seen then.
  void Forget();
  std::optional<Dead> TakeDead(uint64_t space);

  Records* const records_;
  StoreEnv* const env_;
  const uint64_t most_[2];  // Bytes of a segment, by size class.

  bool adopted_ = false;
  // Why nothing can be appended, if so; by size class.
  absl::Status full_[2];
  bool helps_[2] = {true, true};
  // Whether dead records are kept for new ones.
  bool reusing_ = false;
  uint64_t looked_at_ = 0;  // SharedState::changed() at the last look.
  // Space of small records, by size.
  std::multimap<uint64_t, Dead> dead_;
  // The ranks and samples of live records, by size class: heaps with the one that is
  // worth least first. What has changed since the look is seen when it is its turn.
  std::vector<std::pair<uint32_t, uint32_t>> live_[2];
  std::set<SegmentKey> closed_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_PLACES_H_
