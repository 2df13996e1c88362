// What sources ask of a file system.
#ifndef REFURBISH_TF_CC_SOURCES_FILE_ACCESS_H_
#define REFURBISH_TF_CC_SOURCES_FILE_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refurbish_tf {

// What tells one file, or one state of it, from another. A file system that does
// not know an inode or when an inode was changed says 0.
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

// For many threads at once.
class RandomFile {
 public:
  virtual ~RandomFile() = default;
  // Reads `size` bytes, or fewer where the file ends.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, size_t size,
                                      char* to) = 0;
  // Of what stands between `head` and `tail`, all three in a row.
  virtual absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head,
                                            size_t head_size, char* body,
                                            size_t body_size, char* tail,
                                            size_t tail_size) = 0;
  // As it is now. NotFound when it has been removed, or another one has its name.
  virtual absl::StatusOr<FileIdentity> Identity() = 0;
};

class FileAccess {
 public:
  virtual ~FileAccess() = default;

  // Whether a small read costs a system call, and not a message over a network.
  virtual bool small_reads() const = 0;
  // For how long what `Identity` said is believed.
  virtual int64_t identity_nanos() const = 0;

  // Opens a plain file. Does not wait for what is none, as a pipe.
  virtual absl::StatusOr<std::unique_ptr<RandomFile>> Open(
      const std::string& path) = 0;
  // NotFound where there is none; ResourceExhausted beyond `most` bytes.
  absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t most);
  // Under a provisional name first, so that it is there whole or not at all. Makes
  // the directory it is in, and none above that. `follow`: whether that may be a
  // link.
  virtual absl::Status WriteWhole(const std::string& path,
                                  const std::string& content, bool follow) = 0;
  // Whether it leads elsewhere.
  virtual bool IsLink(const std::string&) { return false; }
};

// Of this machine. A path may begin with "file://".
FileAccess& LocalFiles();
bool IsLocal(const std::string& path);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SOURCES_FILE_ACCESS_H_
