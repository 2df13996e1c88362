"""Shards of a source, another number of them, and positions between epochs."""
from support.mutants import Mutant

SETTINGS = "refurbish_tf/cc/stage/agreed_settings.cc"
SCHEDULE = "refurbish_tf/cc/schedule/schedule.cc"
RESTORE = "refurbish_tf/cc/stage/stage_restore.cc"
AGAIN = "tests/refurbish/test_shards.py::test_the_number_changes_again_and_again"

MUTANTS = [
    Mutant("the samples of all shards have the same seeds", "refurbish_tf/cc/kernels/refurbish/sample_work.cc",
           "epoch.InWhole(*piece->place.index));", "*piece->place.index);",
           "tests/refurbish/test_shards.py::test_samples_have_the_numbers_of_the_whole_source"),
    Mutant("on disk samples have the numbers of their shard", "refurbish_tf/cc/store/samples/sample_store.h",
           "return disk_samples_ == nullptr ? Shard() : shard;", "return Shard();", AGAIN),
    Mutant("shorter and longer orders have one hand", SCHEDULE,
           "{HandAt(epoch, shorter + 1), HandAt(epoch, shorter)}", "{HandAt(epoch, shorter), HandAt(epoch, shorter)}",
           "tests/cc/test_cc.py::test_cc[address_undefined-schedule_test]"),
    Mutant("samples take the places of the new shard's schedule", RESTORE, "  if (!follows_own && keeps_all) {",
           "  if (false) {", AGAIN),
    Mutant("a new worker takes the order of the checkpoint's", RESTORE,
           "KeepsOrder(saved)\n                                  ? *options_.schedule.order_seed\n                                  : ", "false ? 0 : ",
           "tests/refurbish/test_shards.py::test_a_worker_takes_the_checkpoint_of_another_one_between_epochs_only"),
    Mutant("workers have one order", RESTORE, "(saved.order_seed == order_seed || KeepsOrder(saved))", "(saved.order_seed == order_seed || IsMoved(saved))",
           "tests/refurbish/test_shards.py::test_a_worker_takes_the_checkpoint_of_another_one_between_epochs_only"),
    Mutant("another number of shards is not noticed within an epoch", RESTORE, "  if (saved.begun) {\n    return refused(",
           "  if (false) {\n    return refused(", "tests/refurbish/test_shards.py::test_refused_in_the_middle_of_an_epoch"),
    Mutant("a new schedule begins with the first epoch's generations", RESTORE,
           "moved && !stays ? saved.next_epoch : saved.origin", "saved.origin",
           "tests/refurbish/test_shards.py::test_a_new_schedule_begins_where_the_former_cannot_be_followed[limit]"),
    Mutant("a store that a job uses is taken over", SETTINGS, "  if (!living.empty()) {", "  if (false) {",
           "tests/refurbish/test_shards.py::test_a_store_on_disk_goes_on_without_a_checkpoint"),
    Mutant("a store of another source is taken over", SETTINGS, "  if (then != static_cast<uint64_t>(shard.whole)) {",
           "  if (false) {", "tests/refurbish/test_shards.py::test_stores_that_cannot_be_taken_over[change0-all workers together had 24 samples, and now have 20]"),
    Mutant("the schedule of a checkpoint is not noted", RESTORE, "= AgreeAnew(*store, options, shard, *schedule);",
           "= absl::OkStatus();",
           "tests/refurbish/test_shards.py::test_a_new_directory_follows_the_schedule_of_the_checkpoint_also_without_it"),
    Mutant("a lost position is the first epoch", "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.cc",
           "  if (to_be_restored_) dataset()", "  if (false) dataset()", "tests/refurbish/test_restart.py::test_repeat_and_batch"),
    Mutant("an iterator that repeat has dropped is a lost position", RESTORE, "    restored_ = true;\n", "",
           "tests/refurbish/test_restart.py::test_restores_at_every_step"),
    Mutant("a position is saved in the middle of an epoch", "refurbish_tf/epoch_position.py", "    if any(stage.is_in_epoch()",
           "    if False and any(stage.is_in_epoch()", "tests/refurbish/test_epoch_position.py::test_refused_in_the_middle_of_an_epoch"),
    Mutant("a state that is refused stays half", "refurbish_tf/_internal/dataset_graph.py",
           "    for stage, saved in zip(stages, before):\n      stage.restore_state(saved)\n", "",
           "tests/refurbish/test_epoch_position.py::test_damage_changes_nothing"),
]
