#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/mapped_file.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// What the processes that have a store open share in addition to the index: how
// much is in the store, and which epoch each training job is in. It is a small
// file that all of them map. Thread-safe.
//
// How jobs share a store: a job uses the generation that it wants or any newer
// one, so jobs in different epochs do not disturb each other.
// (`UsedGenerations` bounds how often a newer one is used.) Before a job
// prepares a sample, it claims the sample. It defers a sample that another job
// has claimed to the end of the epoch, when it is most likely in the store. A
// job that joins begins in the epoch of the furthest living job or, if there is
// none, in the epoch after the last one that was begun.
//
// For a sample that is not kept, the schedule wants no particular generation.
// The sample's claim says which generation was begun last, and which job, if
// any, is preparing it.
class SharedState {
 public:
  // `directory` must outlive the result.
  static absl::StatusOr<std::unique_ptr<SharedState>> Open(
      const Directory* directory, const std::string& name);

  // Live records and their bytes.
  int64_t entries() const { return contents_->entries.load(); }
  int64_t bytes() const { return contents_->bytes.load(); }
  void Add(int64_t entries, int64_t bytes) {
    contents_->entries += entries;
    contents_->bytes += bytes;
  }
  // Adds to both, or returns false if there would be more than `most` bytes.
  bool TryAdd(int64_t entries, int64_t bytes, int64_t most);
  // For a process that is alone, or that has counted the records again.
  void SetCounts(int64_t entries, int64_t bytes) {
    contents_->entries = entries;
    contents_->bytes = bytes;
  }

  // One after the last epoch that any job has begun.
  int64_t epochs() const;

  // The bytes of all records that were ever appended or died. Compaction uses
  // them as a clock.
  uint64_t changed() const { return contents_->changed.load(); }
  void AddChanged(uint64_t bytes) { contents_->changed += bytes; }

  // A training job on the store. It ends when this object is destroyed or its
  // process dies.
  class Job {
   public:
    // Begins the job's first epoch and returns its number. It is the epoch of
    // the furthest living job, whose samples it can use, or, if there is none,
    // the epoch after all that were ever begun.
    uint64_t BeginFirstEpoch();
    void BeginEpoch(uint64_t epoch) {
      NoteHandedOut(0);
      Publish(epoch + 1);
    }

    // Whether other jobs have begun an epoch and not ended.
    bool OthersAreAlive() const;

    // Claims the preparation of a sample. False while another living job is
    // preparing this generation or a newer one: the sample is then likely to be
    // in the store soon. Does no I/O: if there is no room for the claim,
    // returns true, and other jobs do not see the claim.
    bool Claim(uint64_t sample, Generation generation);

    // Claims the preparation of a sample that is not kept. Returns its
    // generation: `least`, or the one after the last that was begun if that is
    // later. Unless `also_claimed`, returns nothing while another living job is
    // preparing it.
    std::optional<Generation> ClaimNext(uint64_t sample, Generation least,
                                        bool also_claimed);
    // Notes, for a job that is alone, that a generation was begun. Claims
    // nothing.
    void NoteBegun(uint64_t sample, Generation generation);

    // For people to read: how much of its epoch the job has handed over.
    void NoteHandedOut(uint64_t count) {
      if (seat_ >= 0) state_->contents_->handed_out[seat_] = count;
    }

    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class SharedState;
    Job(SharedState* state, Index* claims, std::shared_ptr<File> file);
    // Both publish `begun`, which is one after the epoch that was begun. Living
    // jobs see it; after `Publish`, later jobs also do.
    void PublishInSlot(uint64_t begun);
    void Publish(uint64_t begun);
    bool IsAlive(int seat) const { return state_->IsAlive(*file_, seat); }
    uint64_t OwnClaim(Generation generation) const;
    // Whether a word says that another living job is preparing the sample.
    bool IsOthers(uint64_t word) const;

    SharedState* const state_;
    Index* const claims_;
    // The state file, opened for this job alone, because the lock on the job's
    // seat belongs to the open file.
    const std::shared_ptr<File> file_;
    int seat_ = -1;  // -1 if all are taken: others do not see this job.
    uint64_t turn_ = 0;
    // One after the last epoch that this job has begun.
    std::atomic<uint64_t> begun_{0};
  };
  // This object and `claims`, which all jobs share, must outlive the job.
  absl::StatusOr<std::unique_ptr<Job>> Join(Index* claims);

  // The words of the ring of samples in transit (TransitRing): its head, and
  // its geometry as a number. `Ring` returns 0 for a word that is unset or
  // damaged.
  enum RingWord { kHead, kGeometry };
  uint64_t Ring(RingWord which) const;
  // Sets the word to `desired`, below 2^48, if it is `*expected`; otherwise
  // sets `*expected` to what it is.
  bool ExchangeRing(RingWord which, uint64_t* expected, uint64_t desired);

  // Releases the claim of a generation that is in the ring, or never will be.
  static void Release(Index* claims, uint64_t sample, Generation generation);

  // For each living job: its process, its epoch, and how many samples of the
  // epoch it has handed over.
  absl::StatusOr<std::vector<NamedNumbers>> LivingJobs() const;

  // To see whether it was cut, and mend it. Zeros replace what was cut.
  MappedFile& file() { return *file_; }

 private:
  // A living job has a seat: its entries below, and a byte that it locks.
  static constexpr int kSeats = 256;

  struct Contents {
    std::atomic<int64_t> entries;
    std::atomic<int64_t> bytes;
    std::atomic<uint64_t> changed;
    // One after the last epoch that any job has begun, with a checksum. A word
    // with a wrong checksum counts as unset.
    std::atomic<uint64_t> next_epoch;
    // One after the last epoch of the job in each seat, also with a checksum.
    std::atomic<uint64_t> jobs[kSeats];
    // How many jobs have had each seat. This distinguishes the claims of a job
    // from those of the previous job in its seat.
    std::atomic<uint64_t> turns[kSeats];
    // For people to read: each job's process, and what it has handed over.
    std::atomic<int64_t> processes[kSeats];
    std::atomic<int64_t> handed_out[kSeats];
    // Indexed by `RingWord`. Each has a checksum.
    std::atomic<uint64_t> ring[2];
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "");

  SharedState(const Directory* directory, std::string name,
              std::unique_ptr<MappedFile> file)
      : directory_(directory),
        name_(std::move(name)),
        file_(std::move(file)),
        contents_(reinterpret_cast<Contents*>(file_->Find(0))) {}

  // Whether a living job has the seat. `file` is the state file, opened again:
  // a lock is invisible through the descriptor that holds it.
  bool IsAlive(const File& file, int seat) const;

  const Directory* const directory_;
  const std::string name_;
  const std::unique_ptr<MappedFile> file_;
  Contents* const contents_;
};

}  // namespace refurbish_tf
