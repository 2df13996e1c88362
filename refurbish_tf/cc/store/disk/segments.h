#ifndef REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_
#define REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/record.h"

namespace refurbish_tf {

// By which a segment is named: whether its records are large, and a number.
using SegmentKey = std::pair<bool, uint32_t>;

// Where a record has been written, or is to be.
struct SegmentPlace {
  std::shared_ptr<File> file;
  uint32_t segment;
  uint64_t offset;
};

// The log segments of a store: files of records. A segment belongs to the
// process that has locked its byte of the store's lock file, which alone appends to
// it, moves what is live out of it and deletes it; the kernel frees the lock when the
// process dies, and whoever comes next adopts the segment. Everybody reads.
//
// However many there are, whosever they are, only so many are open at a time: a
// process may only have so many files. The others are opened when they are needed.
//
// What reads may be called by any thread, all else by one at a time. Nothing is
// opened, closed, made or deleted with `mu_` held.
class Segments {
 public:
  // How many are open, those being read besides.
  static constexpr size_t kMostOpen = 256;

  // `directory` must outlive it.
  Segments(const Directory* directory, std::shared_ptr<File> lock_file);

  static bool IsSegmentName(const std::string& name);

  // Any thread's -------------------------------------------------------------

  // The segment of a record, to read from. `anew` where the file may be another
  // one than before. `*foreign` tells whether another process has written the
  // record.
  absl::StatusOr<std::shared_ptr<File>> OpenToRead(const Location& location,
                                                   bool anew, bool* foreign)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The space of a segment that others have deleted is not free while it is open
  // here.
  void CloseDeleted() ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the space of a large record back to the file system, of any process's
  // segment. The space must be dead.
  void Free(const Location& location) ABSL_LOCKS_EXCLUDED(mu_);

  struct Usage {
    int64_t segments = 0;
    int64_t disk_bytes = 0;
  };
  // Of all processes.
  Usage TotalUsage() const;

  // One thread's -------------------------------------------------------------

  // Reserves `size` bytes at the end of a segment of our own, which does not grow
  // beyond `limit` unless for a single record.
  absl::StatusOr<SegmentPlace> Append(bool large, uint64_t size, uint64_t limit)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What was reserved last could not be written; what there is of it goes.
  void TakeBack(bool large, const SegmentPlace& place) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes over the segments of processes that have died, and goes on with one
  // that they have left unfinished.
  void Adopt() ABSL_LOCKS_EXCLUDED(mu_);

  // Those of our own.
  struct Segment {
    SegmentKey key;
    uint64_t end;  // Of what has been appended.
    bool sealed;   // Nothing is appended to it any more.
  };
  std::vector<Segment> ListOwn() const ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOwn(const SegmentKey& key) const ABSL_LOCKS_EXCLUDED(mu_);
  // To be written.
  absl::StatusOr<std::shared_ptr<File>> OpenOwn(const SegmentKey& key)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Open(key, /*anew=*/false);
  }
  uint64_t DiskBytes(const SegmentKey& key) const;
  // Appends to none of those that there are.
  void Seal() ABSL_LOCKS_EXCLUDED(mu_);
  // Deletes a segment of our own.
  void Delete(const SegmentKey& key) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Own {
    uint64_t end = 0;
    uint64_t own_from = 0;  // What stands before is of the one who died.
    bool sealed = false;
  };

  absl::StatusOr<std::shared_ptr<File>> Open(const SegmentKey& key, bool anew)
      ABSL_LOCKS_EXCLUDED(mu_);
  // It is open now. Returns what is to be closed without the lock.
  std::vector<std::shared_ptr<File>> NoteOpen(const SegmentKey& key,
                                              std::shared_ptr<File> file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<File> ForgetOpen(const SegmentKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Locks the segment and makes it one of `own_`; `flags` for open. AlreadyExists
  // where it is another's, or ours.
  absl::Status Take(const SegmentKey& key, int flags) ABSL_LOCKS_EXCLUDED(mu_);
  void Unlock(const SegmentKey& key);
  absl::Status MakeActive(bool large, uint64_t size, uint64_t limit)
      ABSL_LOCKS_EXCLUDED(mu_);

  const Directory* const directory_;
  const std::shared_ptr<File> lock_file_;
  uint32_t next_number_;

  mutable std::mutex mu_;
  std::map<SegmentKey, Own> own_ ABSL_GUARDED_BY(mu_);
  // By size class: to which records are appended, if any; one of `own_`.
  std::optional<uint32_t> active_[2] ABSL_GUARDED_BY(mu_);
  // Their own and others', and the order in which they were opened, of which the
  // oldest make room.
  std::map<SegmentKey, std::shared_ptr<File>> open_ ABSL_GUARDED_BY(mu_);
  std::deque<SegmentKey> opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_
