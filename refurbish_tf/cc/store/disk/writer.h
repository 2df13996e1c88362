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

// The only thread of a store that writes records. It writes them in batches,
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
  ~Writer() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    Wake();
    thread_.join();
  }
  absl::Status Start();

  WriteBuffer& buffer() { return buffer_; }
  TransitPuts& transit() { return transit_; }

  // Called when records have died, because compaction may then be due.
  void RecordsDied() {
    if (CompactionIsDue()) Wake();
  }
  // Returns when all that was put before has been written or has failed.
  void Flush() { Ask(&flushes_); }
  // Returns when a compaction that began after the call has ended. `all`: also
  // compacts the segments to which records are being appended.
  void Compact(bool all) {
    if (all) seal_ = true;
    Ask(&compactions_);
  }
  // Counts a failed write. Prints a warning, once.
  void WriteFailed(const absl::Status& status, int64_t times = 1);

 private:
  // How many flushes, or compactions, other threads have asked for, and how
  // many of these were done. The threads wait for them.
  struct Requests {
    uint64_t asked = 0;
    uint64_t answered = 0;
  };
  void Ask(Requests* requests) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t NumAsked(const Requests& requests) const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return requests.asked;
  }
  void Answer(Requests* requests, uint64_t asked) ABSL_LOCKS_EXCLUDED(mu_);

  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteUntilTheEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for work, but at most until `until`. False if the writer is to end.
  bool Await(std::chrono::steady_clock::time_point until)
      ABSL_LOCKS_EXCLUDED(mu_);

  std::chrono::steady_clock::time_point DueAt() const ABSL_LOCKS_EXCLUDED(mu_);
  void WriteBatch() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteBatchOfKept();
  using Entries = std::vector<const WriteBuffer::Entry*>;
  // Writes records, of `space` bytes in all, with one call, and publishes them.
  absl::Status Write(const Entries& entries, uint64_t space);
  bool CompactionIsDue() const {
    return IsCompactionDue(records_->state(), compacted_at_);
  }
  void RunCompaction();
  void MendFiles();

  const Directory* const directory_;
  Records* const records_;
  Index* const claims_;
  TransitRing* const ring_;
  const uint64_t write_buffer_;
  // `SharedState::changed()` at the last compaction.
  std::atomic<uint64_t> compacted_at_{0};
  WriteBuffer buffer_;
  TransitPuts transit_;
  Warning lost_warning_;
  Warning failure_warning_;
  Warning gone_warning_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> seal_{false};

  mutable std::mutex mu_;
  std::condition_variable wake_;
  std::condition_variable answered_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  Requests flushes_ ABSL_GUARDED_BY(mu_);
  Requests compactions_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace refurbish_tf
