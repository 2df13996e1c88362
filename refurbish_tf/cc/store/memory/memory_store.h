#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/base/python_warning.h"
#include "refurbish_tf/cc/store/memory/memory_pressure_limit.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// Holds `Sample` objects; if these are reference-counted, nothing is copied.
// Each entry takes another sizeof(Sample) + 4 bytes, in pages of consecutive
// indices.
//
// A hit costs three CPU cache misses, one after the other: the entry, its
// tensor and its buffer. So the epoch decides sixteen places at a time, and
// `LookUp` prefetches these three for all of them at once.
template <class Sample>
class MemoryStore : public SampleMap<Sample> {
 public:
  using SizeFunction = std::function<int64_t(const Sample&)>;
  using PrefetchFunction =
      std::function<void(const Sample* const* samples, size_t count)>;

  // `prefetch` is called with samples that are about to be copied, and
  // prefetches the memory that they refer to.
  MemoryStore(int64_t max_bytes, SizeFunction size, PrefetchFunction prefetch,
              MemoryPressureLimit::ReadFunction read = ReadMemory,
              MemoryPressureLimit::WarnFunction warn = WarnInPython)
      : max_bytes_(max_bytes),
        size_(std::move(size)),
        prefetch_(std::move(prefetch)),
        room_(max_bytes, std::move(read), std::move(warn)) {}

  int64_t max_bytes() const override { return max_bytes_; }

  using Lookup = typename SampleMap<Sample>::Lookup;

