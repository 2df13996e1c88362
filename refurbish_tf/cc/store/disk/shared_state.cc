#include "refurbish_tf/cc/store/disk/shared_state.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

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

// Much longer than it takes from where a sample is asked for to where it is in
// the store, also when the training is slow to take it.
constexpr uint64_t kClaimSeconds = 10;

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

absl::StatusOr<std::unique_ptr<SharedState::Job>> SharedState::Join(
    Index* claims) {
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", path_));
  }
  return std::unique_ptr<Job>(new Job(this, claims, fd));
}

SharedState::Job::Job(SharedState* state, Index* claims, int fd)
    : state_(state), claims_(claims), fd_(fd) {
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
    if (slot != slot_ && begun > furthest && IsAlive(slot)) furthest = begun;
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

bool SharedState::Job::IsAlive(int slot) const {
  struct flock lock = LockOf(kJobLocks + slot, F_WRLCK);
  return fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool SharedState::Job::OthersAreAlive() const {
  for (int slot = 0; slot < kSlots; ++slot) {
    std::atomic<uint64_t>& job = state_->contents_->jobs[slot];
    uint64_t begun = job.load();
    if (slot == slot_ || CheckedValue(begun) == 0) continue;
    if (IsAlive(slot)) return true;
    // It need not be asked for again.
    job.compare_exchange_strong(begun, WithChecksum(0));
  }
  return false;
}

bool SharedState::Job::Claim(uint64_t sample, Generation generation) {
  if (slot_ < 0 || !claims_->Reserve(sample)) return true;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const uint64_t second = now.tv_sec & 0xffff;
  const uint64_t own = (uint64_t{generation} + 1) << 32 | second << 16 | slot_;
  uint64_t word = claims_->Load(sample);
  do {
    const int slot = word & 0xffff;
    const uint64_t age = (second - (word >> 16)) & 0xffff;
    if (word >> 32 >= uint64_t{generation} + 1 && slot != slot_ &&
        slot < kSlots && age < kClaimSeconds && IsAlive(slot)) {
      return false;
    }
  } while (!claims_->CompareExchange(sample, &word, own));
  return true;
}

void SharedState::Job::Publish(uint64_t epoch) {
  if (slot_ >= 0) state_->contents_->jobs[slot_] = WithChecksum(epoch + 1);
  Raise(&state_->contents_->next_epoch, epoch + 1);
}

}  // namespace refurbish_tf
