#include "refurbish_tf/cc/store/disk/store_env.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr char kCannotGrow[] = "cannot extend a file";

}  // namespace

StoreEnv& StoreEnv::Default() {
  static StoreEnv* const env = new StoreEnv;  // Never destroyed.
  return *env;
}

absl::StatusOr<int> StoreEnv::Open(int directory, const std::string& name,
                                   int flags) {
  const int fd = openat(directory, name.c_str(), flags, 0600);
  if (fd < 0) {
    absl::Status failed = ErrnoError("cannot open ", name);
    // Not ResourceExhausted, which `IsFull` would take for a full disk.
    return errno == EMFILE || errno == ENFILE ? Unavailable(failed.message())
                                              : failed;
  }
  return fd;
}

absl::Status StoreEnv::Write(int fd, uint64_t offset,
                             std::vector<iovec> parts) {
  size_t first = 0;
  while (first < parts.size()) {
    const int count = std::min<size_t>(parts.size() - first, IOV_MAX);
    ssize_t written = pwritev(fd, &parts[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError("cannot write");
    offset += written;
    bool advanced = written > 0;
    while (first < parts.size() &&
           static_cast<size_t>(written) >= parts[first].iov_len) {
      written -= parts[first++].iov_len;
      advanced = true;
    }
    if (!advanced) return absl::ErrnoToStatus(ENOSPC, "cannot write");
    if (written > 0) {
      parts[first].iov_base =
          static_cast<char*>(parts[first].iov_base) + written;
      parts[first].iov_len -= written;
    }
  }
  return absl::OkStatus();
}

absl::Status StoreEnv::Allocate(int fd, uint64_t offset, uint64_t size) {
  // Not posix_fallocate: on a file system without support, it writes zeros
  // where it has found holes, and another process may have written there since.
  while (fallocate(fd, 0, offset, size) != 0) {
    if (errno == EOPNOTSUPP) return AppendZeros(fd, offset + size);
    if (errno != EINTR) return ErrnoError(kCannotGrow);
  }
  return absl::OkStatus();
}

void StoreEnv::Free(int fd, uint64_t offset, uint64_t size) {
  // If the file system cannot punch holes, deleting the file frees the space.
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
}

absl::Status StoreEnv::Truncate(int fd, uint64_t size) {
  if (ftruncate(fd, size) == 0) return absl::OkStatus();
  return ErrnoError("cannot truncate a file");
}

absl::Status StoreEnv::Sync(int fd) {
  // EINVAL, EROFS: some file systems cannot sync directories.
  return TEMP_FAILURE_RETRY(fsync(fd)) == 0 || errno == EINVAL || errno == EROFS
             ? absl::OkStatus()
             : ErrnoError("cannot write to the disk");
}

absl::Status StoreEnv::Rename(int directory, const std::string& from,
                              const std::string& to) {
  return renameat(directory, from.c_str(), directory, to.c_str()) == 0
             ? absl::OkStatus()
             : ErrnoError("cannot write ", to);
}

absl::Status StoreEnv::Unlink(int directory, const std::string& name) {
  return unlinkat(directory, name.c_str(), 0) == 0
             ? absl::OkStatus()
             : ErrnoError("cannot delete ", name);
}

bool StoreEnv::TryLock(int fd, uint64_t byte) {
  return LockByte(fd, F_OFD_SETLK, byte, F_WRLCK).has_value();
}

void StoreEnv::Unlock(int fd, uint64_t byte) {
  LockByte(fd, F_OFD_SETLK, byte, F_UNLCK);
}

uint64_t StoreEnv::Seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

std::optional<short> LockByte(int fd, int command, uint64_t byte, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  if (TEMP_FAILURE_RETRY(fcntl(fd, command, &lock)) != 0) return std::nullopt;
  return lock.l_type;
}

absl::Status AppendZeros(int fd, uint64_t size) {
  static constexpr char kZeros[64 << 10] = {};
  struct stat status;
  while (fstat(fd, &status) == 0) {
    const auto now = static_cast<uint64_t>(status.st_size);
    if (now >= size) return absl::OkStatus();
    if (write(fd, kZeros, std::min<uint64_t>(size - now, sizeof(kZeros))) < 0 &&
        errno != EINTR) {
      break;
    }
  }
  return ErrnoError(kCannotGrow);
}

}  // namespace refurbish_tf
