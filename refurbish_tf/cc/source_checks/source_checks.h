// Uses checksums to check whether a source yields the same elements as before.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/source_checks/source_checksums.h"

namespace refurbish_tf {

// The kind of a node in a source's graph. The kind of a source is the last of
// its nodes' kinds, in this order.
enum class SourceKind {
  kInGraph,    // It yields tensors of its graph, unchanged.
  kRepeats,    // It is deterministic: if it differs, somebody changed it.
  kMayChange,  // It calls Python or unknown operations.
  kDraws,      // It draws random numbers, so it is not compared.
};

// How an element compares with the one from which its sample was last prepared.
enum class Compared {
  kSame,     // Or there is no checksum to compare with.
  kOther,    // It differs, which is worth a warning.
  kRefused,  // It differs, so the store was filled from another source.
};

// A checksum for each sample. Thread-safe. Only parts in use take memory.
class ChecksumsInMemory {
 public:
  void Set(uint32_t index, uint32_t sum) {
    std::lock_guard<std::mutex> lock(mu_);
    parts_[index / kPart][index % kPart] = sum;
  }
  int64_t bytes() const {
    std::lock_guard<std::mutex> lock(mu_);
    return parts_.size() * kPart * sizeof(uint32_t);
  }
  // 0 if unknown.
  uint32_t Find(uint32_t index) const {
    std::lock_guard<std::mutex> lock(mu_);
    const auto part = parts_.find(index / kPart);
    return part == parts_.end() ? 0 : part->second[index % kPart];
  }

 private:
  static constexpr uint32_t kPart = 1024;

  mutable std::mutex mu_;
  std::unordered_map<uint32_t, std::array<uint32_t, kPart>> parts_;
};

// Detects a source that never ends. Remembers the first distinct elements, and
// notices when all of them come again and again. Thread-safe.
class RepetitionWatch {
 public:
  // Notes that element `index` of the source has this checksum. Once all
  // remembered elements have come often, returns the number of elements after
  // which they come again, or 0 if they have no fixed order. Does so only once.
  std::optional<uint32_t> Note(uint32_t index, uint32_t sum)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    ++num_read_;
    auto found = seen_.find(sum);
    if (found == seen_.end() && seen_.size() < kMostRemembered) {
      found = seen_.emplace(sum, Seen{index, index}).first;
    }
    if (found != seen_.end()) {
      Seen& seen = found->second;
      divisor_ = std::gcd(
          divisor_, std::max(index, seen.first) - std::min(index, seen.first));
      const auto [first, last] = std::minmax({seen.first, seen.last, index});
      seen = {first, last, seen.times + 1};
    }
    if (told_ || num_read_ % kCheckedEvery != 0) return {};
    // Distances of duplicates in no fixed order have a small common divisor.
    const uint32_t period =
        divisor_ < std::max<size_t>(2, seen_.size() / 2) ? 0 : divisor_;
    // A source with few different elements may well end, so wait longer.
    const bool may_end = period == 0 && seen_.size() < kFewValues;
    if (num_read_ < (may_end ? kLongForFewValues : kLong)) return {};
    for (const auto& each : seen_) {
      // Each must have come often, and not only in one part of the elements.
      if (each.second.times <= kOften ||
          each.second.last - each.second.first <= num_read_ / 2) {
        return {};
      }
    }
    told_ = true;
    return period;
  }

 private:
  struct Seen {
    uint32_t first, last;  // The lowest and the highest of its positions.
    uint32_t times = 0;
  };
  static constexpr size_t kMostRemembered = 64;
  static constexpr size_t kFewValues = 16;
  static constexpr uint32_t kLong = 1000;
  static constexpr uint32_t kLongForFewValues = 10'000;
  static constexpr uint32_t kOften = 10;
  static constexpr uint32_t kCheckedEvery = 100;

  std::mutex mu_;
  std::unordered_map<uint32_t, Seen> seen_ ABSL_GUARDED_BY(mu_);
  // The greatest common divisor of all distances between equal elements.
  uint32_t divisor_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t num_read_ ABSL_GUARDED_BY(mu_) = 0;
  bool told_ ABSL_GUARDED_BY(mu_) = false;
};

