#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "refurbish_tf/cc/store/disk/compaction.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/transit/transit_puts.h"
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"
#include "refurbish_tf/cc/store/disk/warning.h"
#include "refurbish_tf/cc/store/disk/write_buffer.h"

namespace refurbish_tf {

// The only thread of a store that writes. It writes records in batches,
// compacts segments between the batches, and mends mapped files that somebody
// has cut. It holds no lock while it writes.
class Writer {
 public:
  struct Options {
    int64_t max_bytes;
    size_t write_buffer;
    std::chrono::milliseconds write_delay;
  };

  Writer(const Directory* directory, Records* records, Index* claims,
         TransitRing* ring, const Options& options);
  // Writes what is still in memory.
  ~Writer();
  // Starts the thread. Fails if the system refuses to.
  absl::Status Start();

  WriteBuffer& buffer() { return buffer_; }
  TransitPuts& transit() { return transit_; }
  const Compaction& compaction() const { return compaction_; }
  int64_t failed_writes() const { return failed_writes_; }

  // Called when records have died: compaction may be due.
  void RecordsDied() {
    if (compaction_.IsDue()) Wake();
  }
  // Returns when all that was put before has been written or has failed.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when a compaction that began after the call has ended. `all`: also
  // compacts segments that are not full.
  void Compact(bool all) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts `times` failed writes. Prints a warning, once.
  void WriteFailed(const absl::Status& status, int64_t times);

 private:
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteUntilTheEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until there is something to do, or until `until`. False if the writer
  // is to end.
  bool Await(std::chrono::steady_clock::time_point until)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool IsStopping() const ABSL_LOCKS_EXCLUDED(mu_);

  // When the next batch is due.
  std::chrono::steady_clock::time_point DueAt() const ABSL_LOCKS_EXCLUDED(mu_);
  void WriteBatch() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteBatchOfKept();
  using Entries = std::vector<const WriteBuffer::Entry*>;
  // Writes small records with one call. If it fails, adds them to `left`.
  void WriteTogether(const Entries& entries, uint64_t space, Entries* left);
  absl::Status WriteOne(const WriteBuffer::Entry& entry);
  void Publish(const WriteBuffer::Entry& entry, Location location);
  void RunCompaction();
  void MendFiles();

  const Directory* const directory_;
  Records* const records_;
  Index* const claims_;
  TransitRing* const ring_;
  const uint64_t write_buffer_;
  Compaction compaction_;
  WriteBuffer buffer_;
  TransitPuts transit_;
  Warning lost_warning_;
  Warning failure_warning_;
  Warning gone_warning_;
  std::atomic<int64_t> failed_writes_{0};

  mutable std::mutex mu_;
  std::condition_variable wake_;
  std::condition_variable written_;
  std::condition_variable compacted_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Flushes that were requested, and how many of them have ended.
  uint64_t flushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t flushed_ ABSL_GUARDED_BY(mu_) = 0;
  // The same for compactions.
  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mu_) = 0;
  bool all_asked_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace refurbish_tf
