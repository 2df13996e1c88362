"""Samples in transit: the ring that jobs hand each other what they do not keep by."""
from support.mutants import Mutant

RING_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-transit_ring_test]"
USE_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-transit_use_test]"
ATTACK = "tests/cc/test_cc.py::test_cc[address_undefined-transit_attack_test]"
STATE_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-shared_state_test]"
RING = "refurbish_tf/cc/store/disk/transit/transit_ring.cc"
PUTS = "refurbish_tf/cc/store/disk/transit/transit_puts.cc"
STORE = "refurbish_tf/cc/store/disk/disk_store.cc"
AHEAD = "refurbish_tf/cc/store/disk/read_ahead.cc"
STATE = "refurbish_tf/cc/store/disk/shared_state.cc"

MUTANTS = [
    # The ring.
    Mutant("a record crosses the end of the ring", RING, "    if (span.first_unit + units > geometry.num_units) {",
           "    if (units == 0) {", RING_TEST),
    Mutant("a record takes most of the ring", RING, "  if (units > geometry.MostUnits()) return std::nullopt;\n", "",
           RING_TEST),
    Mutant("an entry outlives its place", RING, "position < now && now - position <= num_units();",
           "position < now && num_units() > 0;", RING_TEST),
    Mutant("what is being written is there", RING, "published ? Entry::State::kThere : Entry::State::kPending",
           "published || true ? Entry::State::kThere : Entry::State::kPending", RING_TEST),
    Mutant("the entry of another lap is there", RING, "  if (lap != Lap(position, geometry.num_units) || units == 0 ||",
           "  if (units == 0 ||", RING_TEST),
    Mutant("who comes late marks the place of another", RING, "    if (!IsOwn(span)) return std::nullopt;\n", "",
           ATTACK),
    Mutant("a damaged word reaches beyond the ring", RING,
           "units > geometry.MostUnits() || first_unit + units > geometry.num_units) {", "false) {", RING_TEST),
    Mutant("what was cleared is still there", RING, "before + num_units()", "before", USE_TEST),
    Mutant("a second plan replaces the first", RING, "  while (Geometry::Of(number).num_units == 0) {", "  while (true) {",
           RING_TEST),
    Mutant("records that vary take units as large as the largest", RING, "(bytes / kUnitsOfRing + kSmallUnit)",
           "(bytes / static_cast<int64_t>(kPartsOfRing) + kSmallUnit)", RING_TEST),
    Mutant("a large ring of many sizes has too many units", RING, "(bytes / kUnitsOfRing + kSmallUnit)",
           "(0 * bytes + kSmallUnit)", RING_TEST),
    Mutant("who was alone once resets the ring that others use", STORE,
           "const bool alone = asked && LockWhole(lock_fd, LOCK_EX | LOCK_NB);", "const bool alone = asked;", RING_TEST),
    Mutant("who asked whether it is alone is not seen any more", STORE,
           "  if (asked && !ShareWhole(lock_fd)) planned", "  if (!asked && !ShareWhole(lock_fd)) planned", RING_TEST),
    # Puts.
    Mutant("who comes late writes", PUTS, "    if (!ring_->IsOwn(first->span)) {", "    if (first == nullptr) {",
           RING_TEST),
    Mutant("a put in transit is not bounded", PUTS, "bytes_ + space > kMostBytes", "bytes_ + space == 0", RING_TEST),
    Mutant("large records are never put", PUTS, "(records_ >= kLeastRecords && ", "(", RING_TEST),
    Mutant("one that fails takes its neighbours along", PUTS, "    if (!written.ok() && next - first > 1) {",
           "    if (!written.ok() && next < first) {", RING_TEST),
    Mutant("what could not be written is there", PUTS, "    ring_->Drop(entry.span);\n",
           "    ring_->Publish(entry.span);\n", RING_TEST),
    Mutant("what is refused stays claimed", PUTS,
           "  if (!ring_->IsOpen() || !Reserve(space)) {\n    Release(index, generation);\n",
           "  if (!ring_->IsOpen() || !Reserve(space)) {\n", RING_TEST),
    Mutant("what is there stays claimed", PUTS, "  Release(entry.index, entry.generation);\n", "", RING_TEST),
    Mutant("a flush does not wait", "refurbish_tf/cc/store/disk/writer.cc",
           "  while (flushed_ < own && !stopping_) written_.wait(lock);\n", "  (void)own;\n", RING_TEST),
    # Room.
    Mutant("what is kept takes the room of the ring", "refurbish_tf/cc/store/disk/write_buffer.h",
           "!max_bytes_.compare_exchange_weak(old, max_bytes)", "old < max_bytes", RING_TEST),
    Mutant("the ring takes the room of what is kept", STORE,
           "    bytes = std::min(bytes, max_bytes_ - records_->state().bytes());\n", "", RING_TEST),
    Mutant("the limit is forgotten when the store is opened again", STORE, "  LimitKept();\n  return writer_->Start();",
           "  return writer_->Start();", RING_TEST),
    Mutant("a run with less room has the ring of an earlier one", RING, "  if (alone && number != own.number() &&",
           "  if (alone && number != own.number() && bytes < 0 &&", RING_TEST),
    Mutant("the ring of a store that is only looked at takes no space", RING,
           "  return directory_->DiskBytes(kRingRecordsFile);", "  return IsOpen() ? directory_->DiskBytes(kRingRecordsFile) : 0;",
           RING_TEST),
    # Reads.
    Mutant("another generation is taken from the ring", AHEAD,
           " &&\n          wanted.generations.Contains(entry->buffer.header().generation);", ";",
           RING_TEST),
    Mutant("a record in transit is not checked", AHEAD,
           "entry->buffer.Verify(records.store_id(), wanted.index, bytes)", "bytes >= 64", ATTACK),
    Mutant("what another has written is not foreign", AHEAD, "*foreign = in_transit || entry->foreign;", "*foreign = in_transit;",
           USE_TEST),
    # Claims.
    Mutant("a generation is prepared twice", STATE, "? std::max<Generation>(after, least)", "? least", STATE_TEST),
    Mutant("what others prepare is prepared as well", STATE,
           "    if (!also_claimed && IsOthers(word)) return std::nullopt;\n", "", STATE_TEST),
    Mutant("a damaged claim skips generations", STATE, "after <= least + kMostAhead && after", "after", STATE_TEST),
    Mutant("another generation is released", STATE, "word >> 32 == uint64_t{generation} + 1 && (word", "(word",
           STATE_TEST),
    Mutant("what was begun alone is claimed", STATE, "OwnClaim(generation) | kReleased;", "OwnClaim(generation);",
           STATE_TEST),
    Mutant("an older generation is noted", STATE, "  while (word >> 32 <= generation) {", "  while (true) {",
           STATE_TEST),
    Mutant("a damaged head stops the ring", STATE, "  if (CheckedValue(old) == *expected &&",
           "  if (old == WithChecksum(*expected) &&", STATE_TEST),
]
