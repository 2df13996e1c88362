#ifndef REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_
#define REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_

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
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {

// Reads of a store that are under way before they are got. Thread-safe.
class DiskReadAhead {
 public:
  explicit DiskReadAhead(DiskStore* store) : store_(store) {}
  // Ends what was started and not got.
  ~DiskReadAhead();

  // How many more may be wanted, 0 while there are enough.
  size_t Room() const ABSL_LOCKS_EXCLUDED(mu_);
  // Notes them, and does no I/O.
  void Want(const std::vector<WantedSample>& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins to read what is wanted, unless another thread is at it. Opens files,
  // and reads what is in the page cache: it is to be called with no lock held.
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  // As `DiskStore::Get`, for each that is wanted once, in any order. What has not
  // begun by then is read now.
  bool Get(const WantedSample& wanted, RecordBuffer* record)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kWanted, kStarting, kStarted };
  struct Entry {
    WantedSample wanted;
    State state = State::kWanted;  // Guarded by `mu_`.
    // While it is starting, only who starts it looks at the rest.
    uint64_t word = 0;
    bool foreign = false;
    std::shared_ptr<File> file;
    RecordBuffer buffer;
    Read read;
  };
  using Entries = std::unordered_map<uint64_t, std::unique_ptr<Entry>>;

  // The next few of those that are wanted and can be read.
  std::vector<Entry*> TakeWanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens the file of one. False if it cannot be read.
  bool Open(Entry* entry);
  std::unique_ptr<Entry> Remove(Entries::iterator position)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  DiskStore* const store_;
  mutable std::mutex mu_;
  std::condition_variable started_;
  // By ticket.
  Entries entries_ ABSL_GUARDED_BY(mu_);
  // Tickets that are wanted, in order; some of them were got since.
  std::deque<uint64_t> wanted_ ABSL_GUARDED_BY(mu_);
  // Whether there are any. Changed with the lock; looked at without it, too.
  std::atomic<bool> any_wanted_{false};
  bool starting_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  // Of what is starting or has started.
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_
