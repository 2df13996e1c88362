#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"
#include "refurbish_tf/cc/store/disk/warning.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// Finds the records on the disk by the index, reads and checks them, publishes
// and removes them. A word of the index is set, by compare-and-swap, only when
// its record has been written. It is trusted only when the record has been read
// and checked. Thread-safe.
class Records {
 public:
  // Counts of what this process has done.
  struct Counts {
    std::atomic<int64_t> hits{0};
    std::atomic<int64_t> misses{0};
    std::atomic<int64_t> evictions{0};
    std::atomic<int64_t> bytes_put{0};
    std::atomic<int64_t> transit_bytes_put{0};
    std::atomic<int64_t> bytes_moved{0};  // In compactions.
    std::atomic<int64_t> compactions{0};  // Segments emptied.
    std::atomic<int64_t> corrupt{0};      // Records that failed their check.
    std::atomic<int64_t> from_other_jobs{0};  // Hits on others' records.
    std::atomic<int64_t> failed_writes{0};
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

  // The sample's index word; 0 if its record cannot have a wanted generation.
  uint64_t Locate(uint64_t index, GenerationRange wanted) const {
    const uint64_t word = index_->Load(index);
    return word != 0 && MayBeWanted(TagOfWord(word), wanted) ? word : 0;
  }

  // Like `SampleMap::Get`, for records on the disk. Counts hits, not misses.
  bool Get(uint64_t index, GenerationRange wanted, RecordBuffer* record);

  enum class ReadResult {
    kRight,
    kWrong,
    kNotNow,  // Too many files are open, or there is no memory.
  };
  // Reads and checks the record that `word` points to. `anew`: see
  // `Segments::OpenToRead`.
  ReadResult Read(uint64_t index, uint64_t word, bool anew,
                  RecordBuffer* record);
  // The stored record's generation, or kNoGeneration. Reads only the header.
  Generation StoredGeneration(uint64_t index);

  // Writes `parts`, of `space` bytes, to the end of a segment. For the writer's
  // thread. The caller sets the tag of the returned location.
  absl::StatusOr<Location> Append(bool large, uint64_t space,
                                  std::vector<iovec> parts) {
    absl::StatusOr<Location> location =
        segments_->Append(large, space, state_->bytes(), std::move(parts));
    if (location.ok()) state_->AddChanged(space);
    return location;
  }
  // Points the index to a record that has been written; there must be room for
  // its word. Sets `*dead` to the word of the record that is dead now: the old
  // one or this one. Sets it to 0 if none is dead.
  PutResult Publish(uint64_t index, Generation generation,
                    const Location& location, int64_t max_bytes,
                    uint64_t* dead);
  // Removes the sample's word and returns it. If `newer` is given, does so only
  // for an older generation. Returns 0 if nothing was removed.
  uint64_t Remove(uint64_t index, bool evict,
                  std::optional<Generation> newer = std::nullopt);
  // Clears the word of a record that failed its check, unless it has changed.
  void MakeAbsent(uint64_t index, uint64_t word);
  // Frees the space of a dead large record. Compaction frees small ones.
  void Dispose(uint64_t word) {
    if (word == 0) return;
    const Location location = DecodeLocation(word);
    if (location.large) segments_->Free(location);
  }

  // Counts the records in the index, and sets the shared counts to that.
  void Recount();

 private:
  // Sets the sample's word to 0. False if it was not `word`.
  bool ClearWord(uint64_t index, uint64_t word);

  const Directory* const directory_;
  const uint64_t store_id_;
  Segments* const segments_;
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<SharedState> state_;
  const std::unique_ptr<ReadQueue> read_queue_;
  Counts counts_;
  Warning corrupt_warning_;
};

}  // namespace refurbish_tf
