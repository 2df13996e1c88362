"""Breaks of the callbacks for Keras."""
from support.mutants import Mutant

KERAS = "refurbish_tf/keras/restore.py"
DRAWS = "tests/test_keras_bad_backup.py::test_functions_that_draw_by_themselves_are_saved_and_told_of"
WAITED = "tests/test_keras_logger.py::test_how_much_of_an_epoch_was_waited_and_what_that_says"

MUTANTS = [
    Mutant("a Keras that works otherwise inside is taken", "refurbish_tf/keras/step.py",
           "    if missing:\n", "    if missing and not names:\n",
           "tests/test_keras_versions.py::test_another_keras_is_refused_at_once"),
    Mutant("a file is taken for a directory of backups", KERAS, "    if not present.is_dir():\n",
           "    if not present.exists():\n",
           "tests/test_keras_bad_backup.py::test_a_file_as_backup_dir_is_refused_at_once"),
    Mutant("metrics that Keras cannot make are dropped without a word", "refurbish_tf/keras/backup.py",
           "      if error is not None:\n", "      if error is None:\n",
           "tests/test_keras_callbacks.py::test_metrics_that_keras_cannot_make_in_time_are_told_of"),
    Mutant("an assertion is a draw", "refurbish_tf/_internal/tracing.py",
           "if _DRAWS.fullmatch(name)}", 'if _DRAWS.fullmatch(name) or name == "Assert"}', DRAWS),
    Mutant("a draw in a branch is not seen", "refurbish_tf/_internal/dataset_graph.py",
           "(graph.node, *(each.node_def for each in graph.library.function))", "(graph.node,)", DRAWS),
    Mutant("validation is a part of the time that training could wait", "refurbish_tf/keras/logger.py",
           "    if self._step is not None and self._ended is None:\n", "    if self._step is None:\n", WAITED),
    Mutant("the logger gives the share of all epochs", "refurbish_tf/keras/logger.py", "counts = type(after)(**values)",
           "counts = after", "tests/test_keras_logger.py::test_the_images_that_either_side_finished"),
    Mutant("the verdict counts the first epoch", "refurbish_tf/keras/logger.py",
           "_fraction(self._times[1:] or self._times)", "_fraction(self._times)", WAITED),
]
