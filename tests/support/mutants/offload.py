"""Batches that an accelerator finishes: what the host does of them, and their checkpoints."""
from support.mutants import Mutant

OFFLOAD = "tests/offload/test_offload.py::"
RESTART = "tests/offload/test_offload_restart.py::"
FORGED = "tests/internal/test_forged_graphs.py::test_a_forged_attribute_or_input_is_refused"
STEPS = RESTART + "test_at_every_step"
SAME = OFFLOAD + "test_behind_refurbish_the_images_are_those_of_its_final_augmentation"
WORK = "refurbish_tf/cc/kernels/offload/offload_work.cc"
ITERATOR = "refurbish_tf/cc/kernels/offload/offload_iterator.cc"
SLOTS = "refurbish_tf/cc/kernels/offload/offload_work.h"
STAGE = "refurbish_tf/cc/kernels/offload/offload_stage.h"
OP = "refurbish_tf/offload_op.py"

MUTANTS = [
    # What is drawn.
    Mutant("offload draws by the place", WORK, "  if (options_.seeded) {\n", "  if (false) {\n", SAME + "[0]"),
    Mutant("offload counts layers from 0 after a list of layers", OP,
           "source.options()), stage.num_partial_layers", "source.options()), 0",
           SAME + "[1]"),
    Mutant("what follows an image is moved by the draws of other layers", OP, "[(layer, first_position + i) for i", "[(layer, i) for i",
           "tests/offload/test_offload_targets.py::test_image_and_targets_are_those_of_refurbish[images]"),
    Mutant("clips with policies reach the workers", "refurbish_tf/cc/kernels/offload/offload_dataset_op.cc",
           "if (options.frames > 0 && !options.policy_layers.links().empty()) {", "if (false) {", FORGED + "[offload]"),
    Mutant("every epoch of offload draws the same", STAGE, "*epoch : next_epoch_++,", "*epoch : next_epoch_,",
           OFFLOAD + "test_behind_another_source_the_order_is_the_source_s_and_each_epoch_draws_anew[1]"),
    # Who does what.
    Mutant("other images than the strides of Offloaded are left", WORK, "row % options_.part() + 1;", "row % options_.part();",
           OFFLOAD + "test_the_share_is_of_each_replica_s_part[0.5-4]"),
    Mutant("one replica does it all", WORK, "nth % (8 / eighths) == 0 &&",
           "row >= options_.batch_size * (8 - eighths) / 8 && nth > 0 &&",
           OFFLOAD + "test_the_share_is_of_each_replica_s_part[0.5-4]"),
    Mutant("what the accelerator is to do is done already", WORK,
           "if (draws[0] == 1 || options_.policy_layers.links().empty()) {", "if (options_.policy_layers.links().empty()) {",
           SAME + "[1]"),
    Mutant("more tables than there are tables", SLOTS, "reserved.size() >= static_cast<size_t>(tables_)",
           "reserved.size() > static_cast<size_t>(tables_)", OFFLOAD + "test_no_group_needs_more_tables_than_it_has[24-1]"),
    Mutant("groups of a part are not counted", SLOTS, "reserved.front() <= row - group_", "reserved.front() < row / group_ * group_",
           OFFLOAD + "test_no_group_needs_more_tables_than_it_has[24-2]"),
    Mutant("tables of the last batch are counted", WORK, "  table_limit_.Begin();\n", "",
           OFFLOAD + "test_a_batch_begins_with_all_its_tables"),
    Mutant("a small last batch stays unfinished", ITERATOR,
           "        TF_RETURN_IF_ERROR(CompleteShortBatch(options(), made.get()));\n", "",
           OFFLOAD + "test_a_smaller_last_batch_is_done_by_the_host"),
    # Errors.
    Mutant("an error ends the rows of its piece, and they are lost", WORK, "  if (rows.begin < rows.end) return OrderedWorkers::Outcome::kRun;\n",
           "  if (rows.begin < rows.end && rows.next_status.ok()) return OrderedWorkers::Outcome::kRun;\n",
           OFFLOAD + "test_a_failing_element_loses_no_other"),
    # A forged graph.
    Mutant("offload makes batches without images", "refurbish_tf/cc/kernels/offload/offload_dataset_op.cc",
           "std::count(components.begin(), components.end(), once) != 1", "false", FORGED + "[offload]"),
    Mutant("offload takes seeds of any shape", WORK, "if (options_.seeded && element.back().shape() != TensorShape({2})) {",
           "if (false) {", "tests/internal/test_forged_graphs.py::test_seeds_of_another_shape_than_the_input_says_are_refused"),
    Mutant("a policy goes on from any layer", "refurbish_tf/cc/image/layers/policy.cc",
           "  if (!goes_on_ || before == nullptr) return absl::OkStatus();\n", "  if (before != this) return absl::OkStatus();\n", FORGED + "[layers]"),
    Mutant("a stage's functions may return anything", "refurbish_tf/cc/kernels/inline_function.cc",
           "  if (returned == types && num_shapes == types.size()) return absl::OkStatus();", "  return absl::OkStatus();",
           FORGED + "[augmented]"),
    Mutant("a stage may have two names", "refurbish_tf/cc/kernels/function_op.h", "ctx->num_inputs() == 0 || ctx->input(0).dims() == 0,",
           "true,", FORGED + "[named]"),
    # Checkpoints.
    Mutant("a checkpoint of offload is of what was read", ITERATOR, "    } else if (saved_ != nullptr) {\n", "    } else if (false) {\n",
           STEPS + "[refurbish, prefetch]"),
    Mutant("the first checkpoint has what was read ahead", ITERATOR,
           "    saved_ = std::make_shared<MemoryCheckpoint>(work_->Snapshot());\n", "",
           RESTART + "test_behind_refurbish_an_error_in_the_first_batch_loses_nothing"),
    Mutant("batches that are begun are not saved", ITERATOR, "    add(rows.batch);\n", "", STEPS + "[source]"),
    Mutant("the batch in hand is not saved", ITERATOR, "  add(filling_);\n", "", RESTART + "test_a_batch_that_lacks_rows_is_saved[last]"),
    Mutant("the place in the source is not restored", ITERATOR, "  position_ = position;\n", "", STEPS + "[source]"),
    Mutant("the epoch is not restored", ITERATOR, "  if (epoch >= 0) iteration_ = stage().Begin(epoch);\n", "",
           STEPS + "[source, epochs]"),
    Mutant("errors that were read ahead are not saved", ITERATOR, "errors.push_back(rows.next_status);", "{}",
           RESTART + "test_an_error_that_was_read_ahead_is_saved"),
    Mutant("a checkpoint of another seed is taken by offload", STAGE, "if (seed == seed_ || any_seed_) return absl::OkStatus();",
           "return absl::OkStatus();", RESTART + "test_the_seed_of_a_checkpoint_is_taken_unless_one_was_given"),
    Mutant("the first batch of an iterator is a measurement", ITERATOR, "    std::optional<int64_t> since;\n",
           "    std::optional<int64_t> since = 0;\n", OFFLOAD + "test_the_time_between_two_iterators_does_not_change_the_share"),
    Mutant("impossible draws of a checkpoint are taken", ITERATOR, "          !options().layers.CheckDraws(draws + 1).ok()) {",
           "          false) {", RESTART + "test_a_damaged_checkpoint_is_refused_and_changes_nothing[changes10-impossible draws]"),
    Mutant("a loader after offload saves batches", "refurbish_tf/loaders/hand_over.py", "return dataset.seeded", "return False",
           RESTART + "test_a_loader_goes_on_without_elements_in_its_state"),
]
