#include "refurbish_tf/cc/store/disk/shared_state.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/store/disk/crc32c.h"

namespace refurbish_tf {
namespace {

// Bytes of the file that are locked, beyond its contents: one while a job joins,
// and one for each job while it lives.
constexpr off_t kJoinLock = 1 << 20;
constexpr off_t kJobLocks = kJoinLock + 1;

constexpr uint64_t kValueBits = 48;

uint64_t WithChecksum(uint64_t value) {
  return value | uint64_t{Crc32c(&value, sizeof(value))} << kValueBits;
}

// 0 for what is damaged.
uint64_t CheckedValue(uint64_t word) {
  const uint64_t value = word & ((uint64_t{1} << kValueBits) - 1);
  return WithChecksum(value) == word ? value : 0;
}

void Raise(std::atomic<uint64_t>* word, uint64_t value) {
  uint64_t old = word->load();
  while (CheckedValue(old) < value &&
         !word->compare_exchange_weak(old, WithChecksum(value))) {
  }
}

struct flock LockOf(off_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedState>> SharedState::Open(
    const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", path));
  }
  // With its blocks: writing into a hole on a full disk kills the process.
  const int error = posix_fallocate(fd, 0, sizeof(Contents));
  void* address = MAP_FAILED;
  if (error == 0) {
    address = mmap(nullptr, sizeof(Contents), PROT_READ | PROT_WRITE,
                   MAP_SHARED, fd, 0);
  }
  if (address == MAP_FAILED) {
    absl::Status status = absl::ErrnoToStatus(error != 0 ? error : errno,
                                              absl::StrCat("Cannot map ", path));
    close(fd);
    return status;
  }
  return std::unique_ptr<SharedState>(
      new SharedState(path, fd, static_cast<Contents*>(address)));
}

SharedState::~SharedState() {
  munmap(contents_, sizeof(Contents));
  close(fd_);
}

bool SharedState::TryAdd(int64_t entries, int64_t bytes, int64_t most) {
  int64_t old = contents_->bytes.load();
  do {
    if (bytes > 0 && old > most - bytes) return false;
  } while (!contents_->bytes.compare_exchange_weak(old, old + bytes));
  contents_->entries += entries;
  return true;
}

absl::StatusOr<std::unique_ptr<SharedState::Job>> SharedState::Join() {
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", path_));
  }
  return std::unique_ptr<Job>(new Job(this, fd));
}

SharedState::Job::Job(SharedState* state, int fd) : state_(state), fd_(fd) {
  for (int slot = 0; slot < kSlots; ++slot) {
    struct flock lock = LockOf(kJobLocks + slot, F_WRLCK);
    if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) continue;
    // What the one before has left is in `next_epoch`.
    state_->contents_->jobs[slot] = WithChecksum(0);
    slot_ = slot;
    return;
  }
}

SharedState::Job::~Job() { close(fd_); }

uint64_t SharedState::Job::BeginFirstEpoch() {
  // So that of two which begin at once the second sees the first.
  struct flock join = LockOf(kJoinLock, F_WRLCK);
  while (fcntl(fd_, F_OFD_SETLKW, &join) != 0 && errno == EINTR) {
  }
  uint64_t furthest = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    const uint64_t begun = CheckedValue(state_->contents_->jobs[slot]);
    if (slot == slot_ || begun <= furthest) continue;
    struct flock lock = LockOf(kJobLocks + slot, F_WRLCK);
    if (fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
      furthest = begun;
    }
  }
  const uint64_t epoch = furthest > 0
                             ? furthest - 1
                             : CheckedValue(state_->contents_->next_epoch);
  Publish(epoch);
  join.l_type = F_UNLCK;
  fcntl(fd_, F_OFD_SETLK, &join);
  return epoch;
}

void SharedState::Job::BeginEpoch(uint64_t epoch) { Publish(epoch); }

void SharedState::Job::Publish(uint64_t epoch) {
  if (slot_ >= 0) state_->contents_->jobs[slot_] = WithChecksum(epoch + 1);
  Raise(&state_->contents_->next_epoch, epoch + 1);
}

}  // namespace refurbish_tf
