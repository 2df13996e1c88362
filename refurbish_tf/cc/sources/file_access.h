// The file system as sources use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace refurbish_tf {

// Identifies one state of a file. `inode` and `ctime_nanos` are 0 if the file
// system does not know them.
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
  // Reads `size` bytes, or fewer if the file ends earlier. Returns how many.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, size_t size,
                                      char* to) = 0;
  // Like `Read`, but into three buffers, which follow each other in the file.
  virtual absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head,
                                            size_t head_size, char* body,
                                            size_t body_size, char* tail,
                                            size_t tail_size) = 0;
  // The current state of the file. NotFound if it was removed, or if another
  // file has taken its name.
  virtual absl::StatusOr<FileIdentity> Identity() = 0;
};

class FileAccess {
 public:
  virtual ~FileAccess() = default;

  // Whether a small read costs only a system call, not a network message.
  virtual bool small_reads() const = 0;
  // How long a result of `Identity` is trusted; 0 to ask after each read.
  virtual int64_t identity_nanos() const = 0;

  // Opens a regular file. Fails, and does not block, for others such as pipes.
  virtual absl::StatusOr<std::unique_ptr<RandomFile>> Open(
      const std::string& path) = 0;
  // NotFound if there is no such file; ResourceExhausted if it has more than
  // `most` bytes.
  absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t most);
  // Writes a file atomically: writes under a temporary name, and then renames
  // it. Makes the file's directory if it is missing, but not that directory's
  // parents. `follow`: whether the directory may be a symbolic link.
  virtual absl::Status WriteWhole(const std::string& path,
                                  const std::string& content, bool follow) = 0;
  virtual bool IsLink(const std::string&) { return false; }
};

// The files of this machine. A path may begin with "file://".
FileAccess& LocalFiles();
bool IsLocal(const std::string& path);

}  // namespace refurbish_tf
