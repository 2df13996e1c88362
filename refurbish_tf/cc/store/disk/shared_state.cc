#include "refurbish_tf/cc/store/disk/shared_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {
namespace {

// Each living job locks a byte of the state file, from this offset on, which is
// beyond the contents.
constexpr off_t kJobLocks = (1 << 20) + 1;

constexpr uint64_t kValueBits = 48;

// A claim expires after this time. Preparing and storing a claimed sample takes
// much less, even if training consumes samples slowly.
constexpr uint64_t kClaimSeconds = 10;

// A claim, from the highest bit on: generation + 1 (32 bits), whether it was
// released (1), second (15), turn (8), seat (8).
constexpr uint64_t kReleased = uint64_t{1} << 31;
constexpr uint64_t kSeconds = (1 << 15) - 1;

// A claim whose generation is further ahead is damaged: index words could not
// distinguish so many generations.
constexpr uint64_t kMostAhead = kNumTags / 2;

uint64_t WithChecksum(uint64_t value) {
  return value | uint64_t{Crc32c(&value, sizeof(value))} << kValueBits;
}

// 0 if the checksum is wrong.
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

}  // namespace

absl::StatusOr<std::unique_ptr<SharedState>> SharedState::Open(
    const Directory* directory, const std::string& name) {
  RTF_ASSIGN_OR_RETURN(
      std::unique_ptr<MappedFile> file,
      MappedFile::Open(directory, name, sizeof(Contents), /*max_chunks=*/1));
  return std::unique_ptr<SharedState>(
      new SharedState(directory, name, std::move(file)));
}

bool SharedState::TryAdd(int64_t entries, int64_t bytes, int64_t most) {
  int64_t old = contents_->bytes.load();
  do {
    if (bytes > 0 && old > most - bytes) return false;
  } while (!contents_->bytes.compare_exchange_weak(old, old + bytes));
  contents_->entries += entries;
  return true;
}

int64_t SharedState::epochs() const {
  return CheckedValue(contents_->next_epoch.load());
}

uint64_t SharedState::Ring(RingWord which) const {
  return CheckedValue(contents_->ring[which].load());
}

bool SharedState::ExchangeRing(RingWord which, uint64_t* expected,
                               uint64_t desired) {
  std::atomic<uint64_t>& word = contents_->ring[which];
  uint64_t old = word.load();
  directory_->env().BeforeSharedWrite();
  if (CheckedValue(old) == *expected &&
      word.compare_exchange_strong(old, WithChecksum(desired))) {
    return true;
  }
  *expected = CheckedValue(old);
  return false;
}

absl::StatusOr<std::unique_ptr<SharedState::Job>> SharedState::Join(
    Index* claims) {
  // Opened again, because locks belong to an open file description.
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<File> file, directory_->OpenFile(name_));
  return std::unique_ptr<Job>(new Job(this, claims, std::move(file)));
}

SharedState::Job::Job(SharedState* state, Index* claims,
                      std::shared_ptr<File> file)
    : state_(state), claims_(claims), file_(std::move(file)) {
  for (int seat = 0; seat < kSeats; ++seat) {
    if (!state_->directory_->env().TryLock(file_->fd(), kJobLocks + seat)) {
      continue;
    }
    // This loses nothing: `next_epoch` includes the previous job's epoch.
    state_->contents_->jobs[seat] = WithChecksum(0);
    seat_ = seat;
    turn_ = ++state_->contents_->turns[seat] & 0xff;
    return;
  }
}

uint64_t SharedState::Job::BeginFirstEpoch() {
  // Uses no lock, because a suspended process that held it would block the
  // others. If two jobs begin at once, both publish an epoch, but only one
  // advances `next_epoch`. The other tries again, and then sees the first.
  while (true) {
    uint64_t next = state_->contents_->next_epoch.load();
    uint64_t furthest = 0;
    for (int seat = 0; seat < kSeats; ++seat) {
      const uint64_t begun = CheckedValue(state_->contents_->jobs[seat]);
      if (seat != seat_ && begun > furthest && IsAlive(seat)) furthest = begun;
    }
    const uint64_t epoch = furthest > 0 ? furthest - 1 : CheckedValue(next);
    PublishInSlot(epoch + 1);
    if (furthest > 0) Raise(&state_->contents_->next_epoch, epoch + 1);
    if (furthest > 0 || state_->contents_->next_epoch.compare_exchange_strong(
                            next, WithChecksum(epoch + 1))) {
      return epoch;
    }
  }
}

bool SharedState::IsAlive(const File& file, int seat) const {
  return LockByte(file.fd(), F_OFD_GETLK, kJobLocks + seat, F_WRLCK)
             .value_or(F_UNLCK) != F_UNLCK;
}

