// The cache store: index -> partially augmented sample (Lee et al., USENIX ATC
// 2021, section 5.1). It knows nothing of epochs; a generation is only a number
// by which its caller tells one content of an index from another.
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

// Four bytes, as every stored sample has one: epochs are counted well below
// 2^32.
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

// The settings a store is used under, by name. Names have no spaces.
using Settings = std::map<std::string, std::string>;

struct CacheStoreStats {
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  // Samples that left after their last use, were replaced by a newer generation
  // or made room for others. Samples that a user removes or clears are not
  // counted.
  int64_t evictions = 0;
};

// kNoRoom: the limit of bytes does not allow it. kMemoryShort: it would, but
// the memory of the process runs out; nothing can be evicted for it. kFailed:
// it could not be written, or can never be kept.
enum class PutResult { kStored, kNoRoom, kMemoryShort, kNewerKept, kFailed };

// A sample to read ahead. Each has a ticket of its own.
struct WantedSample {
  uint64_t ticket;
  uint64_t index;
  GenerationRange generations;
  // Of a sample in transit: where it is in the ring.
  std::optional<uint64_t> position = std::nullopt;
};

// Thread-safe. Takes no lock but its own.
template <class Sample>
class CacheStore {
 public:
  virtual ~CacheStore() = default;

  // The limit on the bytes it holds, also while memory is short and it holds
  // less.
  virtual int64_t max_bytes() const = 0;

  // Whether other jobs use it, too, perhaps at other epochs. It may then hold
  // newer generations than the caller has come to, which the caller may use.
  virtual bool shared() const { return false; }

  // A sample to look up, and what was found.
  struct Lookup {
    uint64_t index = 0;
    GenerationRange wanted;
    // The caller's: unless the store is shared, the sample is removed and
    // counts as evicted.
    bool last_use = false;
    bool hit = false;
    Sample sample = {};
    Generation generation = kNoGeneration;
  };
  // Copies those samples of which the store has a wanted generation. Counts a
  // hit or a miss for each. A store in memory reads many at once faster.
  virtual void LookUp(Lookup* lookups, size_t count) = 0;
  // The same for one. Whether it is a hit.
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

  // Whether `Get` would hit. Counts a miss when it would not, as the caller is
  // about to prepare the sample, but no hit, as nothing is read.
  virtual bool Contains(uint64_t index, GenerationRange wanted) = 0;

  // The stored generation, or `kNoGeneration`. Counts nothing.
  virtual Generation StoredGeneration(uint64_t index) const = 0;

  // The indices of the stored samples, for a store that is shared.
  virtual std::vector<uint64_t> Indices() const { return {}; }

  // Stores `sample`, in place of an older or the same generation. If there is
  // no room no other sample is removed, but the older generation of this one
  // is.
  virtual PutResult Put(uint64_t index, Generation generation,
                        Sample sample) = 0;

  // Looks whether memory is short, when it is time to, as a put does. Does I/O:
  // to be called with no lock held.
  virtual void LookAtMemory() {}

  // Whether there is room for so many bytes, as far as it is known before.
  virtual bool HasRoom(int64_t /*bytes*/) { return true; }

  // Removes the sample; to make room, which counts as an eviction, or not.
  virtual bool Remove(uint64_t index, bool evict) = 0;
  virtual void Clear() = 0;
  virtual CacheStoreStats Stats() const = 0;

  // Reads that begin before their samples are asked for. Thread-safe.
  class ReadAhead {
   public:
    virtual ~ReadAhead() = default;
    // How many more samples `Want` takes; 0 while there are enough.
    virtual size_t Room() const = 0;
    // Queues them. Does no I/O.
    virtual void Want(const std::vector<WantedSample>& wanted) = 0;
    // Begins the queued reads. To be called with no lock held.
    virtual void Start() = 0;
    // As the store's `Get`, once for each wanted sample, in any order.
    // `*foreign`: whether another process has written it, if that is known.
    virtual bool Get(const WantedSample& wanted, Sample* sample,
                     Generation* found, bool* foreign) = 0;
  };
  // Null if a read takes no I/O. The store must outlive it.
  virtual std::unique_ptr<ReadAhead> MakeReadAhead() { return nullptr; }
};

}  // namespace refurbish_tf
