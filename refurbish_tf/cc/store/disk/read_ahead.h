#ifndef REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_
#define REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_

#include <cstddef>
#include <cstdint>
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

// Reads of a store that are under way before they are wanted. Thread-safe.
class DiskReadAhead {
 public:
  explicit DiskReadAhead(DiskStore* store) : store_(store) {}
  // Ends what was started and not got.
  ~DiskReadAhead();

  // How many more may be started, 0 while there are enough.
  size_t Room() const ABSL_LOCKS_EXCLUDED(mu_);
  void Start(const std::vector<WantedSample>& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // As `DiskStore::Get`, for each that was started once, in any order.
  bool Get(const WantedSample& wanted, RecordBuffer* record)
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

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_READ_AHEAD_H_
