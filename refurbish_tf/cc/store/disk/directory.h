#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/store_env.h"

namespace refurbish_tf {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// The directory of a store, which is opened once. Its files are opened relative
// to that descriptor. Links are not followed, and only regular files of this
// user with a single hard link are accepted. So the store uses no other files,
// even if other users change the directory or its path. Thread-safe.
class Directory {
 public:
  // Opens the directory, or makes it. Fails if it belongs to another user, or
  // if others can replace what is in it.
  static absl::StatusOr<std::unique_ptr<Directory>> Open(
      const std::string& path, StoreEnv* env);
  ~Directory() { close(fd_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  StoreEnv& env() const { return *env_; }

  absl::StatusOr<std::vector<std::string>> List() const;

  // OK if `name` is a regular file of this user, or missing. Otherwise, an
  // error that says what it is.
  absl::Status CheckFile(const std::string& name) const;

  // Opens a file to read and write. `flags`: O_CREAT, O_EXCL, O_APPEND (not
  // O_TRUNC, because the file is checked only once it is open). NotFound if
  // there is no such file.
  absl::StatusOr<std::shared_ptr<File>> OpenFile(const std::string& name,
                                                 int flags = 0) const;

  absl::Status Rename(const std::string& from, const std::string& to) const {
    return env_->Rename(fd_, from, to);
  }
  absl::Status Delete(const std::string& name) const {
    return env_->Unlink(fd_, name);
  }
  // Returns when all created, renamed and deleted names are on the disk.
  absl::Status Sync() const { return env_->Sync(fd_); }

  // Whether `name` still refers to this file.
  bool IsNamed(const File& file, const std::string& name) const;
  // The length of a file, and its space on the disk; 0 if it is missing.
  uint64_t FileBytes(const std::string& name) const;
  uint64_t DiskBytes(const std::string& name) const;

  // Whether its path still leads to this directory.
  bool IsInPlace() const;

  absl::Status Unusable(const std::string& why) const;

 private:
  Directory(std::string path, int fd, StoreEnv* env)
      : path_(std::move(path)), fd_(fd), env_(env) {}

  const std::string path_;
  const int fd_;
  StoreEnv* const env_;
};

}  // namespace refurbish_tf
