#include "refurbish_tf/cc/store/disk/directory.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

absl::Status UnusableDirectory(const std::string& path,
                               const std::string& why) {
  return FailedPrecondition("Cannot use ", path, " as a cache store: ", why);
}

absl::Status Make(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (!part.empty() && mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoError("Cannot make the directory ", part,
                        " for a cache store");
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

// Anyone who can write to a directory can replace the files in it, unless it is
// sticky: then only the files' owners can.
absl::Status CheckOwner(const std::string& path, const struct stat& status) {
  if (status.st_uid != geteuid()) {
    return UnusableDirectory(
        path, absl::StrCat("it belongs to user ", status.st_uid,
                           ", but this process runs as user ", geteuid(),
                           ". Give a directory of your own, such as a new one "
                           "below it."));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 &&
      (status.st_mode & S_ISVTX) == 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 07777);
    return UnusableDirectory(
        path,
        absl::StrCat("other users can write to it (its mode is ", mode,
                     ") and replace cached samples. Run `chmod go-w ", path,
                     "`, or give another directory, such as a new one below "
                     "it."));
  }
  return absl::OkStatus();
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

// Why the store rejects this file; empty if it does not.
std::string Objection(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (status.st_uid != geteuid()) {
    return absl::StrCat("belongs to user ", status.st_uid);
  }
  if (status.st_nlink > 1) return "has a second hard link";
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Directory>> Directory::Open(
    const std::string& path, StoreEnv* env) {
  RTF_RETURN_IF_ERROR(Make(path));
  const int fd =
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOTDIR) {
    return UnusableDirectory(
        path, "it is a file. Give a directory, which need not exist yet.");
  }
  if (fd < 0) {
    return ErrnoError("Cannot open the directory ", path, " of a cache store");
  }
  std::unique_ptr<Directory> directory(new Directory(path, fd, env));
  struct stat status;
  if (fstat(fd, &status) != 0) {
    return ErrnoError("Cannot use ", path);
  }
  RTF_RETURN_IF_ERROR(CheckOwner(path, status));
  if (faccessat(fd, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
    return ErrnoError("Cannot write to ", path,
                      ", which a cache store needs. Give a directory of "
                      "your own");
  }
  return directory;
}

absl::StatusOr<std::vector<std::string>> Directory::List() const {
  // Opens the directory again, because listing moves a descriptor's position.
  const int fd = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = fd < 0 ? nullptr : fdopendir(fd);
  if (listing == nullptr) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot list ", path_));
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(listing);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status Directory::CheckFile(const std::string& name) const {
  struct stat status;
  if (fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return absl::OkStatus();  // It was just deleted.
    return ErrnoError("Cannot stat ", name);
  }
  const std::string objection = Objection(status);
  if (objection.empty()) return absl::OkStatus();
  return Unusable(absl::StrCat("its ", name, " ", objection,
                               ", so it was not made by this user's cache "
                               "store. Nothing was changed. Delete it, or give "
                               "another directory."));
}

absl::StatusOr<std::shared_ptr<File>> Directory::OpenFile(
    const std::string& name, int flags) const {
  // O_NONBLOCK and O_NOCTTY: somebody may have planted a pipe or a device.
  absl::StatusOr<int> fd = env_->Open(
      fd_, name,
      O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags);
  if (!fd.ok()) {
    RTF_RETURN_IF_ERROR(CheckFile(name));
    return absl::Status(fd.status().code(),
                        absl::StrCat(path_, ": ", fd.status().message()));
  }
  auto file = std::make_shared<File>(*fd);
  struct stat status;
  if (fstat(*fd, &status) != 0) {
    return ErrnoError("Cannot stat ", name);
  }
  if (Objection(status).empty()) return file;
  absl::Status checked = CheckFile(name);
  return checked.ok() ? Unusable(absl::StrCat("its ", name, " was replaced."))
                      : checked;
}

bool Directory::IsNamed(const File& file, const std::string& name) const {
  struct stat open, named;
  return fstat(file.fd(), &open) == 0 &&
         fstatat(fd_, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         IsSame(open, named);
}

uint64_t Directory::FileBytes(const std::string& name) const {
  struct stat status;
  return fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0
             ? status.st_size
             : 0;
}

uint64_t Directory::DiskBytes(const std::string& name) const {
  struct stat status;
  if (fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  return std::min<uint64_t>(status.st_size, uint64_t{512} * status.st_blocks);
}

bool Directory::IsInPlace() const {
  struct stat open, named;
  return fstat(fd_, &open) == 0 && stat(path_.c_str(), &named) == 0 &&
         IsSame(open, named);
}

absl::Status Directory::Unusable(const std::string& why) const {
  return UnusableDirectory(path_, why);
}

}  // namespace refurbish_tf
