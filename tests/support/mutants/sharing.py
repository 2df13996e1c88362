"""The rule by which jobs take what is in transit, and what a stage makes of it."""
from support.mutants import Mutant

ORDER_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-transit_order_test]"
ROOM_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-store_room_test]"
TESTS = "tests/store/test_transit.py::"
CELLS = "tests/store/test_sharing.py::test_each_sample_is_prepared_about_once_for_all"
ORDER = "refurbish_tf/cc/cooperation/shared/transit_order.h"
JOB = "refurbish_tf/cc/cooperation/shared/shared_job.cc"
DECIDE = "refurbish_tf/cc/refurbish/epoch_decide.cc"
STAGE = "refurbish_tf/cc/refurbish/stage.cc"
RESTORE = "refurbish_tf/cc/refurbish/stage_restore.cc"
ROOM = "refurbish_tf/cc/cooperation/store_room.cc"

MUTANTS = [
    # What is taken.
    Mutant("what is about to be replaced is taken", ORDER, "ring_.num_units() - ring_.num_units() / 8;", "ring_.num_units();", ORDER_TEST),
    Mutant("what is being written is passed over for good", ORDER, "      pending_.push_back(position);\n", "", ORDER_TEST),
    Mutant("what was used before a checkpoint is taken", ORDER, "        cursor_(from),", "        cursor_(0),", ORDER_TEST),
    Mutant("a ring that is behind a checkpoint is taken from", ORDER, "cursor_ = std::max(head, from_);", "cursor_ = head;",
           ORDER_TEST),
    Mutant("a used generation is taken", JOB, "    return found.generation >= unused;", "    return true;",
           CELLS + "[half an epoch apart]"),
    Mutant("what has come already is taken", JOB, "    if (!HandsOn(index) || !needs(index)) return false;\n", "", CELLS + "[together]"),
    Mutant("what is kept is handed on", JOB, "return HandsOn(index) && needs(index);", "return needs(index);", ORDER_TEST),
    Mutant("a job alone takes what others have left", JOB,
           "  if (OthersHandOn()) {\n    const std::optional<Unkept> found", "  if (true) {\n    const std::optional<Unkept> found",
           TESTS + "test_a_job_alone_is_as_if_there_were_no_ring"),
    Mutant("of two epochs that begin at once both take", JOB, "    : JobEpoch(plan), shared_(*shared), ring_(ring) {",
           "    : JobEpoch({plan.number, shared->num_begun_, plan.schedule, plan.keys, plan.hands_on}), shared_(*shared), ring_(ring) {",
           ORDER_TEST),
    Mutant("any number of claims is refused while one place is decided", ORDER, "also_claimed || refused >= kMostRefused",
           "also_claimed", ORDER_TEST),
    Mutant("the older of two epochs takes", JOB, "  if (plan_.num_begun != shared_.num_begun_) return std::nullopt;\n", "",
           TESTS + "test_the_older_of_two_epochs_of_a_stage_takes_nothing"),
    Mutant("the baseline takes part", STAGE, "        MayShare(RoomOf(of.options, *parts.store));", "        true;",
           TESTS + "test_a_job_with_a_uniform_shuffle_takes_no_part"),
    Mutant("nothing is taken", JOB, "  if (!found.position.has_value()) return std::nullopt;", "  return std::nullopt;", CELLS),
    # What is prepared.
    Mutant("what others prepare is not passed over", ORDER, "      if (claims(index, false)) return index;",
           "      if (claims(index, true)) return index;", ORDER_TEST),
    Mutant("what others prepare is left out at the end", ORDER, "return free ? free : again(passed_over_.size(), true);",
           "return free;", ORDER_TEST),
    Mutant("what was gone is forgotten", ORDER, "passed_over_.push_front(index);", "(void)index;", ORDER_TEST),
    Mutant("the place of what was gone is forgotten", JOB, "  ++num_owed_;\n", "",
           TESTS + "test_what_is_gone_when_it_is_read_is_prepared"),
    Mutant("a generation is prepared again", "refurbish_tf/cc/cooperation/shared/used_generations.cc", "  return uses_[index].generation + 1;",
           "  return uses_[index].generation;", ORDER_TEST),
    Mutant("a generation is used again", "refurbish_tf/cc/cooperation/shared/used_generations.cc",
           "  if (uses.count > 0 && used <= uses.generation) return false;\n", "", ORDER_TEST),
    Mutant("alone it prepares other generations", JOB, "    if (!with_others) continue;\n", "",
           TESTS + "test_after_a_restore_a_job_alone_goes_on_bit_for_bit"),
    # What is put.
    Mutant("nothing is put", STAGE, "    sample_store.PutInTransit(key, generation, sample);", "    (void)generation;",
           CELLS),
    Mutant("a job alone puts", JOB, "  return HandsOn(index) && shared_.job_->OthersAreAlive();",
           "  return HandsOn(index);", TESTS + "test_a_job_alone_is_as_if_there_were_no_ring"),
    # Restart.
    Mutant("after a restore the ring is taken from its beginning", RESTORE,
           "saved.store_id == id ? saved.ring_head : 0)", "0)",
           TESTS + "test_after_a_restore_beside_others_the_rest_is_the_same_set[True]"),
    Mutant("after a restore another store is refused", RESTORE,
           "saved.store_id == id ? saved.ring_head : 0)", "saved.ring_head)",
           TESTS + "test_after_a_restore_beside_others_the_rest_is_the_same_set[False]"),
    # Room.
    Mutant("the ring has no room for what is under way", ROOM, "constexpr int64_t kUnderWay = 256;",
           "constexpr int64_t kUnderWay = 0;", ROOM_TEST),
    Mutant("the ring takes room where all fit", ROOM, "  if (room >= num_samples) return num_samples;\n", "", ROOM_TEST),
    Mutant("a source that does not know its length has no ring", ROOM, "(schedule->num_samples() - num_kept) * bytes",
           "(options.num_samples - num_kept) * bytes",
           TESTS + "test_a_run_after_the_first_pass_of_a_source_of_unknown_length_has_the_ring"),
    Mutant("with r = 1 samples are kept", ROOM, "  if (KeepsNone(options)) return 0;\n", "", ROOM_TEST),
    Mutant("a stream with r = 1 keeps nothing", ROOM, "         options.random_access &&\n", "", ROOM_TEST),
    Mutant("a full store is given a ring", ROOM, "  return left < kLeastInTransit * bytes ? 0 : left;",
           "  return left;", ROOM_TEST),
    Mutant("a first pass of unknown length is not counted", JOB,
           "    shared_.used_.Use(index, plan_.number);\n", "",
           "tests/store/test_transit.py::test_what_a_first_pass_has_used_is_not_taken_from_the_ring"),
    Mutant("a stream passes over what is not kept", DECIDE,
           "      if (job_->HandsOn(index)) {", "      if (job_->HandsOn(index) && !IsStored(index)) {",
           "tests/store/test_transit.py::test_a_stream_passes_over_nothing_that_is_not_kept"),
]
