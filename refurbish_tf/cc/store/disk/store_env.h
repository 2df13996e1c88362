#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace refurbish_tf {

// The system calls with which the cache store makes and changes files. Tests
// override them to make them fail, to act between them, or to record them.
// `directory` is the descriptor of an open directory. Errors carry the system's
// message. Thread-safe.
class StoreEnv {
 public:
  static StoreEnv& Default();

  // Whether an error says that a disk is full or a file cannot grow.
  static bool IsFull(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsOutOfRange(status);
  }

  virtual ~StoreEnv() = default;

  // Like openat(2), with mode 0600. Unavailable if too many files are open.
  virtual absl::StatusOr<int> Open(int directory, const std::string& name,
                                   int flags);
  // Writes everything, or fails; a part may then have been written.
  virtual absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts);
  // Allocates the blocks of a range, so that writing there cannot fail because
  // the disk is full. The file must be open with O_APPEND.
  virtual absl::Status Allocate(int fd, uint64_t offset, uint64_t size);
  // Punches a hole, if the file system can.
  virtual void Free(int fd, uint64_t offset, uint64_t size);
  virtual absl::Status Truncate(int fd, uint64_t size);
  // Returns when the file, or the directory, is on the disk.
  virtual absl::Status Sync(int fd);
  virtual absl::Status Rename(int directory, const std::string& from,
                              const std::string& to);
  virtual absl::Status Unlink(int directory, const std::string& name);
  // Locks a byte of a file for the open file description of `fd`. False if
  // another description has locked it, or on an error. The kernel frees the
  // lock when the last copy of the descriptor is closed.
  virtual bool TryLock(int fd, uint64_t byte);
  virtual void Unlock(int fd, uint64_t byte);
  // A monotonic clock.
  virtual uint64_t Seconds();
  // Called before each write to shared memory for a sample in transit or its
  // claim. Tests stop or kill a process here.
  virtual void BeforeSharedWrite() {}
};

// Calls fcntl(2) for a lock of this type on one byte of a file. Returns the
// type that fcntl has set, or nothing if it failed.
std::optional<short> LockByte(int fd, int command, uint64_t byte, short type);

// Extends a file that was opened with O_APPEND to at least `size` bytes by
// appending zeros, which overwrite nothing that others write at the same time.
absl::Status AppendZeros(int fd, uint64_t size);

}  // namespace refurbish_tf
