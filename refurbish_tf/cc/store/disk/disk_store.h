// The cache store on disk (Lee et al., USENIX ATC 2021, section 5.1), which
// several processes may have open at once (Kakaraparthi et al., HotCloud 2019):
// what one of them has put, the others get.
#ifndef REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_
#define REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "refurbish_tf/cc/store/disk/writer.h"

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
  // So often a process that does nothing looks whether others have left something
  // to do for it: it alone can give back the space of its segments.
  int64_t look_after_ms = 5'000;
  int reads_in_flight = 64;
  // Null for the best of this machine.
  std::unique_ptr<ReadQueue> read_queue;
  StoreEnv* env = &StoreEnv::Default();
};

// The payload of a record, which is whatever the user makes of it.
//
// Files, all in one directory:
//   store     format version, settings; text.
//   state     what the processes share in memory: counts, epochs (SharedState).
//   index     a word for each sample: where its record is (Index).
//   claims    a word for each sample: who is preparing it (SharedState).
//   small-N, large-N   records (Segments).
//   lock      locked by all that have the store open, alone by who makes it; bytes of
//             it by who owns a segment.
//
// A record is written first and the index set after it, by an atomic operation,
// so that a process may die at any moment. Of all this only `store` is synchronised
// with the disk: after a loss of power the checksums decide. What is torn, corrupt,
// of another sample or of a store that was here before is absent.
//
// Thread-safe. No lock is held over I/O, and nobody waits for another process but who
// opens the store or adds settings to it. A child made by fork() may get what there
// is; what it puts is not stored.
//
// Lock order: WriteBuffer's, then those of MappedFile; all others are taken alone.
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
    int64_t epochs = 0;        // That any job has begun, ever.
  };

  // Opens the store in `directory`, or makes one.
  static absl::StatusOr<std::unique_ptr<DiskStore>> Open(
      const std::string& directory, DiskStoreOptions options);
  // Writes what is still in memory. A child made by fork() leaves it to its parent.
  ~DiskStore();

  int64_t max_bytes() const { return max_bytes_; }
  int reads_in_flight() const { return reads_in_flight_; }
  const std::string& directory() const { return directory_->path(); }
  // Whether the directory was deleted, or is another one by now.
  bool DirectoryIsGone() const;

  // Compares `settings` with those that the store was written under and adds
  // those that it lacks. Where some differ it replaces them, or fails, naming them.
  // Unavailable when another process is writing some for longer than `patience`.
  absl::Status Agree(const Settings& settings, bool replace = false,
                     std::chrono::milliseconds patience = std::chrono::minutes(1))
      ABSL_LOCKS_EXCLUDED(settings_mu_);
  Settings settings() const ABSL_LOCKS_EXCLUDED(settings_mu_);

  SharedState& state() { return records_->state(); }
  Records& records() { return *records_; }

  // A training job on this store, which must outlive it.
  absl::StatusOr<std::unique_ptr<SharedState::Job>> Join() {
    return state().Join(claims_.get());
  }

  // Makes room for the words of the first so many samples, as far as there is some,
  // so that who claims them or puts them need not.
  void MakeRoomFor(uint64_t num_samples);

  // As those of CacheStore.
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record);
  bool Contains(uint64_t index, GenerationRange wanted);
  Generation StoredGeneration(uint64_t index) const;
  // `parts` are the payload. What is stored is in memory at first: it is lost where
  // it cannot be written.
  PutResult Put(uint64_t index, Generation generation, const iovec* parts,
                int num_parts);
  bool Remove(uint64_t index, bool evict);
  void Clear();
  // The samples that are stored, in memory or on disk; some of them twice.
  std::vector<uint64_t> Indices() const;
  // Without a look at the files.
  CacheStoreStats StoreStats() const;
  Counts Stats() const;

  // What is stored of the sample, if it is of this generation, was found to be of
  // no use: it is absent, and counted as corrupt.
  void Discard(uint64_t index, Generation generation);

  // Writes what is still in memory, for other processes to see.
  void Flush() { writer_->buffer().Flush(); }

  // Deletes or empties segments, as the writer does from time to time.
  void Compact() { writer_->Compact(/*all=*/false); }

  // Reads every record. Returns how many are right and how many were not, which
  // are absent from then on.
  std::pair<int64_t, int64_t> Verify();

 private:
  DiskStore(std::unique_ptr<Directory> directory,
            std::shared_ptr<File> lock_file, const DiskStoreOptions& options)
      : max_bytes_(options.max_bytes),
        reads_in_flight_(options.reads_in_flight),
        directory_(std::move(directory)),
        lock_file_(std::move(lock_file)),
        segments_(directory_.get(), lock_file_) {}

  // Opens the files, with the directory locked; `alone` where nobody else has it
  // open.
  absl::Status OpenFiles(DiskStoreOptions options, bool alone);

  const int64_t max_bytes_;
  const int reads_in_flight_;
  const std::unique_ptr<Directory> directory_;
  const std::shared_ptr<File> lock_file_;
  Segments segments_;
  std::unique_ptr<Index> claims_;
  std::unique_ptr<Records> records_;
  Warning refused_warning_;

  mutable std::mutex settings_mu_;
  Settings settings_ ABSL_GUARDED_BY(settings_mu_);

  std::unique_ptr<Writer> writer_;  // Ends first.
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_DISK_STORE_H_
