// The cache store on disk (Lee et al., USENIX ATC 2021, section 5.1), which
// several processes may have open at once (Kakaraparthi et al., HotCloud 2019):
// each gets what the others have put.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/mapped_checksums.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"
#include "refurbish_tf/cc/store/disk/writer.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

struct DiskStoreOptions {
  // The limit on live records. For a while, files may take twice as many bytes.
  int64_t max_bytes = kUnlimited;
  // Deletes what the directory holds.
  bool overwrite = false;
  // Fails if there is no store, or a damaged one, instead of starting empty.
  bool must_exist = false;
  uint64_t small_segment = kMaxSmallSegment;
  uint64_t large_segment = kMaxLargeSegment;
  // Records wait in memory until they have this many bytes, or for this time.
  size_t write_buffer = 256 << 10;
  int64_t write_delay_ms = 10;
  int reads_in_flight = 64;
  // Null for the default.
  std::unique_ptr<ReadQueue> read_queue;
  StoreEnv* env = &StoreEnv::Default();
};

// Records by sample index. The payload of a record is bytes, which the caller
// interprets.
//
// Files, all in one directory:
//   store     format version, settings; text.
//   state     what the processes share in memory: counts, epochs (SharedState).
//   index     a word for each sample: where its record is (Index).
//   claims    a word for each sample: which job prepares it (SharedState).
//   sources   a word for each sample: a checksum of what it was prepared from
//             (MappedChecksums); only if a stage has noted one.
//   small-N, large-N   records (Segments).
//   ring      a word for each unit of the ring of samples in transit, and
//   transit   their records (TransitRing); only if a ring is planned.
//   lock      held shared by all processes that have the store open, and
//             exclusively by one that makes it; a byte per segment: its owner.
//
// A process writes a record to a segment of its own and then sets the sample's
// word in the index by compare-and-swap. So it may die at any moment, and
// nothing has to be repaired. Only `store` is synchronised with the disk; the
// rest is left to the page cache, which is the memory tier. After a power
// failure, a record counts only if its checksum and its store id are right. The
// id changes when a store starts empty, because deleted files may reappear. A
// record that is torn, corrupt, of another sample or of an earlier store counts
// as missing.
//
// A large sample has no file of its own: opening and closing it would cost two
// more system calls per read, and a punched hole frees its space just as
// exactly. There is no compression: LZ4 shrinks augmented photographs to 0.7 of
// their size, but decompressing (2.3 µs for 3 KiB, 89 µs for 150 KiB) takes
// more CPU time than the read, and CPU time is the scarce resource.
//
// Thread-safe. Only planning the ring and opening `sources` hold a lock during
// I/O, and only opening the store and adding settings wait for another process.
// A child made by fork() can get stored samples, but its puts fail.
//
// Lock order: `plan_mu_` or the lock of WriteBuffer, DiskReadAhead or
// MappedChecksums, then MappedFile's or BufferPool's. Others are taken alone.
class DiskStore {
 public:
  // Opens the store in `directory`, or makes one.
  static absl::StatusOr<std::unique_ptr<DiskStore>> Open(
      const std::string& directory, DiskStoreOptions options);
  // Writes what is in memory. A child made by fork() leaves that to its parent.
  ~DiskStore();

  int64_t max_bytes() const { return max_bytes_; }
  int reads_in_flight() const { return reads_in_flight_; }
  const std::string& directory() const { return directory_->path(); }
  // Fails if the directory was deleted or replaced.
  absl::Status CheckDirectory() const;

  // Compares `settings` with those that the store was written with, and adds
  // the missing ones. If some differ, replaces them if `replace` is true, and
  // otherwise fails and names them. Unavailable if another process is writing
  // settings for longer than `patience`.
  absl::Status Agree(const Settings& settings, bool replace = false,
                     std::chrono::milliseconds patience = std::chrono::minutes(
                         1)) ABSL_LOCKS_EXCLUDED(settings_mu_);
  Settings settings() const ABSL_LOCKS_EXCLUDED(settings_mu_);

  SharedState& state() { return records_->state(); }
  Records& records() { return *records_; }
  MappedChecksums& source_sums() { return *source_sums_; }

  // Registers a training job. The store must outlive the job.
  absl::StatusOr<std::unique_ptr<SharedState::Job>> Join() {
    return state().Join(claims_.get());
  }

  // Makes room for `num_samples` samples in the index and the claims, as far as
  // the disk has room. Then puts need not do so, and other jobs see all claims.
  void MakeRoomFor(uint64_t num_samples) {
    // If this fails, a later put tries again and reports why.
    (void)records_->index().ReserveFirst(num_samples);
    (void)claims_->ReserveFirst(num_samples);
  }

