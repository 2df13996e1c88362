#pragma once

#include <sys/uio.h>

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
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {

// The name of a segment: whether its records are large, and a number.
using SegmentKey = std::pair<bool, uint32_t>;

// The log segments of a store: files of records. A segment belongs to the
// process that has locked its byte of the store's lock file. Only that process
// appends to it, moves live records out of it and deletes it. When that process
// dies, the kernel frees the lock, and another process adopts the segment. All
// processes may read it.
//
// The number of open files per process is limited, so only `kMostOpen` segments
// are kept open. The first group of methods is thread-safe, the second is for
// one thread at a time. No file is opened, closed or deleted with `mu_` held.
class Segments {
 public:
  // How many are kept open. There may be more while segments are being read.
  static constexpr size_t kMostOpen = 256;

  // `directory` must outlive this object. `*_segment`: a segment's size limit.
  Segments(const Directory* directory, std::shared_ptr<File> lock_file,
           uint64_t small_segment, uint64_t large_segment);

  static bool IsSegmentName(const std::string& name);

  // Thread-safe --------------------------------------------------------------

  // Opens the segment of a record for reading. `anew`: even if it is open,
  // because the file may have been replaced.
  struct Opened {
    std::shared_ptr<File> file;
    bool foreign;  // Another process has written the record.
  };
  absl::StatusOr<Opened> OpenToRead(const Location& location, bool anew)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Closes segments that other processes have deleted. Their space is not freed
  // while they are open here.
  void CloseDeleted() ABSL_LOCKS_EXCLUDED(mu_);

  // Frees the space of a dead large record, in any process's segment.
  void Free(const Location& location) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto file = Open({location.large, location.segment}, /*anew=*/false);
    if (!file.ok()) return;
    directory_->env().Free((*file)->fd(), location.offset, location.size);
  }

  struct Usage {
    int64_t segments = 0;
    int64_t disk_bytes = 0;
  };
  // The segments of all processes.
  Usage TotalUsage() const;

  // For one thread at a time -------------------------------------------------

  // Writes `parts`, of `size` bytes, to the end of a segment of our own.
  // `live`, the bytes of all live records, limits how long a segment gets. The
  // caller sets the tag of the returned location.
  absl::StatusOr<Location> Append(bool large, uint64_t size, int64_t live,
                                  std::vector<iovec> parts)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Takes over the segments of dead processes. One becomes active if none is.
  void Adopt() ABSL_LOCKS_EXCLUDED(mu_);

  // Our own segments to which nothing is appended any more.
  std::vector<SegmentKey> ListSealed() const ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t DiskBytes(const SegmentKey& key) const;
  // From now on, appends only to new segments.
  void Seal() ABSL_LOCKS_EXCLUDED(mu_);
  void Delete(const SegmentKey& key) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Own {
    uint64_t end = 0;
    uint64_t own_from = 0;  // This process's records begin here.
    bool sealed = false;
  };

  bool IsOwn(const SegmentKey& key) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<File>> Open(const SegmentKey& key, bool anew)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds an open file. Returns files that the caller must close without `mu_`.
  std::vector<std::shared_ptr<File>> NoteOpen(const SegmentKey& key,
                                              std::shared_ptr<File> file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<File> ForgetOpen(const SegmentKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Locks the segment, opens it with `flags`, and adds it to `own_`.
  // AlreadyExists if its name is taken or it has an owner, perhaps ourselves.
  absl::Status Acquire(const SegmentKey& key, int flags)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Unlock(const SegmentKey& key);
  // Makes sure that a segment with room for `size` bytes is active. A segment
  // grows beyond `limit` only for a single record.
  absl::Status MakeActive(bool large, uint64_t size, uint64_t limit)
      ABSL_LOCKS_EXCLUDED(mu_);

  const Directory* const directory_;
  const std::shared_ptr<File> lock_file_;
  const uint64_t most_[2];  // Limits on a segment's bytes, small and large.
  uint32_t next_number_;
  bool adopted_ = false;

  mutable std::mutex mu_;
  std::map<SegmentKey, Own> own_ ABSL_GUARDED_BY(mu_);
  // By size class: the segment of `own_` that records are appended to, if any.
  std::optional<uint32_t> active_[2] ABSL_GUARDED_BY(mu_);
  // Open segments, our own and others', and the order in which they were
  // opened: the oldest are closed first.
  std::map<SegmentKey, std::shared_ptr<File>> open_ ABSL_GUARDED_BY(mu_);
  std::deque<SegmentKey> opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
