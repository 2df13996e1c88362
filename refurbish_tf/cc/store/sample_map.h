// The cache store (Lee et al., USENIX ATC 2021, section 5.1): a map from index
// to partially augmented sample. It knows nothing about epochs: a generation is
// a number by which the caller distinguishes versions of a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refurbish_tf {

// Only four bytes, because each stored sample has one. A generation is at most
// an epoch number, far below 2^32.
using Generation = uint32_t;
inline constexpr Generation kNoGeneration =
    std::numeric_limits<Generation>::max();
inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

struct GenerationRange {
  Generation least = 0;
  Generation most = kNoGeneration - 1;
  bool Contains(Generation generation) const {
    return least <= generation && generation <= most;
  }
};

// The settings with which a store is used, by name. Names contain no spaces.
using Settings = std::map<std::string, std::string>;

struct SampleMapStats {
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  // Samples that left after their last use, were replaced by a newer generation
  // or made room for others, but not those that a user removes or clears.
  int64_t evictions = 0;
};

// kNoRoom: the byte limit does not allow it. kMemoryShort: the limit does, but
// the process is running out of memory, and evicting other samples would not
// help. kNewerKept: a newer generation stays. kFailed: it could not be written,
// or can never be stored.
enum class PutResult { kStored, kNoRoom, kMemoryShort, kNewerKept, kFailed };

// A sample to read ahead. Each has its own `ticket`.
struct WantedSample {
  uint64_t ticket;
  uint64_t index;
  GenerationRange generations;
  // For a sample in transit: its position in the ring.
  std::optional<uint64_t> position = std::nullopt;
};

// Thread-safe. Takes no locks but its own.
template <class Sample>
class SampleMap {
 public:
  virtual ~SampleMap() = default;

  // The limit on the stored bytes, whether or not memory is short.
  virtual int64_t max_bytes() const = 0;

  // Whether other jobs may use the store, perhaps in other epochs. It may then
  // hold newer generations than the caller's epoch needs, and the caller may
  // use them.
  virtual bool shared() const { return false; }

  // A sample to look up, and what was found.
  struct Lookup {
    uint64_t index = 0;
    GenerationRange wanted;
    // Whether the caller uses the sample for the last time. Unless the store is
    // shared, the sample is then removed and counts as evicted.
    bool last_use = false;
    bool hit = false;
    Sample sample = {};
    Generation generation = kNoGeneration;
  };
  // Copies the samples that the store has in a wanted generation. Counts a hit
  // or a miss for each. In a store in memory, one call for many samples is
  // faster.
  virtual void LookUp(Lookup* lookups, size_t count) = 0;
  bool Get(uint64_t index, GenerationRange wanted, Sample* sample,
           Generation* found) {
    Lookup lookup;
    lookup.index = index;
    lookup.wanted = wanted;
    LookUp(&lookup, 1);
    if (!lookup.hit) return false;
    *sample = std::move(lookup.sample);
    *found = lookup.generation;
    return true;
  }

  // Whether `Get` would hit. If not, counts a miss, because the caller is about
  // to prepare the sample. Never counts a hit, because nothing is read.
  virtual bool Contains(uint64_t index, GenerationRange wanted) = 0;

  // The stored generation, or `kNoGeneration`. Counts no hit and no miss.
  virtual Generation StoredGeneration(uint64_t index) const = 0;

  // The indices of the stored samples. Only shared stores list them.
  virtual std::vector<uint64_t> Indices() const { return {}; }

  // Stores `sample`. It replaces an older generation or, in memory, the same
  // one. If there is no room, removes that generation, but no other sample.
  virtual PutResult Put(uint64_t index, Generation generation,
                        Sample sample) = 0;

  // Checks whether memory is short if a check is due, as `Put` does. Does I/O:
  // call it with no lock held.
  virtual void LookAtMemory() {}

  // Removes the sample; counts an eviction if `evict`. False if there is none.
  virtual bool Remove(uint64_t index, bool evict) = 0;
  virtual void Clear() = 0;
  virtual SampleMapStats Stats() const = 0;

  // Begins reads before their samples are needed. Thread-safe.
  class ReadAhead {
   public:
    virtual ~ReadAhead() = default;
    // How many more samples `Want` accepts; 0 until a whole batch has room.
    virtual size_t Room() const = 0;
    // Queues the reads of samples. Does no I/O.
    virtual void Want(const std::vector<WantedSample>& wanted) = 0;
    // Begins the next queued reads. Call it with no lock held.
    virtual void Start() = 0;
    // Like the store's `Get`. Called once for each wanted sample, in any order.
    // `*foreign`: whether another process has written the sample, if known.
    virtual bool Get(const WantedSample& wanted, Sample* sample,
                     Generation* found, bool* foreign) = 0;
  };
  // Null if reads need no I/O. The store must outlive the result.
  virtual std::unique_ptr<ReadAhead> MakeReadAhead() { return nullptr; }
};

}  // namespace refurbish_tf