bool SharedState::Job::OthersAreAlive() const {
  for (int seat = 0; seat < kSeats; ++seat) {
    std::atomic<uint64_t>& job = state_->contents_->jobs[seat];
    uint64_t begun = job.load();
    if (seat == seat_ || CheckedValue(begun) == 0) continue;
    if (IsAlive(seat)) return true;
    // The job is dead. Its seat need not be checked again.
    job.compare_exchange_strong(begun, WithChecksum(0));
  }
  return false;
}

uint64_t SharedState::Job::OwnClaim(Generation generation) const {
  const uint64_t second = state_->directory_->env().Seconds() & kSeconds;
  static_assert(kSeats == 1 << 8, "");
  return (uint64_t{generation} + 1) << 32 | second << 16 | turn_ << 8 |
         (seat_ < 0 ? kReleased : seat_);
}

bool SharedState::Job::IsOthers(uint64_t word) const {
  const int seat = word & 0xff;
  const uint64_t turn = word >> 8 & 0xff;
  const uint64_t second = state_->directory_->env().Seconds();
  const uint64_t age = (second - (word >> 16)) & kSeconds;
  return (word & kReleased) == 0 && word != 0 && seat != seat_ &&
         turn == (state_->contents_->turns[seat] & 0xff) &&
         age < kClaimSeconds && IsAlive(seat);
}

bool SharedState::Job::Claim(uint64_t sample, Generation generation) {
  if (seat_ < 0 || !claims_->Has(sample)) return true;
  // If the state file was cut, other jobs do not see this one: publish it.
  if (state_->contents_->jobs[seat_].load(std::memory_order_relaxed) == 0) {
    Publish(begun_);
  }
  const uint64_t own = OwnClaim(generation);
  uint64_t word = claims_->Load(sample);
  do {
    if (word >> 32 >= uint64_t{generation} + 1 && IsOthers(word)) return false;
  } while (!claims_->CompareExchange(sample, &word, own));
  return true;
}

std::optional<Generation> SharedState::Job::ClaimNext(uint64_t sample,
                                                      Generation least,
                                                      bool also_claimed) {
  if (!claims_->Has(sample)) return least;
  uint64_t word = claims_->Load(sample);
  Generation next;
  do {
    if (!also_claimed && IsOthers(word)) return std::nullopt;
    // A claim has a generation + 1, so this is the generation after the last.
    const uint64_t after = word >> 32;
    next = after <= least + kMostAhead && after < kNoGeneration
               ? std::max<Generation>(after, least)
               : least;
    state_->directory_->env().BeforeSharedWrite();
  } while (!claims_->CompareExchange(sample, &word, OwnClaim(next)));
  return next;
}

void SharedState::Job::NoteBegun(uint64_t sample, Generation generation) {
  if (!claims_->Has(sample)) return;
  uint64_t word = claims_->Load(sample);
  const uint64_t own = OwnClaim(generation) | kReleased;
  while (word >> 32 <= generation) {
    state_->directory_->env().BeforeSharedWrite();
    if (claims_->CompareExchange(sample, &word, own)) return;
  }
}

void SharedState::Release(Index* claims, uint64_t sample,
                          Generation generation) {
  if (!claims->Has(sample)) return;
  uint64_t word = claims->Load(sample);
  while (word >> 32 == uint64_t{generation} + 1 && (word & kReleased) == 0 &&
         !claims->CompareExchange(sample, &word, word | kReleased)) {
  }
}

absl::StatusOr<std::vector<NamedNumbers>> SharedState::LivingJobs() const {
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<File> file, directory_->OpenFile(name_));
  std::vector<NamedNumbers> jobs;
  for (int seat = 0; seat < kSeats; ++seat) {
    const int64_t begun = CheckedValue(contents_->jobs[seat]);
    if (begun == 0 || !IsAlive(*file, seat)) continue;
    jobs.push_back({{"process", contents_->processes[seat]},
                    {"epoch", begun - 1},
                    {"handed_out", contents_->handed_out[seat]}});
  }
  return jobs;
}

void SharedState::Job::Publish(uint64_t begun) {
  PublishInSlot(begun);
  Raise(&state_->contents_->next_epoch, begun);
}

void SharedState::Job::PublishInSlot(uint64_t begun) {
  begun_ = begun;
  if (seat_ >= 0) {
    state_->contents_->turns[seat_] = turn_;
    state_->contents_->processes[seat_] = getpid();
    state_->contents_->jobs[seat_] = WithChecksum(begun);
  }
}

}  // namespace refurbish_tf
