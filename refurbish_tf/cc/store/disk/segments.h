#ifndef REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_
#define REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/store/disk/record.h"

namespace refurbish_tf {

// A file descriptor, closed with the last reference to it.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// The log segments of a store: files of records. A segment belongs to the
// process that holds its advisory lock, which alone appends to it, moves what is
// live out of it and deletes it; the kernel frees the lock when the process
// dies, and whoever comes next adopts the segment. Everybody reads.
//
// Thread-safe.
class Segments {
 public:
  explicit Segments(std::string directory);

  static bool IsSegmentName(const std::string& name);

  // The segment of a record, to read from. Null, with errno set, where it cannot
  // be opened. `anew` where the file may be another one than before. `*foreign`
  // tells whether another process has written the record.
  std::shared_ptr<File> OpenToRead(const Location& location, bool anew,
                                   bool* foreign) ABSL_LOCKS_EXCLUDED(mu_);

  // The space of a segment that others have deleted is not free while it is open
  // here.
  void CloseDeleted() ABSL_LOCKS_EXCLUDED(mu_);

  // Reserves `size` bytes at the end of a segment of our own, which does not grow
  // beyond `limit` unless for a single record. Empty, with errno set, where none
  // can be made.
  struct Place {
    std::shared_ptr<File> file;
    uint32_t segment;
    uint64_t offset;
  };
  std::optional<Place> Append(bool large, uint64_t size, uint64_t limit)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What was reserved last could not be written; what there is of it goes.
  void TakeBack(bool large, const Place& place) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes over the segments of processes that have died, and goes on with one
  // that they have left unfinished. Returns how many.
  int Adopt() ABSL_LOCKS_EXCLUDED(mu_);

  // Own segments to which nothing is appended ever again, with the bytes they
  // take of the disk. `Seal` makes all of them so.
  struct Sealed {
    bool large;
    uint32_t segment;
    uint64_t disk_bytes;
  };
  std::vector<Sealed> ListSealed() const ABSL_LOCKS_EXCLUDED(mu_);
  void Seal() ABSL_LOCKS_EXCLUDED(mu_);

  // Deletes a segment of our own.
  void Delete(bool large, uint32_t segment) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the space of a large record back to the file system, of any process's
  // segment. The space must be dead.
  void Punch(const Location& location);

  struct Usage {
    int64_t segments = 0;
    int64_t disk_bytes = 0;
  };
  // Of all processes.
  Usage TotalUsage() const;

 private:
  struct Own {
    std::shared_ptr<File> file;
    uint64_t end = 0;  // Of what has been appended, or is about to be.
    uint64_t own_from = 0;  // What stands before is of the one who died.
    bool sealed = false;
  };
  using Key = std::pair<bool, uint32_t>;  // Large, number.

  void CloseDeletedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Path(bool large, uint32_t segment) const;
  bool MakeActive(bool large, uint64_t size, uint64_t limit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a locked file one of `own_`.
  Own* Take(const Key& key, std::shared_ptr<File> file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The open file, locked, if it is ours now; `flags` for open. Else null, with
  // errno set: EEXIST or EWOULDBLOCK where it is another's.
  std::shared_ptr<File> Lock(bool large, uint32_t segment, int flags);

  const std::string directory_;

  mutable std::mutex mu_;
  std::map<Key, Own> own_ ABSL_GUARDED_BY(mu_);
  // By size class: to which records are appended, if any; one of `own_`.
  std::optional<uint32_t> active_[2] ABSL_GUARDED_BY(mu_);
  uint32_t next_number_ ABSL_GUARDED_BY(mu_);
  // Open to read, and their order of being opened, of which the oldest make
  // room: a process may only have so many.
  std::map<Key, std::shared_ptr<File>> readers_ ABSL_GUARDED_BY(mu_);
  std::deque<Key> opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_SEGMENTS_H_
