// The cache store on disk (Lee et al., USENIX ATC 2021, section 5.1), which
// several processes may have open at once (Kakaraparthi et al., HotCloud 2019):
// what one of them has put, the others get.
#ifndef REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_
#define REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

struct DiskStoreOptions {
  // Of the records that are live. The files may take twice as much for a while.
  int64_t max_bytes = kUnlimited;
  // Delete what is there.
  bool overwrite = false;
  // Fail where there is no store, or a damaged one, and do not begin anew.
  bool must_exist = false;
  uint64_t small_segment = kMaxSmallSegment;
  uint64_t large_segment = kMaxLargeSegment;
  // So much is held in memory before it is written, and for so long at most.
  size_t write_buffer = 256 << 10;
  int64_t write_delay_ms = 10;
  int reads_in_flight = 64;
  // Null for the best of this machine.
  std::unique_ptr<ReadQueue> read_queue;
};

// The payload of a record, which is whatever the user makes of it.
//
// Files, all in one directory:
//   store     format version, settings; text.
//   state     what the processes share in memory: counts, epochs (SharedState).
//   index     a word for each sample: where its record is (Index).
//   claims    a word for each sample: who is preparing it (SharedState).
//   small-N, large-N   records (Segments).
//   lock      locked by all that have the store open, alone by who makes it.
//
// A record is written first and the index set after it, by an atomic operation,
// so that a process may die at any moment. Nothing is synchronised with the disk:
// after a power cut the checksums decide. What is torn, corrupt or of another
// sample is absent.
//
// Thread-safe.
//
// Lock order: `maintenance_mu_`, `write_mu_`, `mu_`, those of the members. No
// file is read or written with `mu_` held.
class DiskStore {
 public:
  struct Counts {
    CacheStoreStats store;     // Live entries and bytes of all processes.
    int64_t disk_bytes = 0;    // Of all segments.
    int64_t segments = 0;
    int64_t compactions = 0;   // Segments that this process has emptied.
    int64_t bytes_put = 0;     // By this process, ...
    int64_t bytes_moved = 0;   // ... and moved in compactions.
    int64_t corrupt = 0;       // Records that were found absent by checking them.
    int64_t foreign_hits = 0;  // On what others have written.
    int64_t failed_writes = 0;
  };

  // Opens the store in `directory`, or makes one. Takes constant time.
  static absl::StatusOr<std::unique_ptr<DiskStore>> Open(
      const std::string& directory, DiskStoreOptions options);
  // Writes what is still in memory.
  ~DiskStore();

  int64_t max_bytes() const { return options_.max_bytes; }
  const std::string& directory() const { return directory_; }

  // Compares `settings` with those that the store was written under and adds
  // those that it lacks. Fails, naming them, when some differ.
  absl::Status Agree(const Settings& settings) ABSL_LOCKS_EXCLUDED(settings_mu_);
  Settings settings() const ABSL_LOCKS_EXCLUDED(settings_mu_);

  SharedState& state() { return *state_; }

  // A training job on this store, which must outlive it.
  absl::StatusOr<std::unique_ptr<SharedState::Job>> Join() {
    return state_->Join(claims_.get());
  }

