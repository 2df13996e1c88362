// The file system as sources use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace refurbish_tf {

// Tells one file, or one state of it, from another. `inode` and `ctime_nanos`
// are 0 where a file system does not know them.
struct FileIdentity {
  uint64_t size = 0;
  int64_t mtime_nanos = 0;
  int64_t ctime_nanos = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity& a, const FileIdentity& b) {
    return a.size == b.size && a.mtime_nanos == b.mtime_nanos &&
           a.ctime_nanos == b.ctime_nanos && a.inode == b.inode;
  }
  friend bool operator!=(const FileIdentity& a, const FileIdentity& b) {
    return !(a == b);
  }
};

// Thread-safe.
class RandomFile {
 public:
  virtual ~RandomFile() = default;
  // Reads `size` bytes, or fewer where the file ends.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, size_t size,
                                      char* to) = 0;
  // The same for `head`, `body` and `tail`, one behind the other.
  virtual absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head,
                                            size_t head_size, char* body,
                                            size_t body_size, char* tail,
                                            size_t tail_size) = 0;
  // Its present state. NotFound if it was removed, or another file has its
  // name.
  virtual absl::StatusOr<FileIdentity> Identity() = 0;
};

class FileAccess {
 public:
  virtual ~FileAccess() = default;

  // Whether a small read costs a system call and no message over a network.
  virtual bool small_reads() const = 0;
  // How long an answer of `Identity` is believed.
  virtual int64_t identity_nanos() const = 0;

  // Opens a regular file. Does not block on anything else, such as a pipe.
  virtual absl::StatusOr<std::unique_ptr<RandomFile>> Open(
      const std::string& path) = 0;
  // NotFound if there is no such file; ResourceExhausted if it has more than
  // `most` bytes.
  absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t most);
  // Writes a file atomically, under a temporary name first. Makes its
  // directory, and none above that. `follow`: whether the directory may be a
  // link.
  virtual absl::Status WriteWhole(const std::string& path,
                                  const std::string& content, bool follow) = 0;
  // Whether `path` is a symbolic link.
  virtual bool IsLink(const std::string&) { return false; }
};

// The files of this machine. A path may begin with "file://".
FileAccess& LocalFiles();
bool IsLocal(const std::string& path);

}  // namespace refurbish_tf
