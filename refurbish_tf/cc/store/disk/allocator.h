#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Decides where a record is written: at the end of a segment while the disk has
// room.
//
// A full disk is treated like `max_bytes`: a new generation takes the place of
// the old one; a small record is written over dead records of this process's
// segments (a late reader sees by the checksum that another record is there,
// and looks again); where none is dead, the record of a sample that is worth
// less makes room. The schedule ranks the samples (`Schedule::Rank`), so the
// same ones stay while the disk is full, and each epoch evicts the same share
// of them. Each batch first tries whether there is room again.
//
// Large records begin on whole pages, and a hole is punched as soon as one is
// dead. They are not written over: the process that punches the hole may be
// another one, and late, and would destroy the new record.
//
// For one thread.
class Allocator {
 public:
  Allocator(Records* records, StoreEnv* env, uint64_t small_segment,
            uint64_t large_segment)
      : records_(records), env_(env), most_{small_segment, large_segment} {}

  // Writes parts to the end of a segment.
  absl::StatusOr<SegmentPosition> Append(bool large, uint64_t space,
                                         std::vector<iovec> parts);
  // Writes a record where there is room. When an append has failed none is
  // tried until `TryToAppend` is called or a record released.
  absl::StatusOr<Location> Write(bool large, uint64_t space,
                                 Generation generation,
                                 const std::vector<iovec>& parts);
  void TryToAppend() { full_[0] = full_[1] = absl::OkStatus(); }
  // Whether a write failed for lack of room.
  static bool IsFull(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsOutOfRange(status);
  }

  // The record of a word is dead: its space is reused, or given back.
  void Release(uint64_t word);
  // Evicts a record of our own segments that is worth less than this sample's.
  // False if there is none.
  bool MakeRoom(uint32_t index, bool large, uint64_t space);
  // If a write fails although room was made, no more room is made until a write
  // succeeds.
  bool RoomHelps(bool large) const { return helps_[large]; }
  void RoomDidNotHelp(bool large) { helps_[large] = false; }
  // From now on the record of this sample can make room.
  void Published(uint32_t index, bool large);

  // Writes nothing into these segments until `Open`: they are being emptied.
  void Close(std::set<SegmentKey> segments);
  void Open() { closed_.clear(); }

 private:
  struct Dead {
    uint32_t segment;
    uint64_t offset;
  };

  // Scans all our own records, unless little has changed since the last scan.
  bool Look();
  // Drops the results of the scan.
  void Forget();
  std::optional<Dead> ReuseDead(uint64_t space);

  Records* const records_;
  StoreEnv* const env_;
  const uint64_t most_[2];  // Bytes of a segment, by size class.

  bool adopted_ = false;
  // Why the last append failed; OK if it did not. By size class.
  absl::Status full_[2];
  bool helps_[2] = {true, true};
  // Whether the space of dead records is kept for new ones.
  bool reusing_ = false;
  uint64_t looked_at_ = 0;  // SharedState::changed() at the last scan.
  // Dead space of small records, by size.
  std::multimap<uint64_t, Dead> dead_;
  // Rank and sample of live records, by size class: heaps with the one that is
  // worth least first. Entries may be outdated, and are checked when their turn
  // comes.
  std::vector<std::pair<uint32_t, uint32_t>> live_[2];
  std::set<SegmentKey> closed_;
};

}  // namespace refurbish_tf