  // Sets the size of the ring: `bytes` of `max_bytes()`, in records of
  // `record_bytes`, or -1 if they vary. The rest is for samples that are kept.
  // With 0 bytes there is no ring. Every stage that uses the store calls this
  // once it knows the sizes. If other processes have the store open, the ring
  // that they agreed on stays, but not one of an earlier run. Does I/O.
  absl::Status PlanTransit(int64_t bytes, int64_t record_bytes)
      ABSL_LOCKS_EXCLUDED(plan_mu_);
  // Null if there is no ring.
  TransitRing* transit() { return ring_->IsOpen() ? ring_.get() : nullptr; }
  // Puts a sample that is not kept into the ring, for other processes. Does no
  // I/O and never waits: kNoRoom if too much is still to be written. Releases
  // the sample's claim when the sample is in the ring or given up.
  PutResult PutInTransit(uint64_t index, Generation generation,
                         absl::Span<const iovec> parts);

  // Like the methods of `SampleMap`.
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record);
  bool Contains(uint64_t index, GenerationRange wanted);
  Generation StoredGeneration(uint64_t index) const {
    const Generation generation = writer_->buffer().GenerationOf(index);
    return generation != kNoGeneration ? generation
                                       : records_->StoredGeneration(index);
  }
  // `parts` are the payload. A stored record is in memory at first, and is lost
  // if it cannot be written later. Does no I/O, except that it extends the
  // index, once in 65,536 samples, if `MakeRoomFor` has not.
  PutResult Put(uint64_t index, Generation generation,
                absl::Span<const iovec> parts);
  bool Remove(uint64_t index, bool evict);
  void Clear();
  // The indices of all stored samples. Some may be listed twice.
  std::vector<uint64_t> Indices() const;
  // The live entries and bytes of all processes, and the hits, misses and
  // evictions of this one. Does not access the files.
  SampleMapStats Stats() const;
  const Records::Counts& counts() const { return records_->counts(); }
  // The segments of all processes; `disk_bytes` includes the ring.
  Segments::Usage DiskUsage() const {
    Segments::Usage usage = segments_.TotalUsage();
    usage.disk_bytes += ring_bytes();
    return usage;
  }
  int64_t ring_bytes() const { return ring_->DiskBytes(); }

  // Removes the record of a sample if it is of this generation, and counts it
  // as corrupt. For a caller that cannot use the record.
  void Discard(uint64_t index, Generation generation) {
    const uint64_t word = records_->index().Load(index);
    if (word != 0 && TagOfWord(word) == TagOf(generation)) {
      records_->MakeAbsent(index, word);
    }
  }

  // Writes what is still in memory, for other processes to see.
  void Flush() { writer_->Flush(); }

  // Deletes or empties segments, as the writer does from time to time.
  void Compact() { writer_->Compact(/*all=*/false); }

  // Reads every record. Returns how many are intact, and how many are damaged
  // and count as missing from now on.
  std::pair<int64_t, int64_t> Verify();

 private:
  DiskStore(std::unique_ptr<Directory> directory,
            std::shared_ptr<File> lock_file, const DiskStoreOptions& options)
      : max_bytes_(options.max_bytes),
        reads_in_flight_(options.reads_in_flight),
        directory_(std::move(directory)),
        lock_file_(std::move(lock_file)),
        segments_(directory_.get(), lock_file_, options.small_segment,
                  options.large_segment) {}

  // Opens the files. `alone`: no other process has the directory open.
  absl::Status OpenFiles(DiskStoreOptions options, bool alone);

  // Whether a sample can be stored at all. If not, warns once.
  bool CanStore(uint64_t index, Generation generation, size_t payload);
  RecordBuffer MakeRecord(uint64_t index, Generation generation,
                          absl::Span<const iovec> parts, size_t payload);
  // Lowers the limit on kept samples by the bytes of the ring.
  void LimitKept();

  const int64_t max_bytes_;
  const int reads_in_flight_;
  const std::unique_ptr<Directory> directory_;
  const std::shared_ptr<File> lock_file_;
  Segments segments_;
  std::unique_ptr<Index> claims_;
  std::unique_ptr<MappedChecksums> source_sums_;
  std::unique_ptr<Records> records_;
  std::unique_ptr<TransitRing> ring_;
  Warning refused_warning_;
  Warning no_ring_warning_;

  // Held while the ring is planned, even during I/O. Otherwise two threads
  // could both find that this process is alone.
  std::mutex plan_mu_;
  mutable std::mutex settings_mu_;
  Settings settings_ ABSL_GUARDED_BY(settings_mu_);

  // Declared last, so destroyed first: its thread uses the other members.
  std::unique_ptr<Writer> writer_;
};

}  // namespace refurbish_tf
