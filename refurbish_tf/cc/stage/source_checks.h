// Whether a source yields what it did before: checksums of its elements.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "refurbish_tf/cc/store/disk/source_sums.h"

namespace refurbish_tf {

// What the graph of a source tells of it.
enum class SourceKind {
  kRepeats,    // Nothing in it can change by itself: what differs was changed.
  kMayChange,  // It calls Python, or operations that nothing is known of.
  kDraws,      // It draws random numbers anew each time, so it is not checked.
};

// A checksum for each sample. It grows by itself, and only what is touched
// takes memory. Thread-safe, without a lock.
class SumsInMemory {
 public:
  SumsInMemory() = default;
  SumsInMemory(const SumsInMemory&) = delete;
  SumsInMemory& operator=(const SumsInMemory&) = delete;
  ~SumsInMemory() {
    for (auto& part : parts_) std::free(part.load());
  }

  // Notes a checksum, not 0, unless one is known. Returns the one that is known
  // then, or 0 if there is no memory.
  uint32_t Note(uint32_t index, uint32_t sum) {
    const uint64_t place = uint64_t{index} + kFirst;
    const int number = 63 - __builtin_clzll(place);
    const uint64_t size = uint64_t{1} << number;
    std::atomic<Word*>& part = parts_[number - kFirstBits];
    Word* words = part.load(std::memory_order_acquire);
    if (words == nullptr) {
      auto* const made = static_cast<Word*>(std::calloc(size, sizeof(Word)));
      if (made == nullptr) return 0;
      if (part.compare_exchange_strong(words, made)) {
        words = made;
      } else {
        std::free(made);
      }
    }
    uint32_t known = 0;
    return words[place - size].compare_exchange_strong(
               known, sum, std::memory_order_relaxed)
               ? sum
               : known;
  }

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "");

  // Part k has 2^k times as many words as the first one.
  static constexpr int kFirstBits = 10;
  static constexpr uint64_t kFirst = 1 << kFirstBits;

  std::array<std::atomic<Word*>, 33 - kFirstBits> parts_{};
};

// Of one stage. Thread-safe, without a lock.
class SourceChecks {
 public:
  // To be called before the others, once the stage is configured. False if it
  // was called before; then nothing changes. `on_disk`, the store's checksums,
  // may be null, and must outlive this.
  bool Begin(SourceKind kind, SourceSums* on_disk, uint64_t platform) {
    if (begun_.exchange(true)) return false;
    on_disk_ = on_disk;
    platform_ = platform;
    kind_.store(kind, std::memory_order_release);
    return true;
  }

  // kDraws before `Begin`, so that nothing is checked.
  SourceKind kind() const { return kind_.load(std::memory_order_acquire); }
  bool draws() const { return begun_ && kind() == SourceKind::kDraws; }
  // Whether an element that differs is an error: what the store holds is of
  // another source.
  bool refuses() const {
    return kind() == SourceKind::kRepeats && on_disk_ != nullptr;
  }

  // Of the store on disk.
  const std::string& path() const { return on_disk_->path(); }

  // Whether the store knows the sample's checksum.
  bool IsKnown(uint32_t index) const {
    return on_disk_ != nullptr && on_disk_->Find(index, platform_) != 0;
  }

  // Notes the checksum of an element that the source has yielded, not 0. False
  // if an earlier one at this index was another.
  bool IsSame(uint32_t index, uint32_t sum) {
    uint32_t known = 0;
    if (on_disk_ != nullptr) known = on_disk_->Note(index, platform_, sum);
    if (known == 0) known = in_memory_.Note(index, sum);
    return known == 0 || known == sum;
  }

  // True once: one warning of a stage is enough.
  bool IsFirstWarning() { return !warned_.exchange(true); }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> warned_{false};
  std::atomic<SourceKind> kind_{SourceKind::kDraws};
  SourceSums* on_disk_ = nullptr;
  uint64_t platform_ = 0;
  SumsInMemory in_memory_;
};

}  // namespace refurbish_tf
