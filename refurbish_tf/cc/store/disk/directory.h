#ifndef REFURBISH_TF_CC_STORE_DISK_DIRECTORY_H_
#define REFURBISH_TF_CC_STORE_DISK_DIRECTORY_H_

#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/store_env.h"

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

// The directory of a store, and nothing outside it: files are opened below an open
// descriptor of it, links are not followed, and only plain files of this user's
// own are taken. So it does not matter what somebody else plants in it, or makes
// of the path.
//
// Thread-safe.
class Directory {
 public:
  // Makes the directory where there is none. Fails where it is another user's, or
  // where others can replace what is in it.
  static absl::StatusOr<std::unique_ptr<Directory>> Open(const std::string& path,
                                                         StoreEnv* env);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  StoreEnv& env() const { return *env_; }

  // The names in it.
  absl::StatusOr<std::vector<std::string>> List() const;

  // Whether `name` is a plain file of this user's own; else an error that names it.
  absl::Status CheckFile(const std::string& name) const;

  // A file, to read and write. `flags`: O_CREAT, O_EXCL, O_APPEND (and not O_TRUNC:
  // a file is looked at when it is open). NotFound where there is none.
  absl::StatusOr<std::shared_ptr<File>> OpenFile(const std::string& name,
                                                 int flags = 0) const;

  absl::Status Rename(const std::string& from, const std::string& to) const {
    return env_->Rename(fd_, from, to);
  }
  absl::Status Delete(const std::string& name) const {
    return env_->Unlink(fd_, name);
  }
  // Returns when names that were made and deleted are so on the disk.
  absl::Status Sync() const { return env_->Sync(fd_); }

  // Whether `file` is the one of this name now.
  bool IsNamed(const File& file, const std::string& name) const;
  // The length of a file, and the bytes that it takes of the disk; 0 where there is
  // none.
  uint64_t FileBytes(const std::string& name) const;
  uint64_t DiskBytes(const std::string& name) const;

  // Whether it is what is found at its path now.
  bool IsInPlace() const;

  // The error of a directory that cannot be used, for a reason.
  absl::Status Unusable(const std::string& why) const;

 private:
  Directory(std::string path, int fd, StoreEnv* env)
      : path_(std::move(path)), fd_(fd), env_(env) {}

  const std::string path_;
  const int fd_;
  StoreEnv* const env_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_DIRECTORY_H_
