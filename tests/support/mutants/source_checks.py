"""What a source yields against what it yielded before."""
from support.mutants import Mutant

CHECKS = "tests/refurbish/test_source_checks.py::"
OP = "refurbish_tf/cc/kernels/refurbish/refurbish_dataset_op.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
DRAWN = "tests/refurbish/test_drawn_order.py::"
PROBE = "refurbish_tf/cc/kernels/source_checks/source_probe.cc"
OPS = "refurbish_tf/cc/kernels/op_lists.cc"
STORE = "refurbish_tf/cc/store/disk/source_sums.cc"

MUTANTS = [
    Mutant("a store on disk is not probed", OP, "checks.checks() && disk != nullptr && options.random_access", "false",
           CHECKS + "test_another_source_by_index_is_refused"),
    Mutant("lengths of strings are not in the checksum", PROBE, "        add(strings(k).size());\n", "",
           CHECKS + "test_another_source_by_index_is_refused"),
    Mutant("what differs is only warned of", PROBE, "= compared == Compared::kRefused;", "= false;",
           CHECKS + "test_a_sample_that_is_prepared_again_from_another_element_is_an_error"),
    Mutant("a source that calls Python is refused", OPS, "  return !HasState(op) ||",
           "  return true ||", CHECKS + "test_a_source_that_calls_python_is_never_refused"),
    Mutant("each element that differs is warned of", PROBE, "  if (checks->IsFirstWarning()) {", "  if (true) {",
           CHECKS + "test_a_generator_that_shuffles_is_warned_of_once"),
    Mutant("a source that draws is checked", "refurbish_tf/cc/stage/source_checks.h",
           "begun() && kind() != SourceKind::kDraws &&", "begun() &&",
           CHECKS + "test_a_source_that_draws_is_not_checked"),
    Mutant("what a source reads from files is not compared", OPS, '  return IsOneOf(op, "ConcatenateDataset", "Const"',
           '  return true || IsOneOf(op, "ConcatenateDataset", "Const"', CHECKS + "test_a_file_that_changes_is_warned_of"),
    Mutant("a seed in a variable is not seen", OPS, '"StatefulUniform", "Assign"}', '"StatefulUniform"}',
           CHECKS + "test_a_source_that_draws_is_not_checked"),
    Mutant("what follows an error of a stream is compared", WORK, "  if (piece->index_known && (checks", "  if ((checks",
           CHECKS + "test_what_follows_a_file_that_has_gone_is_no_alarm"),
    Mutant("the warning does not come to Python", PROBE, "    WarnInPython(text);\n", "", CHECKS + "test_it_comes_within_fit"),
    Mutant("another split is a shuffle", PROBE, "2 * num_others > num_compared", "false",
           CHECKS + "test_a_source_that_calls_python_is_never_refused"),
    Mutant("an order that is drawn is taken", "refurbish_tf/cc/stage/order_watch.cc", "kLeastMoved = 20;", "kLeastMoved = 1 << 30;",
           DRAWN + "test_an_order_that_is_drawn_is_refused_in_one_of_the_next_epochs"),
    Mutant("duplicates have moved", "refurbish_tf/cc/stage/order_watch.cc", "seen.first != seen.last || ", "",
           DRAWN + "test_no_false_alarm"),
    Mutant("what is drawn by chance has moved", "refurbish_tf/cc/stage/order_watch.cc", "kForEachOther = 3;", "kForEachOther = 0;",
           DRAWN + "test_no_false_alarm"),
    Mutant("a drawn seed of a shuffle is taken", "refurbish_tf/cc/kernels/source_checks/check_source.cc",
           "  if (DrawsSeedOfShuffle(graph, nodes)) {", "  if (false) {", DRAWN + "test_a_seed_of_index_shuffle_that_is_drawn"),
    Mutant("a generator that never ends is not noticed", "refurbish_tf/cc/stage/order_watch.cc",
           "  if (period < 2) return std::nullopt;", "  return std::nullopt;", DRAWN + "test_a_generator_that_never_ends"),
    Mutant("a source that has its elements twice never ends", "refurbish_tf/cc/stage/order_watch.cc", "10 * period", "period",
           DRAWN + "test_a_generator_that_ends"),
    Mutant("batches behind map pass for clips", "refurbish_tf/_internal/mistakes.py", '{"batches": "mapped", ', "{",
           "tests/internal/test_mistakes_in_sources.py::test_batched_source"),
    Mutant("a clip with as many labels is a batch", "refurbish_tf/_internal/mistakes.py", "spec.shape[0] is None or kind is None and spec.dtype.is_integer", "True",
           "tests/internal/test_mistakes_in_sources.py::test_what_looks_like_a_batched_source"),
    Mutant("a damaged checksum is believed", STORE, "sum != 0 && word == WordOf(index, platform, sum) ? sum : 0", "sum",
           CHECKS + "test_a_damaged_checksum_is_no_alarm"),
    Mutant("a checksum is not tied to its store", STORE, "{store_id_, index, platform, sum}", "{0, index, platform, sum}",
           CHECKS + "test_checksums_of_another_store_are_no_alarm"),
    Mutant("what was removed is compared", "refurbish_tf/cc/store/disk/disk_store.cc",
           "  if (!evict) source_sums_->Forget(index);\n", "",
           CHECKS + "test_overwrite_clear_and_remove_forget"),
    Mutant("what the store lacks is refused", "refurbish_tf/cc/stage/stage.cc", "source_checks_.Note(index, source_sum, put);",
           "source_checks_.Note(index, source_sum, true);", CHECKS + "test_what_keeps_nothing_refuses_nothing"),
    Mutant("ignore_errors hides that the source is another one", PROBE, "  if (checks->IsFirstWarning()) {",
           "  if (!refused && checks->IsFirstWarning()) {",
           CHECKS + "test_a_refusal_is_told_though_ignore_errors_hides_it"),
    Mutant("stored bytes are of a number of processors", PROBE, "  if (computes_floats) {", "  if (true) {",
           CHECKS + "test_another_number_of_processors_changes_only_what_is_computed"),
    Mutant("what computes floats is compared anywhere", "refurbish_tf/cc/kernels/source_checks/check_source.cc",
           "  facts->computes_floats =\n      std::any_of(", "  facts->computes_floats =\n      false && std::any_of(",
           CHECKS + "test_another_number_of_processors_changes_only_what_is_computed"),
]
