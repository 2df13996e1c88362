#include "refurbish_tf/cc/store/disk/index.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace refurbish_tf {

absl::StatusOr<std::unique_ptr<Index>> Index::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", path));
  }
  std::unique_ptr<Index> index(new Index(fd));
  // Where the file system cannot map files this is said now. Holes there are
  // where a tool has copied the file.
  struct stat status;
  if (fstat(fd, &status) == 0) {
    const uint64_t size = status.st_size;
    if (index->Grow((size + kChunkBytes - 1) / kChunkBytes * kChunkBytes,
                    uint64_t{512} * status.st_blocks < size) &&
        index->Reserve(0)) {
      return index;
    }
  }
  const int error = errno;
  return absl::ErrnoToStatus(
      error,
      absl::StrCat("Cannot map ", path,
                   error == ENOSPC || error == EDQUOT
                       ? ""
                       : ", which a cache store on disk needs; network file "
                         "systems often cannot. Choose a directory on a local "
                         "disk"));
}

Index::~Index() {
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    Word* words = chunks_[chunk].load(std::memory_order_relaxed);
    if (words != nullptr) munmap(words, kChunkBytes);
  }
  close(fd_);
}

bool Index::Reserve(uint64_t sample) {
  if (sample >= kMaxSamples) return false;
  if (Find(sample) != nullptr) return true;
  return Grow((sample / kWords + 1) * kChunkBytes, /*whole=*/false) &&
         Find(sample) != nullptr;
}

bool Index::Grow(uint64_t bytes, bool whole) {
  // One at a time, of all processes: where the file system cannot do it, the C
  // library writes zeros to what it has seen to be holes.
  std::lock_guard<std::mutex> own_lock(mu_);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (fcntl(fd_, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
  }
  int error = 0;
  struct stat status;
  if (fstat(fd_, &status) != 0) {
    error = errno;
  } else {
    const uint64_t from = whole ? 0 : status.st_size;
    if (from < bytes) error = posix_fallocate(fd_, from, bytes - from);
  }
  lock.l_type = F_UNLCK;
  fcntl(fd_, F_OFD_SETLK, &lock);
  errno = error;
  return error == 0;
}

bool Index::Exists(uint64_t chunk) const {
  struct stat status;
  return fstat(fd_, &status) == 0 &&
         static_cast<uint64_t>(status.st_size) >= (chunk + 1) * kChunkBytes;
}

Index::Word* Index::Map(uint64_t chunk) const {
  if (!Exists(chunk)) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  Word* words = chunks_[chunk].load(std::memory_order_acquire);
  if (words != nullptr) return words;
  void* address = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                       fd_, chunk * kChunkBytes);
  if (address == MAP_FAILED) return nullptr;
  words = static_cast<Word*>(address);
  chunks_[chunk].store(words, std::memory_order_release);
  return words;
}

}  // namespace refurbish_tf
