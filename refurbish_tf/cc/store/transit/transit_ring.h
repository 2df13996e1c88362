#ifndef REFURBISH_TF_CC_STORE_TRANSIT_TRANSIT_RING_H_
#define REFURBISH_TF_CC_STORE_TRANSIT_TRANSIT_RING_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

// The ring of the samples that were prepared last and are not kept: what all
// processes that have the store open hand each other.
//
// A position is a number that only grows; the head is one after the last that
// was taken. The entry of a position lies in slot `position % slots()`, where
// that of `position + slots()` replaces it. Each slot has a word, in a file that
// all map, and a unit of the file of records. A record takes one or more units
// side by side, and with them as many positions; its word is in the first.
//
// Who puts a record advances the head, marks its word as pending, which clears
// the one before, and later writes the record and publishes the word. So it may
// die at any moment: a pending word stays until it is replaced. Who reads a
// record believes it only if its checksum, its index and its generation are
// right and its position was not taken again meanwhile.
//
// Thread-safe, without a lock.
class TransitRing {
 public:
  // One after the last position that was taken.
  uint64_t head() const;
  // How many positions it has room for. 0 while that is not known: then nothing
  // was ever put.
  uint64_t slots() const;

  // What is at a position.
  struct Entry {
    enum class State {
      kGone,     // Replaced, or never put.
      kPending,  // It is being written.
      kThere,
    };
    State state = State::kGone;
    uint32_t index = 0;
    uint32_t tag = 0;       // Of the generation: `NearestGeneration`.
    uint64_t next = 0;      // The position behind it; above the one asked for.
  };
  Entry At(uint64_t position) const;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_TRANSIT_TRANSIT_RING_H_
