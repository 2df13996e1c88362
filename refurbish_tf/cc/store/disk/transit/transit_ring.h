#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

// The ring of the samples that were prepared last and are not kept: what all
// processes that have the store open hand each other.
//
// A position is a number that only grows; the head is one after the last that
// was taken. The entry of a position lies in unit `position % num_units()`,
// where that of `position + num_units()` replaces it. Each unit has a word, in
// a file that all map, and a unit of the file of records. A record takes one or
// more units side by side, and with them as many positions; its word is in the
// first. One that would cross the end of the ring begins at the next round.
//
// Who puts a record advances the head, marks its word as pending, which clears
// the one before, and later writes the record and publishes the word. So it may
// die at any moment: a pending word stays until it is replaced. Who reads a
// record believes it only if its checksum, its index and its generation are
// right. That alone makes it safe to write in place. (A process may be
// stopped just before it writes a record, and go on when others have used the
// same units. It then writes over a record of theirs: whoever reads that one
// prepares its sample again.)
//
// If the state is damaged or cut the head may begin again at 0: whoever has
// come further goes back to it.
//
// Thread-safe, without a lock.
class TransitRing {
 public:
  // Both must outlive it.
  TransitRing(const Directory* directory, SharedState* state)
      : directory_(directory), state_(state) {}
  ~TransitRing() { delete files_.load(); }

  // Opens the files of a ring of `bytes`, in records of `record_bytes`, or -1
  // if they vary. From then on its geometry is that of the process which
  // planned it first; but what an earlier run has left does not count, so if
  // this process is `alone` with the store it is this one's. For one thread at
  // a time.
  absl::Status Plan(int64_t bytes, int64_t record_bytes, bool alone);
  bool IsOpen() const { return files() != nullptr; }
  // Those of all records, as agreed.
  int64_t bytes() const { return geometry().unit * geometry().num_units; }
  // Of the file of records, whether it is open here or not.
  int64_t DiskBytes() const;

  // One after the last position that was taken.
  uint64_t head() const { return state_->Ring(SharedState::kHead); }
  // How many positions it has room for, as agreed.
  uint64_t num_units() const { return geometry().num_units; }

  // What is at a position.
  struct Entry {
    enum class State {
      kGone,     // Replaced, or never put.
      kPending,  // It is being written.
      kThere,
    };
    State state = State::kGone;
    uint32_t index = 0;
    uint32_t tag = 0;   // Of the generation: `NearestGeneration`.
    uint64_t next = 0;  // The position behind it; above the one asked for.
    // Of its record, in the file of records.
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  Entry At(uint64_t position) const;

  // Whether the position was taken, and not again since.
  bool Holds(uint64_t position) const;

  const std::shared_ptr<File>& records() const { return files()->records; }

  // For who puts --------------------------------------------------------------

  struct Span {
    uint64_t position;
    uint64_t geometry;
    uint64_t offset;
    uint64_t first_unit;
    uint64_t word;  // Of the pending record.
  };
  // Advances the head by a record of `space` bytes, and marks it as pending.
  // Nothing if it is too large for the ring. Does no I/O, except that with
  // records that vary it extends the file of words, once in 65,536.
  std::optional<Span> Append(uint32_t index, Generation generation,
                             uint64_t space);
  // Whether the span is still the record's own, to be written.
  bool IsOwn(const Span& span) const {
    return state_->Ring(SharedState::kGeometry) == span.geometry &&
           Holds(span.position);
  }
  // The record was written, or could not be.
  void Publish(const Span& span) { Replace(span, span.word | kPublished); }
  void Drop(const Span& span) { Replace(span, 0); }

  // Nothing that was put before is there any more.
  void Clear();

  // As those of MappedFile.
  bool WasCut() const { return IsOpen() && files()->words->WasCut(); }
  absl::Status Mend() {
    return IsOpen() ? files()->words->Mend() : absl::OkStatus();
  }

 private:
  static constexpr uint64_t kPublished = 1;

  // How the file of records is divided, and as a number: bytes / 64 of a unit
  // (21 bits), their number (27).
  struct Geometry {
    uint64_t unit;
    uint64_t num_units;
    // A unit is a record, or, where these vary, a small part of the ring: it
    // does not depend on the records that come.
    static Geometry For(int64_t bytes, int64_t record_bytes);
    static Geometry Of(uint64_t number);
    uint64_t number() const;
    // How many side by side a record can take.
    uint64_t MostUnits() const;
  };
  struct Files {
    Geometry own;
    std::unique_ptr<Index> words;
    std::shared_ptr<File> records;
  };

  const Files* files() const { return files_.load(std::memory_order_acquire); }
  Geometry geometry() const {
    return Geometry::Of(state_->Ring(SharedState::kGeometry));
  }
  // The geometry; `own` if none is agreed yet, or what was is damaged.
  Geometry Agree(const Geometry& own);
  void Replace(const Span& span, uint64_t word);

  const Directory* const directory_;
  SharedState* const state_;
  // Set once.
  std::atomic<const Files*> files_{nullptr};
};

}  // namespace refurbish_tf
