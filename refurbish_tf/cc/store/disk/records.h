#ifndef REFURBISH_TF_CC_STORE_DISK_RECORDS_H_
#define REFURBISH_TF_CC_STORE_DISK_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"
#include "refurbish_tf/cc/store/disk/warning.h"

namespace refurbish_tf {

// The records that are on the disk: found by the index, read and checked, made
// known, and forgotten. A word in the index is set by compare-and-swap when its
// record has been written, and what it says is believed only when the record has
// been read.
//
// Thread-safe.
class Records {
 public:
  struct Counts {
    std::atomic<int64_t> hits{0};
    std::atomic<int64_t> misses{0};
    std::atomic<int64_t> evictions{0};
    std::atomic<int64_t> bytes_put{0};
    std::atomic<int64_t> corrupt{0};
    std::atomic<int64_t> foreign_hits{0};
  };

  Records(const Directory* directory, uint64_t store_id, Segments* segments,
          std::unique_ptr<Index> index, std::unique_ptr<SharedState> state,
          std::unique_ptr<ReadQueue> read_queue)
      : directory_(directory),
        store_id_(store_id),
        segments_(segments),
        index_(std::move(index)),
        state_(std::move(state)),
        read_queue_(std::move(read_queue)) {}

  uint64_t store_id() const { return store_id_; }
  Index& index() { return *index_; }
  const Index& index() const { return *index_; }
  SharedState& state() { return *state_; }
  ReadQueue& read_queue() { return *read_queue_; }
  Segments& segments() { return *segments_; }
  Counts& counts() { return counts_; }

  // How little a sample is worth where the disk is full: those of the lowest ranks
  // stay. Until something else is set, it is as good as random.
  using Ranks = std::function<uint32_t(uint64_t index)>;
  void SetRanks(Ranks ranks) ABSL_LOCKS_EXCLUDED(ranks_mu_);
  std::shared_ptr<const Ranks> ranks() const ABSL_LOCKS_EXCLUDED(ranks_mu_);

  // Where a record is that may be wanted; 0 if there is none.
  uint64_t Locate(uint64_t index, GenerationRange wanted) const;

  // As those of CacheStore, of what is on the disk. Counts hits, but no miss.
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record);

  enum class ReadResult {
    kRight,
    kWrong,
    kNotNow,  // As the process has too many files open, or no memory.
  };
  // Reads and checks the record that `word` points to.
  ReadResult Read(uint64_t index, uint64_t word, bool anew,
                  RecordBuffer* record, bool* foreign);
  // The generation of the record that there is, or kNoGeneration. Reads no more
  // than its header.
  Generation StoredGeneration(uint64_t index);

  // Sets the index to a record that has been written, with room made for its word.
  // `*dead` is the word of what is dead by that, if anything: the old record or
  // this one.
  PutResult Publish(uint64_t index, Generation generation,
                    const Location& location, int64_t max_bytes, uint64_t* dead);
  // Sets the index to where the record has been moved. False if it was replaced.
  bool Move(uint64_t index, uint64_t from, uint64_t to) {
    return index_->CompareExchange(index, &from, to);
  }
  // Removes the sample's word, if it has one, and returns it.
  uint64_t Remove(uint64_t index, bool evict);
  // As that, for a newer generation, of what is older. 0 if it is not.
  uint64_t RemoveOlder(uint64_t index, Generation generation);
  // The record is not what the index says: makes it absent, if the index still
  // says so.
  void MakeAbsent(uint64_t index, uint64_t word);
  // Gives the space of a dead record back, if it can be done at once.
  void Dispose(uint64_t word);

  // The entries and bytes that the index has.
  std::pair<int64_t, int64_t> Count() const;
  // Makes the shared counts those of the index.
  void Recount() {
    const auto [entries, bytes] = Count();
    state_->SetCounts(entries, bytes);
  }

 private:
  // Sets the index from `word` to 0. False if it was something else.
  bool ClearWord(uint64_t index, uint64_t word);

  const Directory* const directory_;
  const uint64_t store_id_;
  Segments* const segments_;
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<SharedState> state_;
  const std::unique_ptr<ReadQueue> read_queue_;
  Counts counts_;
  mutable std::mutex ranks_mu_;
  std::shared_ptr<const Ranks> ranks_ ABSL_GUARDED_BY(ranks_mu_);
  Warning corrupt_warning_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_RECORDS_H_
