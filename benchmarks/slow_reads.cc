// Preloaded by scaling.py: a read of a file below $SLOW_READS_BELOW takes 30 ms
// as from object storage, unless it is at the end of the file. As on network
// file systems there is no RWF_NOWAIT.

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

bool IsSlow(int fd) {
  static const char* const below = std::getenv("SLOW_READS_BELOW");
  if (below == nullptr) return false;
  char link[32];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  char path[4096] = {};
  return readlink(link, path, sizeof(path) - 1) > 0 &&
         std::strncmp(path, below, std::strlen(below)) == 0;
}

ssize_t Late(int fd, ssize_t read) {
  if (read <= 0 || !IsSlow(fd)) return read;
  timespec left = {0, 30000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  return read;
}

}  // namespace

extern "C" {

ssize_t read(int fd, void* to, size_t size) {
  return Late(fd, syscall(SYS_read, fd, to, size));
}

ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  return Late(fd, syscall(SYS_pread64, fd, to, size, offset));
}

ssize_t pread64(int fd, void* to, size_t size, off64_t offset) {
  return pread(fd, to, size, offset);
}

ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset,
                int flags) {
  if ((flags & RWF_NOWAIT) != 0 && IsSlow(fd)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return Late(fd, syscall(SYS_preadv2, fd, parts, count, offset, 0, flags));
}

ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  return preadv2(fd, parts, count, offset, 0);
}

}  // extern "C"
