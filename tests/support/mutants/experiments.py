"""The experiments: what they train, and what their tables say."""
from support.mutants import Mutant


def _mutant(name, module, old, new, test, file="test_full_length"):
  return Mutant(f"experiments: {name}", f"refurbish_tf/experiments/{module}.py", old, new, f"tests/{file}.py::{test}")


MUTANTS = [
    _mutant("echo reads the same part again and again", "pipelines", "index_shuffle(number % e, ", "index_shuffle(0 * number, ",
            "test_echo_reads_all_parts", "test_experiments"),
    _mutant("an interval as if the spread were known", "results", "student_t(confidence, freedom) * sum", "1.96 * sum",
            "test_the_interval_of_a_difference"),
    _mutant("too few seeds are said to be enough", "results", "spread * (2 / count)**0.5", "spread * (1 / count)**0.5",
            "test_as_many_seeds_as_are_needed"),
    _mutant("validated on what is trained on", "accuracy", "validation=loaded.train.skip(images)",
            "validation=loaded.train.take(images)",
            "test_a_choice_is_validated_on_training_images_that_are_not_trained_on"),
    _mutant("one setting after the other", "full_length",
            "for seed in range(max(SEEDS.values())) for setting, seeds in SEEDS.items() if seed < seeds]",
            "for setting, seeds in SEEDS.items() for seed in range(seeds)]",
            "test_the_comparison_takes_turns_and_measures_its_input"),
    _mutant("one epoch of the input is measured", "full_length", 'rounds=1, epochs=row["epochs"])', "rounds=1, epochs=1)",
            "test_the_comparison_takes_turns_and_measures_its_input"),
    _mutant("an echo ends before the baseline", "full_length", '"most_steps": e * ECHOING', '"most_steps": ECHOING',
            "test_what_a_gpu_would_run"),
    _mutant("all is computed with float32", "training", "  keras.config.set_dtype_policy(precision)\n", "", "test_networks", "test_experiments"),
    _mutant("what the interval does not allow is said", "plots", '"no" if abs(middle) <= half else', '"no" if not middle else',
            "test_the_comparison_says_what_is_told_apart"),
    _mutant("prices of different seeds", "plots", "[some[seed] for seed in shared]", "list(some.values())",
            "test_the_comparison_says_what_is_told_apart"),
    _mutant("the documentation keeps its tables", "plots", "    page.write_text(text, encoding=\"utf-8\")\n", "    pass\n",
            "test_the_figures_are_drawn", "test_experiments"),
    _mutant("a target that was missed has a share", "plots", '"not reached" if min(fresh) < 0 else ', "",
            "test_the_tables_of_a_gpu"),
    _mutant("hyperparameters in any order", "plots", 'sorted(rows, key=lambda row: (-row["magnitude"], row["learning_rate"]))',
            "rows", "test_the_tables_of_a_gpu"),
    _mutant("what another process has made is added again", "results", "      if self.has(row):\n        print(", "      if False:\n        print(",
            "test_what_another_process_has_added_is_not_done_again", "test_experiments"),
]
