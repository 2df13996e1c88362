"""Which samples are fresh and in what order they come, and echo."""
from support.mutants import Mutant

SCHEDULE = "tests/cc/test_cc.py::test_cc[address_undefined-schedule_test]"
DECIDE = "refurbish_tf/cc/refurbish/epoch_decide.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
MANY = "tests/refurbish/test_many_samples.py::"

MUTANTS = [
    Mutant("an unknown eviction is the last one", "refurbish_tf/cc/kernels/refurbish/refurbish_dataset_op.cc",
           "    OP_REQUIRES_OK(ctx, kEvictions.Find(eviction, &attrs_.eviction));\n",
           "    kEvictions.Find(eviction, &attrs_.eviction).IgnoreError();\n",
           "tests/internal/test_forged_graphs.py::test_the_op_knows_the_policies_that_python_offers[eviction]"),
    Mutant("what fits is noted for ever", "refurbish_tf/cc/refurbish/stage.cc", "    fitting_.Free();\n", "",
           MANY + "test_what_fits_is_forgotten_when_the_schedule_begins"),
    Mutant("symbolic checkpoints copy all bits", "refurbish_tf/cc/refurbish/epoch_position.cc", "  if (since_.size() <= most) return;\n", "  (void)most;\n",
           MANY + "test_symbolic_checkpoints_do_not_copy_all_bits_again_and_again"),
    Mutant("alone, the schedule begins after an epoch that it does not know", "refurbish_tf/cc/refurbish/stage.cc",
           "    if (job_->alone()) {", "    if (false) {", "tests/cc/test_cc.py::test_a_stage_in_memory_alone[plain]"),
    # The schedule: which samples are fresh, and in what order they come.
    Mutant("an eviction skipped", "refurbish_tf/cc/plan/schedule.cc",
           "evicted.count = NumBefore(cycle, now) - evicted.first;", "evicted.count = NumBefore(cycle, now) - evicted.first - 1;", SCHEDULE),
    Mutant("one eviction more in each epoch", "refurbish_tf/cc/plan/policies.cc",
           "EvictionsUntil(count, length, reuse_factor);", "EvictionsUntil(count, length, reuse_factor) + count;",
           "tests/refurbish/test_guarantees.py::test_unbroken_training"),
    Mutant("evictions counted in floating point", "refurbish_tf/cc/plan/policies.cc",
           "  if (shift >= 0) return static_cast<uint64_t>((product << shift) / mantissa);",
           "  if (shift >= 0) return static_cast<uint64_t>(count * (samples / reuse_factor));", SCHEDULE),
    Mutant("fresh samples all at the beginning", "refurbish_tf/cc/plan/schedule.cc",
           "    fresh = remainder + num_fresh_ >= num_samples_;", "    fresh = position < num_fresh_;", SCHEDULE),
    Mutant("the same order in every epoch", "refurbish_tf/cc/plan/schedule.cc",
           "  RandomStream random(DeriveKey(seed, Purpose::kOrder, epoch_));",
           "  RandomStream random(DeriveKey(seed, Purpose::kOrder));",
           "tests/refurbish/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything"),
    Mutant("a shuffle that leaves nothing at its place", "refurbish_tf/cc/plan/random.h",
           "random.Below(size)]);", "random.Below(size - 1)]);", SCHEDULE),
    Mutant("what is kept for another generation is used", "refurbish_tf/cc/store/memory/memory_store.h",
           "entry.page != nullptr && wanted.Contains(entry.generation());", "entry.present();",
           "tests/refurbish/test_guarantees.py::test_unbroken_training"),
    Mutant("the seed of final_fn is the same in each epoch", WORK,
           "Purpose::kFinalFunction, epoch_->number(), piece));",
           "Purpose::kFinalFunction, 0, piece));",
           "tests/refurbish/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything"),
    Mutant("the seed of partial_fn is of the epoch and not of the generation", WORK,
           "SeedTensor(*epoch_, kPurpose, generation, piece)", "SeedTensor(*epoch_, kPurpose, epoch_->number(), piece)",
           "tests/refurbish/test_guarantees.py::test_any_history"),
    Mutant("samples that were to be cached are not counted as missing when they are not", DECIDE,
           "AddFromSource(slot.index, !slot.fresh);", "AddFromSource(slot.index, false);", "tests/refurbish/test_stats.py::test_removed_samples_are_absent"),
    # Echo.
    Mutant("the fraction of e dropped", "refurbish_tf/cc/plan/echo.h",
           "    return whole_ + (Mix(key_ ^ static_cast<uint64_t>(position)) < threshold_);",
           "    return whole_ + (position < 0 && key_ < threshold_);", "tests/cc/test_cc.py::test_cc[address_undefined-echo_test]"),
    Mutant("max_e off by one", "refurbish_tf/cc/kernels/echo/adaptive_echo_dataset_op.cc",
           "num_yields_ < dataset()->max_factor_ &&", "num_yields_ <= dataset()->max_factor_ &&",
           "tests/echo/test_adaptive_echo.py::test_adaptive_repeats_while_nothing_is_ready"),
    Mutant("echo reads on only when nothing is left", "refurbish_tf/cc/kernels/echo/adaptive_echo_dataset_op.cc",
           "    options.wake_part = 1;\n", "",
           "tests/echo/test_adaptive_echo.py::test_adaptive_with_a_fast_upstream_repeats_nothing"),
    Mutant("a repetition is lost by a checkpoint", "refurbish_tf/cc/kernels/echo/echo_dataset_op.cc",
           "writer->WriteScalar(prefix(), kLeft, left_));", "writer->WriteScalar(prefix(), kLeft, int64_t{0}));",
           "tests/echo/test_echo_checkpoint.py::EchoCheckpointTest"),
]
