"""What a source yields against what it yielded before."""
from support.mutants import Mutant

CHECKS = "tests/refurbish/test_source_checks.py::"
OP = "refurbish_tf/cc/kernels/refurbish/refurbish_dataset_op.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
PROBE = "refurbish_tf/cc/kernels/source_checks/source_probe.cc"
OPS = "refurbish_tf/cc/kernels/op_lists.cc"
STORE = "refurbish_tf/cc/store/disk/source_sums.cc"

MUTANTS = [
    Mutant("a store on disk is not probed", OP, "checks.refuses() && options.random_access", "false",
           CHECKS + "test_another_source_by_index_is_refused"),
    Mutant("lengths of strings are not in the checksum", PROBE, "        add(strings(i).size());\n", "",
           CHECKS + "test_another_source_by_index_is_refused"),
    Mutant("what differs is only warned of", PROBE, "  if (compared == Compared::kRefused) {", "  if (false) {",
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
    Mutant("what follows an error of a stream is compared", WORK, "  if (piece->index_known && stage_.source", "  if (stage_.source",
           CHECKS + "test_what_follows_a_file_that_has_gone_is_no_alarm"),
    Mutant("the warning does not come to Python", PROBE, "    WarnInPython(text);\n", "", CHECKS + "test_it_comes_within_fit"),
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
           "  if (status.ok() && checks.IsFirstWarning()) {",
           CHECKS + "test_a_refusal_is_told_though_ignore_errors_hides_it"),
    Mutant("stored bytes are of a number of processors", PROBE, "  if (computes_floats) {", "  if (true) {",
           CHECKS + "test_another_number_of_processors_changes_only_what_is_computed"),
    Mutant("what computes floats is compared anywhere", "refurbish_tf/cc/kernels/source_checks/check_source.cc",
           "  facts->computes_floats =\n      std::any_of(", "  facts->computes_floats =\n      false && std::any_of(",
           CHECKS + "test_another_number_of_processors_changes_only_what_is_computed"),
]