  // As those of CacheStore.
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Contains(uint64_t index, GenerationRange wanted) ABSL_LOCKS_EXCLUDED(mu_);
  Generation StoredGeneration(uint64_t index) const ABSL_LOCKS_EXCLUDED(mu_);
  // `parts` are the payload.
  PutResult Put(uint64_t index, Generation generation, const iovec* parts,
                int num_parts)
      ABSL_LOCKS_EXCLUDED(maintenance_mu_, write_mu_, mu_);
  bool Remove(uint64_t index, bool evict) ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(maintenance_mu_, write_mu_, mu_);
  Counts Stats() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  // Without a look at the files.
  CacheStoreStats StoreStats() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);

  // What is stored of the sample, if it is of this generation, was found to be of
  // no use: it is absent, and counted as corrupt.
  void Discard(uint64_t index, Generation generation);

  // The samples that are stored, in memory or on disk; some of them twice.
  std::vector<uint64_t> Indices() const ABSL_LOCKS_EXCLUDED(mu_);

  // Writes what is still in memory, for other processes to see.
  void Flush() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);

  // Deletes or empties segments, as the background thread does from time to
  // time. Returns how many.
  int Compact() ABSL_LOCKS_EXCLUDED(maintenance_mu_, write_mu_, mu_);

  // Reads every record. Returns how many are right and how many were not, which
  // are absent from then on.
  std::pair<int64_t, int64_t> Verify();

  // Reads that are under way before they are wanted. Thread-safe.
  class ReadAhead {
   public:
    explicit ReadAhead(DiskStore* store) : store_(store) {}
    // Ends what was started and not got.
    ~ReadAhead();

    // How many more may be started, 0 while there are enough.
    size_t Room() const ABSL_LOCKS_EXCLUDED(mu_);
    using Wanted = WantedSample;
    void Start(const std::vector<Wanted>& wanted) ABSL_LOCKS_EXCLUDED(mu_);
    // As `DiskStore::Get`, for each that was started once, in any order.
    bool Get(const Wanted& wanted, RecordBuffer* record)
        ABSL_LOCKS_EXCLUDED(mu_);

   private:
    struct Entry {
      uint64_t word;
      bool foreign;
      std::shared_ptr<File> file;
      RecordBuffer buffer;
      Read read;
    };

    DiskStore* const store_;
    mutable std::mutex mu_;
    // By ticket.
    std::unordered_map<uint64_t, std::unique_ptr<Entry>> entries_
        ABSL_GUARDED_BY(mu_);
    size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  };

 private:
  // A record that is in memory and not yet on the disk.
  struct Queued {
    uint32_t index;
    Generation generation;
    size_t offset;
    size_t size;  // 0 when it has been dropped.
    // What it will add to the live entries and bytes.
    int64_t new_entries;
    int64_t new_bytes;
  };
  struct WriteBuffer {
    std::vector<char> bytes;
    std::vector<Queued> records;
  };
  // Which of them is the sample's newest.
  struct Pending {
    size_t record;
    bool flushing;  // In `flushing_`, else in `filling_`.
  };

  DiskStore(std::string directory, DiskStoreOptions options);

  enum class ReadResult {
    kRight,
    kWrong,
    kNotNow,  // As the process has too many files open.
  };

  // Where the record is that is wanted; 0 if there is none.
  uint64_t Locate(uint64_t index, GenerationRange wanted) const;
  bool GetPending(uint64_t index, GenerationRange wanted, RecordBuffer* record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads and checks the record that `word` points to.
  ReadResult ReadRecord(uint64_t index, uint64_t word, bool anew,
                        RecordBuffer* record, bool* foreign);
  // The record is not what the index says: makes it absent, if the index still
  // says so.
  void MakeAbsent(uint64_t index, uint64_t word);

  const Queued& QueuedOf(const Pending& pending) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (pending.flushing ? flushing_ : filling_).records[pending.record];
  }
  // Drops a record of `filling_`.
  void DropQueued(size_t record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The space of the sample's record, which a newer one would take the place of.
  int64_t ReplacedSpace(uint64_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the limit allows a record of this sample.
  bool HasRoom(uint64_t index, uint64_t space) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PutResult PutSmall(const RecordHeader& header, uint64_t space,
                     const iovec* parts, int num_parts)
      ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  PutResult PutLarge(const RecordHeader& header, uint64_t space,
                     const iovec* parts, int num_parts)
      ABSL_LOCKS_EXCLUDED(write_mu_);
  // Writes parts to a new place of a segment. False if it cannot.
  bool Write(std::vector<iovec> parts, uint64_t space, bool large,
             Segments::Place* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the index to a record that has been written. `*dead` is the word of
  // what is dead by that, if anything: the old record or this one.
  PutResult Publish(uint64_t index, const Location& location, uint64_t* dead)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Removes the sample's word, if it has one, and returns it.
  uint64_t RemoveWord(uint64_t index, bool evict);
  // Sets the index from `word` to 0. False if it was something else.
  bool ClearWord(uint64_t index, uint64_t word);
  // Gives the space of a dead record back, if it can be done at once.
  void Dispose(uint64_t word);
  bool RemoveLocked(uint64_t index, bool evict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops what is in memory of the sample and older than `generation`.
  bool DropPending(uint64_t index, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  void WriteFailed(int error);
  // Corrects the shared counts, which a process that died may have left wrong.
  void Recount() ABSL_LOCKS_EXCLUDED(write_mu_);
  // Moves a record to another segment. False if it cannot.
  bool Move(uint64_t index, uint64_t word) ABSL_LOCKS_EXCLUDED(write_mu_);
  bool FlushIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether so many times as much has changed since the last compaction as is
  // worth one.
  bool CompactionIsDue(uint64_t times = 1) const;
  void WakeForCompaction() ABSL_LOCKS_EXCLUDED(mu_);
  void Background() ABSL_LOCKS_EXCLUDED(maintenance_mu_, write_mu_, mu_);
  void WarnOnce(std::atomic<bool>* warned, const std::string& what);

  const std::string directory_;
  DiskStoreOptions options_;
  std::shared_ptr<File> lock_file_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Index> claims_;
  std::unique_ptr<SharedState> state_;
  Segments segments_;
  std::unique_ptr<ReadQueue> read_queue_;

  mutable std::mutex settings_mu_;
  Settings settings_ ABSL_GUARDED_BY(settings_mu_);

  // Held by whoever compacts.
  std::mutex maintenance_mu_;
  // Held from where a record is appended to where the index says so.
  std::mutex write_mu_;
  bool adopted_ ABSL_GUARDED_BY(write_mu_) = false;
  mutable std::mutex mu_;
  WriteBuffer filling_ ABSL_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point filling_since_ ABSL_GUARDED_BY(mu_);
  // Changed with `write_mu_` held, too.
  WriteBuffer flushing_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mu_);
  // Sums over the records of both buffers.
  int64_t pending_entries_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pending_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::condition_variable wake_background_;
  // What SharedState::changed() was at the last compaction.
  std::atomic<uint64_t> compacted_at_{0};
  std::atomic<bool> cancelled_{false};
  // Nobody else has the store open nor can open it, so that the shared counts can
  // be corrected.
  std::atomic<bool> recount_{false};

  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
  std::atomic<int64_t> evictions_{0};
  std::atomic<int64_t> compactions_{0};
  std::atomic<int64_t> bytes_put_{0};
  std::atomic<int64_t> bytes_moved_{0};
  std::atomic<int64_t> corrupt_{0};
  std::atomic<int64_t> foreign_hits_{0};
  std::atomic<int64_t> failed_writes_{0};
  std::atomic<bool> corrupt_warned_{false};
  std::atomic<bool> failure_warned_{false};
  std::atomic<bool> refused_warned_{false};

  std::thread background_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_
