#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/mapped_file.h"

namespace refurbish_tf {

// A word of eight bytes for each sample, in a file that all processes map. Its
// size, on the disk and in the page cache, depends on the highest index that
// was set. It grows in steps of 65,536 samples. Thread-safe.
class Index {
 public:
  // Limits the file to two gigabytes. It has no holes, so without a limit, a
  // single far too large index could fill the disk.
  static constexpr uint64_t kMaxSamples = uint64_t{1} << 28;

  static absl::StatusOr<std::unique_ptr<Index>> Open(const Directory* directory,
                                                     const std::string& name) {
    RTF_ASSIGN_OR_RETURN(
        std::unique_ptr<MappedFile> file,
        MappedFile::Open(directory, name, kWords * sizeof(Word), kChunks));
    return std::unique_ptr<Index>(new Index(std::move(file)));
  }

  // 0 if nothing was set.
  uint64_t Load(uint64_t sample) const {
    const Word* const word = Find(sample);
    return word == nullptr ? 0 : word->load(std::memory_order_acquire);
  }

  // Whether there is room for the sample's word.
  bool Has(uint64_t sample) const { return Find(sample) != nullptr; }

  // Makes room for the sample's word.
  absl::Status Reserve(uint64_t sample) {
    if (sample >= kMaxSamples) return OutOfRange("No such sample");
    return file_->Reserve(sample / kWords);
  }

  absl::Status ReserveFirst(uint64_t num_samples) {
    absl::Status reserved;
    for (uint64_t next = 0; next < num_samples && reserved.ok();
         next += kWords) {
      reserved = Reserve(next);
    }
    return reserved;
  }

  // Sets the word of a sample to `desired` if it is `*expected`; otherwise sets
  // `*expected` to the word. There must be room for it.
  bool CompareExchange(uint64_t sample, uint64_t* expected, uint64_t desired) {
    return Find(sample)->compare_exchange_strong(*expected, desired,
                                                 std::memory_order_acq_rel);
  }

  // Calls `visit(sample, word)` for every word that is set, in order.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint64_t first = chunk * kWords;
      if (Find(first) == nullptr) {
        if (!file_->Exists(chunk)) return;
        continue;
      }
      for (uint64_t sample = first; sample < first + kWords; ++sample) {
        const uint64_t word = Load(sample);
        if (word != 0) visit(sample, word);
      }
    }
  }

  // To see whether it was cut, and mend it.
  MappedFile& file() { return *file_; }

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(sizeof(Word) == 8 && Word::is_always_lock_free, "");

  static constexpr uint64_t kWords = 1 << 16;  // In a chunk.
  static constexpr uint64_t kChunks = kMaxSamples / kWords;
  static_assert(kWords * sizeof(Word) % (64 << 10) == 0, "The largest page.");

  explicit Index(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}

  Word* Find(uint64_t sample) const {
    if (sample >= kMaxSamples) return nullptr;
    char* const chunk = file_->Find(sample / kWords);
    return chunk == nullptr ? nullptr
                            : reinterpret_cast<Word*>(chunk) + sample % kWords;
  }

  const std::unique_ptr<MappedFile> file_;
};

}  // namespace refurbish_tf
