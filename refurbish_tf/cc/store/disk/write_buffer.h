#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// Records that were put but are not on the disk yet. Any thread puts and gets
// them; the writer's thread takes them in batches and publishes them when they
// are written. A put does no I/O, and waits only while `kMostBatches` batches
// are in memory. Thread-safe.
class WriteBuffer {
 public:
  struct Entry {
    uint32_t index;
    Generation generation;
    size_t record_size;
    RecordBuffer record;  // Padded to its space.
    // What publishing it will add to the live entries and bytes.
    int64_t new_entries;
    int64_t new_bytes;
    // Guarded by the buffer's lock.
    bool being_written = false;
    bool dropped = false;

    bool large() const { return record_size >= kLargeRecord; }
    uint64_t space() const { return record.size(); }
  };
  using Batch = std::vector<std::unique_ptr<Entry>>;

  // A batch is due when it has `enough` bytes, or its first record has waited
  // for `delay`. `wake` is called, with no lock held, when the writer has
  // something to do.
  WriteBuffer(Records* records, int64_t max_bytes, size_t enough,
              std::chrono::milliseconds delay, std::function<void()> wake)
      : records_(records),
        max_bytes_(max_bytes),
        enough_(enough),
        delay_(delay),
        wake_(std::move(wake)) {}

  // For any thread -----------------------------------------------------------

  // Like `SampleMap`'s methods. Writing a record that was put may still fail.
  PutResult Put(uint32_t index, Generation generation, size_t record_size,
                RecordBuffer record) ABSL_LOCKS_EXCLUDED(mu_);
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record) const
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Contains(uint64_t index, GenerationRange wanted) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    const Generation generation = GenerationOf(index);
    return generation != kNoGeneration && wanted.Contains(generation);
  }
  // The newest generation of the sample in this buffer, or kNoGeneration.
  Generation GenerationOf(uint64_t index) const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = newest_.find(index);
    return found == newest_.end() ? kNoGeneration : found->second->generation;
  }
  std::vector<uint64_t> Indices() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<uint64_t> indices;
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [index, entry] : newest_) indices.push_back(index);
    return indices;
  }
  // Drops the records of a sample. False if there were none.
  bool Drop(uint64_t index) ABSL_LOCKS_EXCLUDED(mu_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    for (const Batch* entries : {&filling_, &batch_}) {
      for (const std::unique_ptr<Entry>& entry : *entries) Forget(entry.get());
    }
  }

  // Lowers the limit on the bytes of live records. Stored records stay.
  void Limit(int64_t max_bytes) {
    int64_t old = max_bytes_;
    while (max_bytes < old &&
           !max_bytes_.compare_exchange_weak(old, max_bytes)) {
    }
  }

  // Live entries and bytes, on the disk and in memory.
  std::pair<int64_t, int64_t> Live() const ABSL_LOCKS_EXCLUDED(mu_) {
    // With the lock held, so that no record is published between the two reads.
    std::lock_guard<std::mutex> lock(mu_);
    return {records_->state().entries() + new_entries_,
            records_->state().bytes() + new_bytes_};
  }

  // Whether this is the copy in a child made by fork(). It has no writer, so
  // puts fail.
  bool IsForked() const { return getpid() != process_; }

  // For the writer -----------------------------------------------------------

  // When the next batch is due; `max()` if there is none.
  std::chrono::steady_clock::time_point DueAt() const ABSL_LOCKS_EXCLUDED(mu_);
  // Takes all records in memory, which `Get` still finds. `EndBatch` must
  // follow before the next call.
  const Batch& BeginBatch() ABSL_LOCKS_EXCLUDED(mu_);
  bool WasDropped(const Entry& entry) const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return entry.dropped;
  }
  // Publishes a written record. Returns the words of records that are dead now.
  std::vector<uint64_t> Publish(const Entry& entry, const Location& location)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const Entry& entry) ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    Forget(const_cast<Entry*>(&entry));
  }
  void EndBatch() ABSL_LOCKS_EXCLUDED(mu_);
  // Called when the writer has ended: from now on puts fail, and none waits.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr size_t kMostBatches = 16;

  // Drops an entry from the counts and from `newest_`.
  void Forget(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Records* const records_;
  std::atomic<int64_t> max_bytes_;
  const size_t enough_;
  const std::chrono::milliseconds delay_;
  const std::function<void()> wake_;
  const pid_t process_ = getpid();

  mutable std::mutex mu_;
  std::condition_variable written_;
  Batch filling_ ABSL_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point filling_since_ ABSL_GUARDED_BY(mu_);
  size_t filling_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // The batch that is being written. Only the writer changes it.
  Batch batch_ ABSL_GUARDED_BY(mu_);
  size_t batch_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // The newest entry of each sample.
  std::unordered_map<uint64_t, Entry*> newest_ ABSL_GUARDED_BY(mu_);
  // Sums over the entries in memory that are not dropped, published or failed.
  int64_t new_entries_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t new_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refurbish_tf
