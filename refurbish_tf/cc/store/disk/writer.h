#ifndef REFURBISH_TF_CC_STORE_DISK_WRITER_H_
#define REFURBISH_TF_CC_STORE_DISK_WRITER_H_

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
#include "refurbish_tf/cc/store/disk/places.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/warning.h"
#include "refurbish_tf/cc/store/disk/write_buffer.h"

namespace refurbish_tf {

// The thread of a store, which alone writes: what was put, in batches; compaction,
// between the batches; and what others have cut off the files that are mapped. It
// holds no lock while it does so.
class Writer {
 public:
  struct Options {
    int64_t max_bytes;
    uint64_t small_segment;
    uint64_t large_segment;
    size_t write_buffer;
    std::chrono::milliseconds write_delay;
    std::chrono::milliseconds look_after;
  };

  Writer(const Directory* directory, Records* records, Index* claims,
         const Options& options);
  // Writes what is still in memory.
  ~Writer();
  // Begins. Fails where the system has no thread for it.
  absl::Status Start();

  WriteBuffer& buffer() { return buffer_; }
  const Compaction& compaction() const { return compaction_; }
  int64_t failed_writes() const { return failed_writes_; }

  // Records are dead: perhaps there is something to compact.
  void RecordsDied() {
    if (compaction_.IsDue()) Wake();
  }
  // Returns when a compaction has ended that began after the call; with `all`, also
  // of the segments that are not full yet.
  void Compact(bool all) ABSL_LOCKS_EXCLUDED(mu_);
  // So many times something could not be written. Says so, once.
  void WriteFailed(const absl::Status& status, int64_t times);

 private:
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteUntilTheEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until there is something to do, or until then. False when it is time to
  // end.
  bool Await(std::chrono::steady_clock::time_point until)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool IsStopping() const ABSL_LOCKS_EXCLUDED(mu_);

  void WriteBatch();
  using Entries = std::vector<const WriteBuffer::Entry*>;
  // Writes small records one after the other in one go, or adds them to those that
  // are left.
  void WriteTogether(const Entries& entries, uint64_t space, Entries* left);
  // Writes a record by itself.
  absl::Status WriteOne(const WriteBuffer::Entry& entry);
  void Publish(const WriteBuffer::Entry& entry, const Location& location);
  void RunCompaction();
  void MendFiles();
  // Somebody may have put another index in place of the one there was, too fast to
  // be seen.
  void CheckCounts();
  void SayLost(int64_t lost);

  const Directory* const directory_;
  Records* const records_;
  Index* const claims_;
  const uint64_t write_buffer_;
  const std::chrono::milliseconds look_after_;
  Places places_;
  Compaction compaction_;
  WriteBuffer buffer_;
  Warning lost_warning_;
  Warning failure_warning_;
  Warning gone_warning_;
  int64_t miscounted_ = 0;  // At the last look.
  std::atomic<int64_t> failed_writes_{0};

  mutable std::mutex mu_;
  std::condition_variable wake_;
  std::condition_variable compacted_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Compactions that were asked for, and that of these which have ended.
  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mu_) = 0;
  bool all_asked_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_WRITER_H_
