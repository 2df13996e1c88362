"""The experiments: what they train, and what their tables say."""
from support.mutants import Mutant


def _mutant(name, module, old, new, test, file="test_full_length"):
  return Mutant(f"experiments: {name}", f"refurbish_tf/experiments/{module}.py", old, new, f"tests/{file}.py::{test}")


MUTANTS = [
    _mutant("echo reads the same part again and again", "pipelines", "index_shuffle(number % e, ", "index_shuffle(0 * number, ",
            "test_echo_reads_all_parts", "test_experiments"),
    _mutant("an interval as if the spread were known", "results", "student_t(CONFIDENCE, freedom) * sum", "1.96 * sum",
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
    _mutant("what the interval does not allow is said", "tables", '"not told apart" if abs(middle) <= half else', '"not told apart" if not middle else',
            "test_the_comparison_says_what_is_told_apart"),
    _mutant("prices of different seeds", "tables", "100 * value / standard[seed] for", "100 * value / min(standard.values()) for",
            "test_prices_are_compared_with_the_same_seeds"),
    _mutant("the documentation keeps its tables", "plots", "    page.write_text(text, encoding=\"utf-8\")\n", "    pass\n",
            "test_the_figures_are_drawn", "test_experiments"),
    _mutant("a target that was missed has a share", "tables", '"not reached" if min(fresh) < 0 else ', "",
            "test_the_tables_of_a_gpu"),
    _mutant("the figure's intervals are those of two seeds", "plots", "xerr=None if half is None else [half]", "xerr=None if half is None else [2 * half]",
            "test_the_figure_of_the_comparison"),
    _mutant("the paper's differences have the other sign", "plots", 'tables.PAPER[setting] - tables.PAPER["standard"]',
            'tables.PAPER["standard"] - tables.PAPER[setting]', "test_the_figure_of_the_comparison"),
    _mutant("seconds by the clock are taken for the processor's", "full_length", "(_, seconds), =", "(seconds, _), =",
            "test_the_price_of_a_training"),
    _mutant("the magnitude of a row is not trained", "accuracy", "pipeline(loaded, augmentation, setting, seed, magnitude)\n  # Decoded",
            "pipeline(loaded, augmentation, setting, seed)\n  # Decoded", "test_full_length_goes_on_where_it_was"),
    _mutant("code that was changed is not marked", "results", '("+" if changed else "")', '""',
            "test_a_row_names_the_commit_of_its_code"),
    _mutant("two processes change a table at once", "results", "      fcntl.flock(file, fcntl.LOCK_EX)\n", "",
            "test_a_table_of_several_processes", "test_experiments"),
    _mutant("hyperparameters in any order", "tables", 'sorted(rows, key=lambda row: (-row["magnitude"], row["learning_rate"]))',
            "rows", "test_the_tables_of_a_gpu"),
    _mutant("what another process has made is added again", "results", " for row in rows if not self._is_in(content, row)]",
            " for row in rows]", "test_what_another_process_has_added_is_not_done_again", "test_experiments"),
    _mutant("a table of another experiment is taken", "results", "      if head != heading and", "      if False and",
            "test_a_table_knows_its_rows", "test_experiments"),
]
