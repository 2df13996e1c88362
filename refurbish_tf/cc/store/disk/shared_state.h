#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/mapped_file.h"

namespace refurbish_tf {

// What the processes that have a store open tell each other, beside the index:
// how much is in the store, and which epoch each training job is in. A small
// file that all of them map.
//
// How jobs share a store: a job takes any generation from the one it wants on
// (`UsedGenerations` bounds the uses of a newer one), so jobs at different
// epochs do not disturb each other. Before a job prepares a sample it claims
// it; a sample that another job has claimed is deferred to the end of the
// epoch, when it is most likely in the store. A job that joins begins in the
// epoch of the furthest living job, or, if none lives, in the one after the
// last that was begun.
//
// A sample that is not kept has no generation that the schedule wants: its
// claim says which one was begun last, and who prepares it now, if anybody.
//
// Thread-safe.
class SharedState {
 public:
  // `directory` must outlive it.
  static absl::StatusOr<std::unique_ptr<SharedState>> Open(
      const Directory* directory, const std::string& name);

  // Live records and their bytes.
  int64_t entries() const { return contents_->entries.load(); }
  int64_t bytes() const { return contents_->bytes.load(); }
  void Add(int64_t entries, int64_t bytes) {
    contents_->entries += entries;
    contents_->bytes += bytes;
  }
  // Adds, unless the bytes would exceed `most`; then false.
  bool TryAdd(int64_t entries, int64_t bytes, int64_t most);
  // For a process that is alone, or has counted what was lost.
  void SetCounts(int64_t entries, int64_t bytes) {
    contents_->entries = entries;
    contents_->bytes = bytes;
  }

  // One after the last epoch that any job has begun.
  int64_t epochs() const;

  // Bytes of records that were ever appended or died: a clock for compaction.
  uint64_t changed() const { return contents_->changed.load(); }
  void AddChanged(uint64_t bytes) { contents_->changed += bytes; }

  // A training job on the store. It ends when it is destroyed or its process
  // dies.
  class Job {
   public:
    // Begins the job's first epoch and returns its number: that of the furthest
    // living job, whose samples it can use; if there is none, the one after all
    // that were ever begun.
    uint64_t BeginFirstEpoch();
    void BeginEpoch(uint64_t epoch);

    // Whether other jobs have begun an epoch and not ended.
    bool OthersAreAlive() const;

    // Claims the preparation of a sample. False while another living job
    // prepares this generation or a newer one, so that the sample is likely to
    // be in the store soon. Does no I/O: if there is no room for the claim, the
    // others do not see it.
    bool Claim(uint64_t sample, Generation generation);

    // Claims the preparation of a sample that is not kept: of `least` or the
    // generation after the last that was begun, whichever is later. Nothing
    // while another living job prepares it, unless `also_claimed`.
    std::optional<Generation> ClaimNext(uint64_t sample, Generation least,
                                        bool also_claimed);
    // Notes that a generation was begun, and claims nothing: while the job is
    // alone.
    void NoteBegun(uint64_t sample, Generation generation);

    // How many samples of its epoch the job has handed out, for people to see.
    void NoteHandedOut(uint64_t count) {
      if (seat_ >= 0) state_->contents_->handed_out[seat_] = count;
    }

    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class SharedState;
    Job(SharedState* state, Index* claims, std::shared_ptr<File> file);
    // Publish the epoch begun: `PublishInSlot` to the living jobs, `Publish`
    // also to later ones.
    void PublishInSlot(uint64_t begun);
    void Publish(uint64_t begun);
    bool IsAlive(int seat) const { return state_->IsAlive(*file_, seat); }
    // What the job writes into the claims.
    uint64_t OwnClaim(Generation generation) const;
    // Whether a word says that another living job prepares the sample.
    bool IsOthers(uint64_t word) const;

    SharedState* const state_;
    Index* const claims_;
    // A descriptor of its own, which the lock on the job's seat belongs to.
    const std::shared_ptr<File> file_;
    int seat_ = -1;  // -1 if all are taken: others do not see it.
    uint64_t turn_ = 0;
    // One after the last epoch that was begun.
    std::atomic<uint64_t> begun_{0};
  };
  // This object must outlive the job, and so must `claims`, which all jobs
  // share.
  absl::StatusOr<std::unique_ptr<Job>> Join(Index* claims);

  // Of the ring of samples in transit (TransitRing): its head, and its geometry
  // as a number; 0 if it was not set or is damaged.
  enum RingWord { kHead, kGeometry };
  uint64_t Ring(RingWord which) const;
  // Sets it to `desired`, below 2^48, if it is `*expected`; else sets
  // `*expected` to what it is.
  bool ExchangeRing(RingWord which, uint64_t* expected, uint64_t desired);

  // The generation of a sample is in the ring, or will never be: whoever has
  // claimed it prepares it no more.
  static void Release(Index* claims, uint64_t sample, Generation generation);

  // A living job: its process, the epoch it is in and how much of it it has
  // handed out.
  struct LivingJob {
    int64_t process;
    uint64_t epoch;
    uint64_t handed_out;
  };
  absl::StatusOr<std::vector<LivingJob>> LivingJobs() const;

  // As those of MappedFile. Zeros replace what was cut.
  bool WasCut() const { return file_->WasCut(); }
  absl::Status Mend() { return file_->Mend(); }

 private:
  static constexpr int kSeats = 256;

  struct Contents {
    std::atomic<int64_t> entries;
    std::atomic<int64_t> bytes;
    std::atomic<uint64_t> changed;
    // Both have a checksum; a bad one counts as unset. One after the last epoch
    // begun, by any job ever ...
    std::atomic<uint64_t> next_epoch;
    // ... and by each living job.
    std::atomic<uint64_t> jobs[kSeats];
    // How many jobs have had each seat, which tells the claims of a job from
    // those of the one that had its seat before.
    std::atomic<uint64_t> turns[kSeats];
    // For people to see: of each job its process, and what it has handed out.
    std::atomic<int64_t> processes[kSeats];
    std::atomic<uint64_t> handed_out[kSeats];
    // By `RingWord`, each with a checksum.
    std::atomic<uint64_t> ring[2];
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "");

  SharedState(const Directory* directory, std::string name,
              std::unique_ptr<MappedFile> file)
      : directory_(directory),
        name_(std::move(name)),
        file_(std::move(file)),
        contents_(reinterpret_cast<Contents*>(file_->Find(0))) {}

  // Whether a job has the seat. `file` is this file, opened once more.
  bool IsAlive(const File& file, int seat) const;

  const Directory* const directory_;
  const std::string name_;
  const std::unique_ptr<MappedFile> file_;
  Contents* const contents_;
};

}  // namespace refurbish_tf
