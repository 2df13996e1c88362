#ifndef REFURBISH_TF_CC_STORE_DISK_INDEX_H_
#define REFURBISH_TF_CC_STORE_DISK_INDEX_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refurbish_tf {

// A word for each sample, in a file that all processes map into their memory:
// what one of them sets the others see at once, and it stays when one dies. The
// file grows with the highest index that is set, and takes eight bytes for each
// up to there, on the disk and in the page cache.
//
// Thread-safe.
class Index {
 public:
  // Two gigabytes: the file has no holes, so a single sample with a far too large
  // index must not fill a disk.
  static constexpr uint64_t kMaxSamples = uint64_t{1} << 28;

  static absl::StatusOr<std::unique_ptr<Index>> Open(const std::string& path);
  ~Index();

  // 0 where nothing was set.
  uint64_t Load(uint64_t sample) const {
    const std::atomic<uint64_t>* word = Find(sample);
    return word == nullptr ? 0 : word->load(std::memory_order_acquire);
  }

  // Makes room for the sample's word. Fails, with errno set, when the disk is
  // full.
  bool Reserve(uint64_t sample) ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the word of a sample to `desired` if it is `*expected`, which is else
  // set to what it is. Room for it must have been made, or it must have been
  // loaded.
  bool CompareExchange(uint64_t sample, uint64_t* expected, uint64_t desired) {
    return Find(sample)->compare_exchange_strong(*expected, desired,
                                                 std::memory_order_acq_rel);
  }

  // Calls `visit(sample, word)` for every word that is set, in order, until it
  // returns false.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint64_t first = chunk * kWords;
      if (Find(first) == nullptr) {
        if (!Exists(chunk)) return;
        continue;
      }
      for (uint64_t sample = first; sample < first + kWords; ++sample) {
        const uint64_t word = Load(sample);
        if (word != 0 && !visit(sample, word)) return;
      }
    }
  }

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(sizeof(Word) == 8 && Word::is_always_lock_free, "");

  static constexpr uint64_t kWords = 1 << 16;  // In a chunk.
  static constexpr uint64_t kChunks = kMaxSamples / kWords;
  static constexpr uint64_t kChunkBytes = kWords * sizeof(Word);

  explicit Index(int fd)
      : fd_(fd), chunks_(new std::atomic<Word*>[kChunks]()) {}

  Word* Find(uint64_t sample) const {
    if (sample >= kMaxSamples) return nullptr;
    Word* chunk = chunks_[sample / kWords].load(std::memory_order_acquire);
    if (chunk == nullptr) chunk = Map(sample / kWords);
    return chunk == nullptr ? nullptr : chunk + sample % kWords;
  }

  // Whether the file reaches to the end of the chunk. Beyond the end of the file
  // there must be no mapping, as touching it kills the process.
  bool Exists(uint64_t chunk) const;
  Word* Map(uint64_t chunk) const ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the file so long, with all its blocks: touching a hole when the disk is
  // full kills the process. With `whole` also where it was that long before.
  bool Grow(uint64_t bytes, bool whole) ABSL_LOCKS_EXCLUDED(mu_);

  const int fd_;
  const std::unique_ptr<std::atomic<Word*>[]> chunks_;
  mutable std::mutex mu_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_INDEX_H_
