"""Breaks of the callbacks for Keras."""
from support.mutants import Mutant

KERAS = "refurbish_tf/keras/restore.py"
READER = "refurbish_tf/keras/reader.py"
KILLED = "tests/keras/test_keras_backends.py::test_a_killed_fit_ends_as_an_unbroken_one"
READS = "tests/keras/test_keras_backends.py::test_the_reader_knows_what_was_read_for_which_step"
FIRST = "tests/keras/test_keras_callbacks.py::test_a_fit_killed_at_first_begins_with_the_same_epoch_again"
REBUILT = "tests/keras/test_keras_callbacks.py::test_a_model_that_was_fitted_begins_again_with_what_it_had_before"
DRAWS = "tests/keras/test_keras_bad_backup.py::test_functions_that_draw_by_themselves_are_saved_and_told_of"
WAITED = "tests/keras/test_keras_logger.py::test_how_much_of_an_epoch_was_waited_and_what_that_says"

MUTANTS = [
    Mutant("a Keras that works otherwise inside is taken", "refurbish_tf/keras/step.py",
           "    if missing:\n", "    if missing and not names:\n",
           "tests/keras/test_keras_versions.py::test_another_keras_is_refused_at_once"),
    Mutant("a file is taken for a directory of backups", KERAS, "    if not present.is_dir():\n",
           "    if not present.exists():\n",
           "tests/keras/test_keras_bad_backup.py::test_a_file_as_backup_dir_is_refused_at_once"),
    Mutant("metrics that Keras cannot make are dropped without a word", "refurbish_tf/keras/backup.py",
           "      if error is not None:\n", "      if error is None:\n",
           "tests/keras/test_keras_callbacks.py::test_metrics_that_keras_cannot_make_in_time_are_told_of"),
    Mutant("a backup has the position after what Keras has read ahead", KERAS,
           "    if self._args is not None and number == self._num_run:\n", "    if self._args is not None:\n", KILLED),
    Mutant("a backup has the weights that Keras holds no more", KERAS, "  if len(args) == 1:\n", "  if args:\n", KILLED),
    Mutant("a backup that is due for a batch read ahead is left out", KERAS,
           "    if self._reader.num_read > self._num_run and self._position == self._num_run:\n", "    if False:\n", KILLED),
    Mutant("a fit over a warm store begins again with the next epoch", KERAS,
           "      is_due = not self._resumes\n", "      is_due = False\n", FIRST),
    Mutant("what a first step would build is missing in the backup before it", "refurbish_tf/keras/backup.py",
           "  else:\n    _build(model, element_spec)\n", "", REBUILT),
    Mutant("the optimizer has nothing in the backup before the first step", "refurbish_tf/keras/backup.py",
           "_flatten_layers()):\n    _build_optimizers([model.optimizer], model)\n", "_flatten_layers()):\n    pass\n", REBUILT),
    Mutant("what was read of an iterator that is left counts for the next", READER,
           "      self._batches = args[1]\n      self.num_read = number\n", "      self._batches = args[1]\n", READS),
    Mutant("Keras may read any number of steps ahead", READER, "if not 0 < self.num_read - number <= 2:",
           "if not 0 < self.num_read - number:", READS),
    Mutant("Keras shards after refurbish without a word", "refurbish_tf/_internal/mistakes.py",
           " and distribution._auto_shard_dataset:\n", " and not distribution._auto_shard_dataset:\n",
           "tests/keras/test_keras_backends.py::test_a_distribution_that_shards_behind_refurbish_is_told_of"),
    Mutant("an assertion is a draw", "refurbish_tf/_internal/tracing.py",
           "if _DRAWS.fullmatch(name)}", 'if _DRAWS.fullmatch(name) or name == "Assert"}', DRAWS),
    Mutant("a draw in a branch is not seen", "refurbish_tf/_internal/dataset_graph.py",
           "(graph.node, *(each.node_def for each in graph.library.function))", "(graph.node,)", DRAWS),
    Mutant("validation is a part of the time that training could wait", "refurbish_tf/keras/logger.py",
           "    if self._step is not None and self._ended is None:\n", "    if self._step is None:\n", WAITED),
    Mutant("the logger gives the share of all epochs", "refurbish_tf/keras/logger.py", "counts = type(after)(**values)",
           "counts = after", "tests/keras/test_keras_logger.py::test_the_images_that_either_side_finished"),
    Mutant("the verdict counts the first epoch", "refurbish_tf/keras/logger.py",
           "_fraction(self._times[1:] or self._times)", "_fraction(self._times)", WAITED),
]
