#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/shared_state.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// The ring of the samples that were prepared last and are not kept. Through it,
// all processes that have the store open pass samples to each other.
//
// A position is a number that only grows; the head is one after the last
// position that was taken. The entry of a position is in unit `position %
// num_units()`, until the entry of `position + num_units()` replaces it. Each
// unit has a word, in a file that all processes map, and a part of the file of
// records. A record takes one or more adjacent units, and as many positions;
// its word is the word of its first unit. A record that would cross the end of
// the ring begins at the next round.
//
// To put a record, a process advances the head, marks the record's word as
// pending, which overwrites the earlier word, and later writes the record and
// publishes the word. The process may die at any moment: a pending word stays
// until it is replaced. A reader trusts a record only if its checksum, its
// index and its generation are right. This check alone makes it safe to write
// in place. (A process may be stopped just before it writes a record, and
// continue when others have used the same units. It then overwrites one of
// their records, and whoever reads that record prepares its sample again.)
//
// If the state is damaged or cut, the head may begin again at 0, and readers
// that are beyond it go back to it. Thread-safe, without a lock.
class TransitRing {
 public:
  TransitRing(const Directory* directory, SharedState* state)
      : directory_(directory), state_(state) {}
  ~TransitRing() { delete files_.load(); }

  // Opens the files of a ring of `bytes`, in records of `record_bytes`, or -1
  // if they vary. The process that first plans the ring sets the geometry. But
  // a process that is `alone` with the store replaces the geometry that an
  // earlier run has left. For one thread at a time.
  absl::Status Plan(int64_t bytes, int64_t record_bytes, bool alone);
  bool IsOpen() const { return files() != nullptr; }
  // The bytes of all units, in the agreed geometry.
  int64_t bytes() const { return geometry().unit * geometry().num_units; }
  // The space of the file of records on the disk, whether it is open or not.
  int64_t DiskBytes() const;

  // One after the last position that was taken.
  uint64_t head() const { return state_->Ring(SharedState::kHead); }
  // How many units there are, in the agreed geometry.
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
    uint32_t tag = 0;   // Of the generation. See `NearestGeneration`.
    uint64_t next = 0;  // The next position to read, above this one.
    // Where its record is in the file of records.
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  Entry At(uint64_t position) const;

  // Whether the position was taken, and its unit has not been taken again.
  bool Holds(uint64_t position) const;

  const std::shared_ptr<File>& records() const { return files()->records; }

  // For puts ------------------------------------------------------------------

  struct Span {
    uint64_t position;
    uint64_t geometry;
    uint64_t offset;
    uint64_t first_unit;
    uint64_t word;  // Of the pending record.
  };
  // Advances the head by a record of `space` bytes, and marks the record as
  // pending. Returns nothing if it is too large for the ring, or cannot be
  // marked. Does no I/O, except that it extends the file of words, once in
  // 65,536 units, if `Plan` has not.
  std::optional<Span> Append(uint32_t index, Generation generation,
                             uint64_t space);
  // Whether the span still belongs to the record, so that it may be written.
  bool IsOwn(const Span& span) const {
    return state_->Ring(SharedState::kGeometry) == span.geometry &&
           Holds(span.position);
  }
  // `Publish` if the record was written, `Drop` if it could not be.
  void Publish(const Span& span) { Replace(span, span.word | kPublished); }
  void Drop(const Span& span) { Replace(span, 0); }

  // Drops everything that was put before.
  void Clear();

  // The words of its units, or null if there is no ring.
  Index* words() { return IsOpen() ? files()->words.get() : nullptr; }

 private:
  static constexpr uint64_t kPublished = 1;

  // How the file of records is divided. As a number: the bytes of a unit / 64
  // (21 bits), and the number of units (27).
  struct Geometry {
    uint64_t unit;
    uint64_t num_units;
    // A unit is as large as a record or, if records vary in size, a small part
    // of the ring that does not depend on them.
    static Geometry For(int64_t bytes, int64_t record_bytes);
    static Geometry Of(uint64_t number);
    uint64_t number() const;
    // How many adjacent units a record can take.
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
  // The agreed geometry. If there is none, or it is damaged, agrees on `own`.
  Geometry Agree(const Geometry& own);
  void Replace(const Span& span, uint64_t word);

  const Directory* const directory_;
  SharedState* const state_;
  // Set once.
  std::atomic<const Files*> files_{nullptr};
};

}  // namespace refurbish_tf