  void LookUp(Lookup* lookups, size_t count) override ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    for (size_t i = 0; i < count; i += kAtOnce) {
      LookUpAtOnce(lookups + i, std::min(count - i, kAtOnce));
    }
  }

  bool Contains(uint64_t index, GenerationRange wanted) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return Hit(Find(index), wanted);
  }

  Generation StoredGeneration(uint64_t index) const override
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    const Entry entry = Find(index);
    return entry.page == nullptr ? kNoGeneration : entry.generation();
  }

  PutResult Put(uint64_t index, Generation generation, Sample sample) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    LookAtMemory();
    const int64_t bytes = size_(sample);
    // Destroyed after the lock is released: freeing a large sample takes time.
    Sample replaced;
    std::lock_guard<std::mutex> lock(mu_);
    room_.Count();
    Entry entry = Find(index);
    if (entry.present()) {
      if (entry.generation() > generation) return PutResult::kNewerKept;
      if (entry.generation() < generation) ++stats_.evictions;
      replaced = Extract(entry);
    }
    const PutResult result = room_.Offer(stats_.bytes + bytes);
    if (result != PutResult::kStored) return result;
    if (entry.page == nullptr) {
      std::unique_ptr<Page>& page = pages_[index / kPageSize];
      if (page == nullptr) page = std::make_unique<Page>();
      entry = {page.get(), index % kPageSize};
    }
    entry.sample() = std::move(sample);
    entry.page->generations[entry.offset] = generation;
    ++stats_.entries;
    stats_.bytes += bytes;
    room_.CountBytes(bytes);
    return PutResult::kStored;
  }

  // Whether there is room for `bytes`, as far as that is known before a put.
  bool HasRoom(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    LookAtMemory();
    std::lock_guard<std::mutex> lock(mu_);
    return room_.Offer(stats_.bytes + bytes) == PutResult::kStored;
  }

  void LookAtMemory() override {
    if (room_.due()) Look();
  }

  bool Remove(uint64_t index, bool evict) override ABSL_LOCKS_EXCLUDED(mu_) {
    Sample removed;
    std::lock_guard<std::mutex> lock(mu_);
    const Entry entry = Find(index);
    if (!entry.present()) return false;
    removed = Extract(entry);
    if (evict) ++stats_.evictions;
    return true;
  }

  void Clear() override ABSL_LOCKS_EXCLUDED(mu_) {
    Pages cleared;
    {
      std::lock_guard<std::mutex> lock(mu_);
      cleared.swap(pages_);
      stats_.entries = 0;
      stats_.bytes = 0;
    }
    for (const auto& [number, page] : cleared) {
      for (const Sample& sample : page->samples) ReturnPages(sample);
    }
  }

  SampleMapStats Stats() const override ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return stats_;
  }

 protected:
  // Identifies the region of memory that holds a sample. Memory returns to the
  // system only in whole regions, so samples are also dropped by region.
  virtual uint64_t Region(const Sample& sample) const {
    return reinterpret_cast<uintptr_t>(&sample);
  }
  // Gives the pages of a sample that is about to be freed back to the system,
  // if nobody else uses the sample. Called with no lock held.
  virtual void ReturnPages(const Sample& /*sample*/) const {}

 private:
  static constexpr uint64_t kPageSize = 1024;
  static constexpr size_t kAtOnce = 16;

  struct Page {
    Page() { generations.fill(kNoGeneration); }
    std::array<Sample, kPageSize> samples;
    std::array<Generation, kPageSize> generations;
  };
  using Pages = std::unordered_map<uint64_t, std::unique_ptr<Page>>;

  struct Entry {
    Page* page = nullptr;
    uint64_t offset = 0;
    Generation generation() const { return page->generations[offset]; }
    Sample& sample() const { return page->samples[offset]; }
    bool present() const {
      return page != nullptr && generation() != kNoGeneration;
    }
  };

  Entry Find(uint64_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto page = pages_.find(index / kPageSize);
    if (page == pages_.end()) return {};
    return {page->second.get(), index % kPageSize};
  }

  void LookUpAtOnce(Lookup* lookups, size_t count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Entry entries[kAtOnce];
    const Sample* samples[kAtOnce];
    size_t num_samples = 0;
    for (size_t i = 0; i < count; ++i) {
      entries[i] = Find(lookups[i].index);
      if (entries[i].page == nullptr) continue;
      samples[num_samples++] = &entries[i].sample();
      __builtin_prefetch(&entries[i].sample());
      __builtin_prefetch(&entries[i].page->generations[entries[i].offset]);
    }
    if (count > 1) prefetch_(samples, num_samples);
    for (size_t i = 0; i < count; ++i) {
      const Entry& entry = entries[i];
      Lookup& lookup = lookups[i];
      lookup.hit = Hit(entry, lookup.wanted);
      if (!lookup.hit) continue;
      ++stats_.hits;
      lookup.generation = entry.generation();
      if (lookup.last_use) {
        ++stats_.evictions;
        lookup.sample = Extract(entry);
      } else {
        lookup.sample = entry.sample();
      }
    }
  }

  // Whether the entry has a wanted generation; counts a miss if not. An empty
  // entry has `kNoGeneration`, which is never wanted.
  bool Hit(const Entry& entry, GenerationRange wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    room_.Count();
    const bool hit =
        entry.page != nullptr && wanted.Contains(entry.generation());
    if (!hit) ++stats_.misses;
    return hit;
  }

  Sample Extract(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Sample sample = std::exchange(entry.sample(), Sample());
    entry.page->generations[entry.offset] = kNoGeneration;
    --stats_.entries;
    stats_.bytes -= size_(sample);
    return sample;
  }

  ABSL_ATTRIBUTE_NOINLINE void Look() ABSL_LOCKS_EXCLUDED(mu_) {
    const std::optional<Memory> memory = room_.Read();
    if (!memory.has_value()) return;
    std::vector<Sample> dropped = Adjust(*memory);
    if (!dropped.empty()) {
      for (const Sample& sample : dropped) ReturnPages(sample);
      dropped.clear();
      ReturnFreedMemory();
    }
    room_.Rest();
    room_.Warn(*memory, Stats());
  }

  template <class Function>
  void ForEach(Function function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [number, page] : pages_) {
      for (uint64_t offset = 0; offset < kPageSize; ++offset) {
        const Entry entry = {page.get(), offset};
        if (entry.present()) function(entry);
      }
    }
  }

  // Removes and returns the samples that must be dropped: those in regions that
  // are spread evenly over the memory, and so over the order of an epoch.
  std::vector<Sample> Adjust(const Memory& memory) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Sample> dropped;
    std::lock_guard<std::mutex> lock(mu_);
    const double part = room_.Adjust(memory, stats_.bytes);
    if (part == 0) return dropped;
    std::unordered_map<uint64_t, int64_t> bytes;
    ForEach([&](const Entry& entry) {
      bytes[Region(entry.sample())] += size_(entry.sample());
    });
    std::vector<std::pair<uint64_t, int64_t>> regions(bytes.begin(),
                                                      bytes.end());
    std::sort(regions.begin(), regions.end());
    std::unordered_set<uint64_t> chosen;
    double due = 0;
    for (const auto& [region, held] : regions) {
      due += part * held;
      if (due <= 0) continue;
      due -= held;
      chosen.insert(region);
    }
    ForEach([&](const Entry& entry) {
      if (chosen.count(Region(entry.sample())) == 0) return;
      dropped.push_back(Extract(entry));
      ++stats_.evictions;
    });
    return dropped;
  }

  const int64_t max_bytes_;
  const SizeFunction size_;
  const PrefetchFunction prefetch_;
  mutable std::mutex mu_;
  MemoryPressureLimit room_;
  Pages pages_ ABSL_GUARDED_BY(mu_);
  SampleMapStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
