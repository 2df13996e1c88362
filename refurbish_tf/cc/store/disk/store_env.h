#ifndef REFURBISH_TF_CC_STORE_DISK_STORE_ENV_H_
#define REFURBISH_TF_CC_STORE_DISK_STORE_ENV_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refurbish_tf {

// What the cache store asks of the operating system to make and to change files,
// for tests to make it fail, to do something in between, or to write it down. A
// directory is an open descriptor of it. Errors carry what the system said;
// ResourceExhausted or OutOfRange is a disk, or a file, that is full.
//
// Thread-safe.
class StoreEnv {
 public:
  static StoreEnv& Default();

  virtual ~StoreEnv() = default;

  // As openat(2); a file that is made is for the user alone. Unavailable where too
  // many files are open.
  virtual absl::StatusOr<int> Open(int directory, const std::string& name,
                                   int flags);
  // Writes all, or fails; then a part may have been written.
  virtual absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts);
  // Makes sure that the space is there to be written to, of a file that was opened
  // with O_APPEND.
  virtual absl::Status Allocate(int fd, uint64_t offset, uint64_t size);
  // Gives space back to the file system, where it can.
  virtual void Free(int fd, uint64_t offset, uint64_t size);
  virtual absl::Status Truncate(int fd, uint64_t size);
  // Returns when the file, or the directory, is on the disk as it is now.
  virtual absl::Status Sync(int fd);
  virtual absl::Status Rename(int directory, const std::string& from,
                              const std::string& to);
  virtual absl::Status Unlink(int directory, const std::string& name);
  // Locks a byte of a file for what was opened with this descriptor alone, unless
  // somebody else has it locked. The kernel frees it when that is closed, or its
  // process dies.
  virtual bool TryLock(int fd, uint64_t byte);
  virtual void Unlock(int fd, uint64_t byte);
  // Of a clock that does not go back while the machine runs.
  virtual uint64_t Seconds();
};

// Makes a file that was opened with O_APPEND at least so long by appending zeros,
// which take the place of nothing that others write meanwhile.
absl::Status AppendZeros(int fd, uint64_t size);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_STORE_ENV_H_
