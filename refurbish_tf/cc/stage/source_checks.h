// Whether a source yields what it did before: checksums of its elements.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "refurbish_tf/cc/store/disk/source_sums.h"

namespace refurbish_tf {

// What the graph of a source tells of it.
enum class SourceKind {
  kRepeats,    // Nothing in it can change by itself: what differs was changed.
  kMayChange,  // It calls Python, or operations that nothing is known of.
  kDraws,      // It draws random numbers anew each time, so it is not checked.
};

// A checksum for each sample. Only the parts that are touched take memory.
// Thread-safe.
class SumsInMemory {
 public:
  // Notes a checksum, not 0, unless one is known. Returns the one that is known
  // then.
  uint32_t Note(uint32_t index, uint32_t sum) {
    std::lock_guard<std::mutex> lock(mu_);
    uint32_t& known = parts_[index / kPart][index % kPart];
    if (known == 0) known = sum;
    return known;
  }

 private:
  static constexpr uint32_t kPart = 1024;

  std::mutex mu_;
  std::unordered_map<uint32_t, std::array<uint32_t, kPart>> parts_;
};

// Of one stage. Thread-safe.
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
    return known == sum;
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
