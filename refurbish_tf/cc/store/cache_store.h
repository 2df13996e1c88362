// The cache store: index -> partially augmented sample (Lee et al., USENIX ATC
// 2021, section 5.1). It knows nothing of epochs; a generation is only a number
// by which its caller tells one content of an index from another.
#ifndef REFURBISH_TF_CC_STORE_CACHE_STORE_H_
#define REFURBISH_TF_CC_STORE_CACHE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace refurbish_tf {

// Four bytes, as there is one for every sample held: epochs are counted well
// below 2^32.
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

struct CacheStoreStats {
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  // Samples that had their last use, that a newer generation replaced or that
  // made room for others. What a user removes or clears is not counted.
  int64_t evictions = 0;
};

// kNoRoom: the limit does not allow it. kFailed: it could not be written, or is of
// a kind that is never kept.
enum class PutResult { kStored, kNoRoom, kNewerKept, kFailed };

// A sample to be read ahead, each with another ticket.
struct WantedSample {
  uint64_t ticket;
  uint64_t index;
  GenerationRange generations;
};

// Thread-safe. Does not lock anything but itself.
template <class Sample>
class CacheStore {
 public:
  virtual ~CacheStore() = default;

  // The most bytes it holds.
  virtual int64_t max_bytes() const = 0;

  // Whether others use it, too, perhaps in other epochs: then there may be newer
  // generations than the caller has come to, for it to use.
  virtual bool shared() const { return false; }

  // These are about to be asked for. Where they lie in memory, the processor
  // brings what `Get` reads of them nearer, all at once and not one after another.
  virtual void WillGet(const uint32_t* /*indices*/, size_t /*count*/) {}

  // Copies the sample of `index` to `*sample` and its generation to `*found`
  // when there is one of a generation that is wanted, and counts a hit or a
  // miss.
  virtual bool Get(uint64_t index, GenerationRange wanted, Sample* sample,
                   Generation* found) = 0;

  // As `Get`, for the caller's last use of a sample. Unless the store is shared,
  // it leaves it, and counts as evicted.
  virtual bool Take(uint64_t index, GenerationRange wanted, Sample* sample,
                    Generation* found) = 0;

  // Whether `Get` would hit. Counts a miss when it would not, as the caller is
  // about to prepare the sample, but no hit, as nothing is read.
  virtual bool Contains(uint64_t index, GenerationRange wanted) = 0;

  // The stored generation, or `kNoGeneration`. Counts nothing.
  virtual Generation StoredGeneration(uint64_t index) const = 0;

  // The samples that are stored, for a store that is shared.
  virtual std::vector<uint64_t> Indices() const { return {}; }

  // Keeps `sample` in place of an older generation or of the same. A sample for
  // which there is no room takes nothing else's place, but the older generation
  // it was to replace is gone.
  virtual PutResult Put(uint64_t index, Generation generation, Sample sample) = 0;

  // Removes the sample to make room, counting an eviction.
  virtual bool Evict(uint64_t index) = 0;

  virtual bool Remove(uint64_t index) = 0;
  virtual void Clear() = 0;
  virtual CacheStoreStats Stats() const = 0;

  // Reads that are under way before they are got. Thread-safe.
  class ReadAhead {
   public:
    virtual ~ReadAhead() = default;
    // How many more may be wanted; 0 while there are enough.
    virtual size_t Room() const = 0;
    // Notes them, and does no I/O.
    virtual void Want(const std::vector<WantedSample>& wanted) = 0;
    // Begins to read what is wanted. Not for who holds a lock.
    virtual void Start() = 0;
    // As the store's own, in any order, once for each that is wanted.
    virtual bool Get(const WantedSample& wanted, Sample* sample,
                     Generation* found) = 0;
  };
  // Null where reading takes no time. The store must outlive it.
  virtual std::unique_ptr<ReadAhead> MakeReadAhead() { return nullptr; }
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_CACHE_STORE_H_
