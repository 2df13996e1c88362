#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// Begins reads before their samples are needed. The order of an epoch is known,
// so the next reads are always under way. Claiming a piece of work only queues
// them (`Want`). A thread begins them (`Start`), with no lock held, before it
// fetches or runs a piece. Thread-safe.
class DiskReadAhead {
 public:
  explicit DiskReadAhead(DiskStore* store) : store_(store) {}
  // Waits for reads that have begun and that no `Get` has waited for.
  ~DiskReadAhead();

  // How many more samples `Want` accepts; 0 while there are enough.
  size_t Room() const ABSL_LOCKS_EXCLUDED(mu_);
  // Queues the reads of samples. Does no I/O.
  void Want(const std::vector<WantedSample>& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins the next few of the queued reads, unless another thread is doing so.
  // Opens files and copies from the page cache: call it with no lock held.
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  // Like `DiskStore::Get`. Called once for each wanted sample, in any order.
  // Reads the sample now if its read has not begun. Looks for a sample in
  // transit only in the ring.
  bool Get(const WantedSample& wanted, RecordBuffer* record)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kWanted, kStarting, kStarted };
  struct Entry {
    WantedSample wanted;
    State state = State::kWanted;  // Guarded by `mu_`.
    // While the read is starting, only the thread that starts it uses the
    // fields below.
    uint64_t word = 0;  // Its index word.
    std::shared_ptr<File> file;
    RecordBuffer buffer;
    Read read;
  };
  using Entries = std::unordered_map<uint64_t, std::unique_ptr<Entry>>;

  // Takes the next few queued samples that can be read.
  std::vector<Entry*> NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finds where the record of an entry is. False if there is none.
  bool Locate(Entry* entry) const;
  // Opens the file of an entry. False if it cannot be read.
  bool Open(Entry* entry);
  std::unique_ptr<Entry> Remove(Entries::iterator position)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  DiskStore* const store_;
  mutable std::mutex mu_;
  std::condition_variable started_;
  // Keys are tickets.
  Entries entries_ ABSL_GUARDED_BY(mu_);
  // Queued tickets, in order. `Get` may have removed the entries of some.
  std::deque<uint64_t> wanted_ ABSL_GUARDED_BY(mu_);
  // Whether `wanted_` is not empty. Written under the lock, also read without.
  std::atomic<bool> any_wanted_{false};
  bool starting_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  // The bytes of the entries that are starting or have started.
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
