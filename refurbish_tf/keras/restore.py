"""A callback that resumes training where it stopped.

The backup is saved before a training step. On TensorFlow the iterator is then exactly at the position of training; on
other backends the `Reader` has saved its position just before it read the step's batch. `fit` cannot begin in the
middle of an epoch, so in a resumed epoch the steps that were already done are called but do nothing.
"""

import contextlib
import os
import pathlib
import warnings
from typing import Literal, Sequence

import keras
import tensorflow as tf

from refurbish_tf._internal import checks, joined_positions
from refurbish_tf.keras import backup
from refurbish_tf.keras.reader import Reader
from refurbish_tf.keras.step import StepCallback, epoch_iterator_of


class BackupAndRestore(StepCallback):
  """Resumes an interrupted `model.fit` at the same step, with the position in the data and the state of the model.

  It works with Keras on TensorFlow, JAX and PyTorch.

  >>> import keras, tempfile
  >>> backup_dir = tempfile.mkdtemp()
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> _ = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.BackupAndRestore(backup_dir, save_freq=3)])

  If the program is killed, run it again: `fit` resumes at the epoch and step that were saved last. The rest of the
  epoch has exactly the samples that were not yielded before. With functions that take a `seed` and a source with random
  access, the weights and the history of the resumed epochs are the same as without an interruption. The arguments are
  those of Keras' own `BackupAndRestore`, which does not save the position in the data: there a resumed run gets the
  samples of the first epoch again.

  Before a training step it saves the weights of the model, the states of its optimizers and of its random layers, such
  as dropout, the metrics of the epoch so far, the iterator that `fit` reads, and the schedule of each `refurbish`
  stage. They are saved together, so a process killed at any time leaves a complete backup. Batches that Keras has read
  ahead, on JAX and PyTorch, are read again. On PyTorch it also saves the states of the generators, from which `Dropout`
  without a seed draws, and the buffers of modules. It does not save the state of other callbacks, such as how long
  `EarlyStopping` has waited, nor other global random states, such as `keras.random` without a seed. The completed steps
  of a resumed epoch are counted but not run, so the progress bar and the other callbacks show the same as without an
  interruption.

  If `model.stop_training` ended `fit`, as `EarlyStopping` does, the backup stays, and the program would resume there.

  Any `tf.data` pipeline that can be checkpointed works, if its order is repeatable: give `refurbish` a `seed`, or call
  `keras.utils.set_random_seed`. Set `options.experimental_symbolic_checkpoint` to keep buffers, such as those of
  `prefetch`, out of the backup. A `shuffle` after `refurbish` makes the backup large in any case.

  Args:
    backup_dir: a directory for the backup of this run alone, a str or a `pathlib.Path`. It is made if it is missing.
      Each of several workers needs its own; so does each of several calls of `fit`, with `delete_checkpoint=False`.
    save_freq: "epoch", to save when an epoch begins, or the number of batches after which to save, an int. A backup is
      also saved before the first step of a fit that does not resume.
    double_checkpoint: whether to keep the previous backup in case the latest is damaged. It takes twice the space.
    delete_checkpoint: whether to delete the backup after the last epoch, so that the same program trains from the
      start. If it is kept, a fit with more epochs resumes from it.
    former_dirs: the `backup_dir` of each former worker if the number of workers has changed; None for a lost one.
      While `backup_dir` has no backup, `fit` resumes with the model of the first one, and with its own part of the rest
      of the epoch of all workers (`rtf.EpochPosition.joined`).

  Raises:
    ValueError: `save_freq` is invalid; `backup_dir` is a file or inside a file; when `fit` begins, the backup is
      damaged, in a format that this version does not read, at an epoch that this `fit` does not reach, or from a fit
      with another number of batches per epoch or execution; at the first step, it is of another model or optimizer, or
      of a pipeline with another number of `refurbish` stages, or the model is not built. The model is left unchanged.
    TypeError: `backup_dir` is not a path; on JAX and PyTorch, `fit` was not given a `tf.data.Dataset`.
    RuntimeError: this version of Keras is not supported, because its internals have changed; when `fit` begins, there
      are two `BackupAndRestore`, or a distribution of Keras over several processes; or, at its first step, it reads
      through a `tf.distribute` strategy, whose iterators cannot be saved.
    tf.errors.InvalidArgumentError: at the first step, the backup is of another pipeline. The model is left unchanged.
    tf.errors.FailedPreconditionError, tf.errors.UnimplementedError: at the first step, the pipeline cannot be saved,
      because it has its own state or reads from a tf.data service.
    tf.errors.OpError, OSError: the backup cannot be written, for example on a full disk. The last backup stays.
  """

  def __init__(
    self,
    backup_dir: str | os.PathLike[str],
    save_freq: int | Literal["epoch"] = "epoch",
    double_checkpoint: bool = False,
    delete_checkpoint: bool = True,
    former_dirs: Sequence[str | os.PathLike[str] | None] | None = None,
  ) -> None:
    super().__init__()
    names = ["_initial_epoch"] if keras.backend.backend() == "tensorflow" else ["_initial_epoch", "epoch_iterator"]
    self._need(keras.Model, "fit", *names)
    self._need(keras.Model, "_symbolic_build", "data_batch")
    if not isinstance(backup_dir, (str, os.PathLike)) or not os.fspath(backup_dir):
      raise TypeError(f"backup_dir must be the path of a directory, a str or a pathlib.Path, got {backup_dir!r}.")
    if checks.scheme_of(backup_dir) is not None:
      # As a local path, it would be a directory "gs:", which is lost with the machine.
      raise ValueError(
        f"backup_dir must be a local or mounted directory, got {backup_dir!r}. Mount the bucket as a directory, or use "
        "a local directory and copy the backup to the bucket."
      )
    if not isinstance(save_freq, str) or save_freq != "epoch":
      if isinstance(save_freq, str):
        raise ValueError(f'save_freq must be "epoch" or a number of batches of at least 1, got {save_freq!r}.')
      checks.check_whole_number("save_freq", save_freq, 1)
    double_checkpoint = checks.checked_flag("double_checkpoint", double_checkpoint)
    delete_checkpoint = checks.checked_flag("delete_checkpoint", delete_checkpoint)
    # Absolute, because the program may change its working directory.
    directory = pathlib.Path(backup_dir).absolute()
    present = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    if not present.is_dir():
      raise ValueError(
        f"backup_dir must be a directory, or a path for a new one, got {backup_dir!r}, but {present} is a file. "
        "Pass another path, or remove the file."
      )
    self._backup = backup.Backup(directory, double_checkpoint)
    self._save_freq, self._deletes, self._former_dirs = save_freq, delete_checkpoint, former_dirs

  def on_train_begin(self, logs=None):
    super().on_train_begin(logs)
    if getattr(keras.distribution.distribution(), "_is_multi_process", False):
      # A process may be killed after its own backup, and before the backup of another process.
      raise RuntimeError(
        "BackupAndRestore cannot resume a fit that runs in several processes, because their backups may be of "
        "different steps; keras.callbacks.BackupAndRestore would train on the samples of the first epoch again. Write "
        "your own training loop over rtf.jax_loader(dataset, sharding), and save the weights and the state_dict() of "
        "each process in one common checkpoint, such as orbax makes."
      )
    # Not `self.model`: on JAX, a callback that reads `model` during a step takes the training state away from `fit`.
    self._fitted = self.model
    # The backup to resume from, until this fit begins to read.
    self._saved = self._backup.state()
    self._joined, self._restored_backup = None, self._backup
    if self._saved is None and self._former_dirs is not None:
      self._joined = joined_positions.joined(self._former_dirs)
      self._restored_backup = backup.Backup(pathlib.Path(next(filter(None, self._former_dirs))))
      # Steps are counted from the beginning of the epoch's rest.
      self._saved = {**self._restored_backup.state(), "epoch": self._joined["epoch"], "step": 0, "steps": None}
    self._resumes = self._saved is not None
    self._begun = False
    self._num_run = 0  # Executions of this fit.
    self._num_done = 0  # Batches of the epoch.
    self._num_resumed = 0  # How many of them were done before the interruption.
    self._position = None  # The number of the execution for which the position in the data is saved.
    self._args = None  # The arguments of the step that is being run.
    self._reader = None
    if self._saved is not None:
      self._check(self._saved)
      self.model._initial_epoch = self._saved["epoch"]

  def _check(self, saved):
    for name, way_out in (("steps", "the same dataset"), ("steps_per_execution", "a model compiled in the same way")):
      given = self._fit_arguments()[name]
      if given != saved[name] and None not in (given, saved[name]):
        self._backup.refuse(f"a fit with {name} {saved[name]}, but this one has {given}. Give fit {way_out}")
    epochs = self.params["epochs"]
    if saved["epoch"] >= epochs:
      self._backup.refuse(
        f"epoch {saved['epoch']} (from 0), but this fit has epochs={epochs}. If a later fit of this program saved it, "
        "skip the fits before that one now, and give each fit its own directory, with delete_checkpoint=False. "
        "Otherwise give fit more epochs"
      )

  def _fit_arguments(self):
    return {"steps": self.params["steps"], "steps_per_execution": self._fitted.steps_per_execution}

  def on_epoch_begin(self, epoch, logs=None):
    # Keras has read the initial epoch; the next fit must not use it again.
    self.model._initial_epoch = None
    super().on_epoch_begin(epoch, logs)
    self._epoch = epoch
    self._num_done = 0
    if self._reader is None and keras.backend.backend() != "tensorflow":
      self._reader = Reader("BackupAndRestore", self.model, self._begin, self._save_position_if_due)
      if keras.backend.backend() == "jax":
        self._reader.begin()  # In a step, JAX's variables are empty, so begin before it.

  def on_epoch_end(self, epoch, logs=None):
    if self._joined is not None:
      # If the length is unknown, Keras would otherwise give all later epochs as many steps as this rest has.
      epoch_iterator_of("BackupAndRestore", self.model).reset()
      self._joined = None

  def _join(self, callbacks):
    if any(isinstance(callback, BackupAndRestore) for callback in callbacks):
      raise RuntimeError(
        "callbacks must have only one BackupAndRestore, got two. Remove one, because only one can decide where fit "
        "resumes."
      )
    # Outermost, so that no other callback sees the steps that are not run.
    callbacks.insert(0, self)

  def run_step(self, function, *args):
    """A step has the argument `iterator` on TensorFlow, `data` on PyTorch, `state, iterator` on JAX."""
    if not self._begun:
      self._begin(*args)
    if self._num_done < self._num_resumed:
      result = self._resumed_logs if len(args) == 1 else (self._resumed_logs, args[0])
    else:
      self._num_resumed = 0
      self._args = args
      try:
        result = self._run(function, *args)
      except Exception:
        if self._num_run == 0 and not self._resumes:
          self._backup.delete()  # Nothing was trained, and the next fit may have a corrected model.
        raise
      finally:
        self._args = None
      self._num_run += 1
    self._num_done += self._fitted.steps_per_execution
    return result

  def _run(self, function, *args):
    if self._reader is None:
      self._save_position_if_due(self._num_run, self._num_done, *args)
      return function(*args)
    self._reader.begin_execution(self._num_run, *args)
    if self._reader.num_read > self._num_run and self._position == self._num_run:
      self._save()  # This step's batch was read ahead.
    result = function(*args)
    self._reader.check_that_it_was_read(self._num_run)
    return result

  def _save_position_if_due(self, number, place, iterator):
    """Begins a backup if one is due before the execution of this number, at this place in its epoch."""
    if number == 0:
      # Without a backup of the beginning, a restarted fit with a filled store would begin with the next epoch.
      is_due = not self._resumes
    elif self._save_freq == "epoch":
      is_due = place == 0
    else:
      is_due = number % -(-self._save_freq // self._fitted.steps_per_execution) == 0
    if not is_due:
      return
    self._backup.save_position(iterator)
    self._position = number
    if self._args is not None and number == self._num_run:
      self._save()

  def _begin(self, iterator):
    if not isinstance(iterator, tf.data.Iterator):
      raise RuntimeError(
        f"BackupAndRestore cannot save the {type(iterator).__name__} of a distribution strategy. Train without the "
        "strategy; keras.callbacks.BackupAndRestore would lose the position in the data and train on the samples of "
        "the first epoch again."
      )
    if self._saved is None:
      backup.build_before_training(self.model, iterator.element_spec)
      found = set().union(*(stage.draws() for stage in backup.pipeline(iterator) if hasattr(stage, "draws")))
      if found:
        warnings.warn(
          f"A function of refurbish or echo draws its own random numbers, with {', '.join(sorted(found))}. A resumed "
          "run yields every sample once, but draws different numbers. Let the function take a seed to draw the same "
          "ones.",
          stacklevel=1,
        )
    else:
      if self._saved["epoch"] != self._epoch:
        self._backup.refuse(
          f"epoch {self._saved['epoch']}, but fit begins with epoch {self._epoch}. Leave initial_epoch out"
        )
      self._resumed_logs = self._restored_backup.restore(self.model, iterator, self._saved, self._joined)
      self._num_resumed = self._saved["step"]
      self._saved = None
    self._begun = True
    return self._num_resumed

  def _save(self):
    with _state_of(self._fitted, self._args):
      self._backup.save(self._fitted, {"epoch": self._epoch, "step": self._num_done, **self._fit_arguments()})
    self._position = None

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    self._reader = None
    if self._deletes and not self.model.stop_training:
      self._backup.delete()


def _state_of(model, args):
  """A scope in which the variables of `model` have the values in a step's arguments, where JAX keeps them."""
  if len(args) == 1:
    return contextlib.nullcontext()
  weights = model.trainable_variables, model.non_trainable_variables
  groups = zip((*weights, model.optimizer.variables, model.metrics_variables), args[0], strict=True)
  pairs = [pair for variables, values in groups for pair in zip(variables, values, strict=True)]
  return keras.StatelessScope(state_mapping=pairs)
