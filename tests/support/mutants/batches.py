"""Batches that the workers of a stage make, and layers that are called directly."""
from support.mutants import Mutant

ROWS = "refurbish_tf/cc/kernels/batch_rows.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
ITERATOR = "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.cc"
LAYERS = "refurbish_tf/cc/kernels/image_layers.cc"
INLINE = "refurbish_tf/cc/kernels/inline_function.cc"
TESTS = "tests/refurbish/test_batches.py::"
ENDS = "tests/refurbish/test_batch_ends.py::"
ECHO = "tests/echo/test_augment_stage.py::"

MUTANTS = [
    Mutant("batches: a row that came to nothing stays in its batch", ROWS,
           "own_ == nullptr && row.number == num_rows_ &&", "own_ == nullptr &&",
           TESTS + "test_samples_that_are_gone_leave_no_hole"),
    Mutant("batches: what is dropped leaves the epoch open", ITERATOR, "if (!last && options.drop_remainder &&", "if (false &&",
           ENDS + "test_what_is_dropped_ends_the_epoch"),
    Mutant("batches: epochs that are left lead to no reuse", "refurbish_tf/cc/refurbish/stage.cc",
           "if (fitting_.num_seen() == num_samples()) {", "if (false) {", ENDS + "test_epochs_that_are_left_lead_to_reuse"),
    Mutant("prefetch: elsewhere it has TensorFlow's budget of memory", "refurbish_tf/_internal/dataset_graph.py",
           "if not given.enabled and not given.ram_budget:", "if False:", ENDS + "test_prefetch_elsewhere_takes_no_more_than_its_memory"),
    Mutant("batches: memory that is in use is used again", "refurbish_tf/cc/kernels/batch_memory.cc",
           "  spare_.erase(found);\n", "", TESTS + "test_memory_is_aligned_and_used_again"),
    Mutant("batches: a row takes any shape", ROWS,
           " && shape == options_.shapes[number]) {", ") {", TESTS + "test_a_result_of_another_shape_than_its_row"),
    Mutant("batches: the last one has as many rows as the others", ROWS,
           "  if (!whole) Shorten(num_rows_, components);\n", "",
           TESTS + "test_whatever_runs_at_once"),
    Mutant("batches: the remainder is kept", ROWS, "whole || !options_.drop_remainder", "true",
           TESTS + "test_yields_what_batch_of_tf_data_does"),
    Mutant("batches: a batch that is begun survives an error", ROWS,
           "(row.batch != nullptr));\n  num_rows_ = 0;\n", "(row.batch != nullptr));\n",
           TESTS + "test_a_failing_sample_costs_the_batch_begun"),
    Mutant("batches: at completion a sample is noted when it is ready, and not with its batch alone", ITERATOR,
           "    if (in_order || !sample->status.ok()) status =", "    status =",
           TESTS + "test_at_completion_a_checkpoint_is_of_the_batches_handed_out"),
    Mutant("batches: layers that paint into a row draw by another seed", WORK,
           "        SeedOf(*epoch_, Purpose::kFinalFunction, epoch_->number(), *piece);",
           "        SeedOf(*epoch_, Purpose::kPartialFunction, 0, *piece);",
           TESTS + "test_layers_called_directly_do_what_their_function_does"),
    Mutant("layers called directly: what else the function does is left out", LAYERS,
           'IsLayers(node) || node.op() == "Identity" || node.op() == "Const";', "true;",
           TESTS + "test_what_else_a_function_does_is_done"),
    Mutant("layers called directly: the seed is always the stage's", LAYERS,
           "    if (seed_ < static_cast<int>(arguments.size())) {", "    if (seed == nullptr) {",
           TESTS + "test_layers_called_directly_do_what_their_function_does"),
    Mutant("layers called directly: what comes before them is all", INLINE,
           "  if (status.ok() && is_rest) *layers = layers_;\n", "",
           TESTS + "test_layers_called_directly_do_what_their_function_does"),
    Mutant("layers called directly: what comes before images that they refuse runs twice", INLINE,
           "    fell_back = IsRejection(status);", "    fell_back = IsRejection(status) || (*values)[0].NumElements() == 0;",
           TESTS + "test_what_comes_before_images_without_pixels_is_called_once"),
    Mutant("layers called directly: of a clip only the first frame is made", LAYERS,
           "    for (int64_t i = 0; i < number; ++i) {", "    for (int64_t i = 0; i < 1; ++i) {",
           TESTS + "test_layers_called_directly_do_what_their_function_does"),
    Mutant("batches of echo: rows are not in a checkpoint", "refurbish_tf/cc/kernels/element_iterator.h",
           "        results.back() = &in_rows.back();\n", "",
           ECHO + "test_batches_are_restored"),
    Mutant("packed memory: a slot is given out twice", "refurbish_tf/cc/store/samples/packed_memory.cc",
           "    std::memcpy(&slab->free, *slot, sizeof(slab->free));\n", "",
           TESTS + "test_samples_that_come_and_go_leave_no_holes"),
    Mutant("packed memory: samples are kept as they come", "refurbish_tf/cc/store/samples/memory_samples.cc",
           "  for (Tensor& tensor : sample) tensor = memory_->Copy(tensor);\n", "",
           TESTS + "test_samples_that_come_and_go_leave_no_holes"),
    Mutant("layers called directly: those of partial_fn draw by the epoch and not by the generation", WORK,
           "    const auto seed = SeedOf(*epoch_, kPurpose, generation, *piece);",
           "    const auto seed = SeedOf(*epoch_, kPurpose, epoch_->number(), *piece);",
           TESTS + "test_layers_called_directly_for_a_new_generation"),
]