// Checksums of the elements from which one stage has prepared samples. If a
// sample was put into a store on disk, its checksum is in that store, under the
// sample's number in the whole source. Other sums are in memory. Thread-safe.
class SourceChecks {
 public:
  // Called once the stage is configured, before elements are compared or noted.
  // Returns false, and changes nothing, if it was called before. `on_disk`, the
  // store's checksums, may be null, and must outlive this. `platform`: see
  // `SourceChecksums::Set`. `shard`: the stage's part of the whole source.
  bool Begin(SourceKind kind, SourceChecksums* on_disk, uint64_t platform,
             const Shard& shard) {
    bool first = false;
    std::call_once(once_, [&] {
      on_disk_ = on_disk;
      platform_ = platform;
      shard_ = shard;
      kind_ = kind;
      begun_.store(true, std::memory_order_release);
      first = true;
    });
    return first;
  }

  // Whether elements are to be compared; false before `Begin`. A source in a
  // graph can differ only from an earlier run that has filled a store on disk.
  // Without a store on disk it is not compared, because comparing takes 5 % of
  // an epoch at 32x32 pixels.
  bool checks() const {
    return begun() && kind_ < SourceKind::kDraws &&
           (kind_ != SourceKind::kInGraph || on_disk_ != nullptr);
  }
  // Whether reading the source takes no time.
  bool in_graph() const { return begun() && kind_ == SourceKind::kInGraph; }
  bool draws() const { return begun() && kind_ == SourceKind::kDraws; }
  // Whether the source may be endless, if its length is unknown.
  bool may_be_endless() const {
    return begun() && kind_ >= SourceKind::kMayChange;
  }
  RepetitionWatch& repetitions() { return repetitions_; }
  // Whether an element that differs from one in the store is an error.
  bool refuses() const {
    return checks() && kind_ != SourceKind::kMayChange && on_disk_ != nullptr;
  }

  const Shard& shard() const { return shard_; }
  // The directory of the store on disk. There must be one.
  const std::string& path() const { return on_disk_->path(); }
  bool knows_any() const { return on_disk_ != nullptr && on_disk_->is_there(); }
  bool IsKnown(uint32_t index) const { return SumOnDisk(index) != 0; }

  // `sum`: the checksum of an element that the source has yielded; not 0.
  Compared Compare(uint32_t index, uint32_t sum) const {
    if (const uint32_t known = SumOnDisk(index); known != 0) {
      return known == sum ? Compared::kSame
             : refuses()  ? Compared::kRefused
                          : Compared::kOther;
    }
    const uint32_t known = in_memory_.Find(index);
    return known == 0 || known == sum ? Compared::kSame : Compared::kOther;
  }
  // For an element that differs: whether only its labels and weights do. These
  // are components of at most one dimension that are not the largest. See
  // `ElementChecksum`.
  bool OnlyLabelsDiffer(uint32_t index, uint32_t sum) const {
    const uint32_t on_disk = SumOnDisk(index);
    const uint32_t known = on_disk != 0 ? on_disk : in_memory_.Find(index);
    return known >> 16 == sum >> 16;
  }
  // Notes the checksum of an element from which a sample was prepared.
  // `in_store`: whether the sample was put into the store or its ring.
  void Note(uint32_t index, uint32_t sum, bool in_store) {
    if (!in_store || on_disk_ == nullptr ||
        !on_disk_->Set(shard_.InWhole(index), platform_, sum)) {
      in_memory_.Set(index, sum);
    }
  }

  int64_t bytes_in_memory() const { return in_memory_.bytes(); }

  // True only once, because one warning per stage is enough.
  bool IsFirstWarning() { return !warned_.exchange(true); }

 private:
  bool begun() const { return begun_.load(std::memory_order_acquire); }

  // 0 if unknown.
  uint32_t SumOnDisk(uint32_t index) const {
    return on_disk_ == nullptr
               ? 0
               : on_disk_->Find(shard_.InWhole(index), platform_);
  }

  std::once_flag once_;
  std::atomic<bool> begun_{false};  // Set last by `Begin`.
  std::atomic<bool> warned_{false};
  SourceKind kind_ = SourceKind::kDraws;
  SourceChecksums* on_disk_ = nullptr;
  uint64_t platform_ = 0;
  Shard shard_;
  ChecksumsInMemory in_memory_;
  RepetitionWatch repetitions_;
};

}  // namespace refurbish_tf
