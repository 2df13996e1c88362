"""Training that goes on where it was stopped."""
from __future__ import annotations

import os
import pathlib
import types
import warnings
from typing import Literal

import keras
import tensorflow as tf

from refurbish_tf._internal import checks
from refurbish_tf.keras import backup
from refurbish_tf.keras.step import StepCallback


class RestoreDataset(StepCallback):
  """Goes on with an interrupted `model.fit` at the very step, with the position in the data and the state of the model.

  >>> import keras, tempfile
  >>> backup_dir = tempfile.mkdtemp()
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> _ = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup_dir, save_freq=3)])

  Run the same program again after it was killed: `fit` goes on in the epoch and at the step that was saved last. The
  rest of the epoch is just what was not yielded before; with functions that take a `seed` and a source with random
  access, the finished run is the same as one without a break: the weights, and the history of the resumed epochs.
  Keras' own `BackupAndRestore`, which this takes the place of, knows nothing of the data: a resumed run is given the
  data of the first epoch again.

  It saves, before a training step, the weights of the model, the states of its optimizers and of its random layers such
  as dropout, the metrics of the epoch so far, the iterator that `fit` reads, and where each stage `refurbish` is in its
  schedule; all at once, so that a process killed at any time leaves a whole backup behind. It does not save what
  other callbacks know, such as how long `EarlyStopping` has waited, nor global random states, such as that of
  `keras.random` without a seed. Steps of the resumed epoch that were done before are counted and not run again, so that
  the progress bar and the other callbacks show what they would have shown without a break.

  When `fit` has done its last epoch, the backup is deleted, and the same program trains from the start. When it was
  stopped before that by `model.stop_training`, as by `EarlyStopping`, the backup stays, and the same program would go on
  from there.

  Any pipeline of `tf.data` that can be checkpointed will do, if its order is repeatable: give `refurbish` a `seed`, or
  call `keras.utils.set_random_seed`. Set `options.experimental_symbolic_checkpoint` to keep what `prefetch` and the like
  hold out of the backup, and where `refurbish` stands in a function of `flat_map` or `interleave`; a `shuffle` behind
  `refurbish` makes the backup large all the same.

  Implements restart (G7 of the design); in the paper training always runs to its end.

  Args:
    backup_dir: a directory for the backup, a str or a `pathlib.Path`, of this run and no other. It is made where it
      is missing. With several workers give each one of its own.
    save_freq: "epoch", to save when an epoch begins, or after how many batches to save, an int.

  Raises:
    ValueError: `save_freq` is neither; when `fit` begins, the backup is damaged, of a newer version of this package, of
      more epochs than asked for, or of a fit with another number of batches in an epoch or in an execution; at the
      first step, it is of another model or optimizer, or of a pipeline with another number of stages `refurbish`, or the
      model is not built. The model is not changed then.
    TypeError: `backup_dir` is not a path.
    RuntimeError: Keras runs on another backend than TensorFlow, or is of a version whose internals are not those of
      the known ones; when `fit` begins, there are two `RestoreDataset`; at its first step, it reads through a distribution
      strategy, whose iterators cannot be saved.
    tf.errors.InvalidArgumentError: at the first step, the backup is of another pipeline. The model is not changed then.
    tf.errors.FailedPreconditionError, tf.errors.UnimplementedError: at the first step, the pipeline cannot be saved, as
      it has a state of its own or reads from a tf.data service.
    tf.errors.OpError, OSError: the backup cannot be written, as on a full disk. The last one stays.
  """

  def __init__(self, backup_dir: str | os.PathLike[str], save_freq: int | Literal["epoch"] = "epoch") -> None:
    super().__init__()
    self._need(keras.Model, "fit", "_initial_epoch")
    self._need(keras.Model, "_symbolic_build", "data_batch")
    if keras.backend.backend() != "tensorflow":
      raise RuntimeError(
          f"RestoreDataset works with Keras' TensorFlow backend, and this is {keras.backend.backend()}, which reads "
          "ahead of training by an unknown number of batches. In a training loop of your own save "
          "tf.train.Checkpoint(iterator=...) with the weights.")
    if not isinstance(backup_dir, (str, os.PathLike)) or not os.fspath(backup_dir):
      raise TypeError(f"backup_dir must be the path of a directory, a str or a pathlib.Path, got {backup_dir!r}.")
    if save_freq != "epoch":
      if isinstance(save_freq, str):
        raise ValueError(f'save_freq must be "epoch" or a number of batches of at least 1, got {save_freq!r}.')
      checks.check_whole_number("save_freq", save_freq, 1)
    # The program may go to another directory.
    self._backup = backup.Backup(pathlib.Path(backup_dir).absolute())
    self._save_freq = save_freq

  def on_train_begin(self, logs=None):
    super().on_train_begin(logs)
    # What there is to go on with, until the first step of this fit.
    self._saved = self._backup.state()
    self._first_step = True
    self._num_done = 0  # Batches of the epoch.
    self._num_resumed = 0  # Of them, how many were done before the break.
    self._num_unsaved = 0
    if self._saved is not None:
      self._check(self._saved)
      self.model._initial_epoch = self._saved["epoch"]  # pylint: disable=protected-access

  def _check(self, saved):
    for name, way_out in (("steps", "the same dataset"), ("steps_per_execution", "a model compiled as then")):
      given = self._fit_arguments()[name]
      if given != saved[name] and None not in (given, saved[name]):
        self._backup.refuse(f"a fit with {name} {saved[name]}, but this one has {given}. Give fit {way_out}")
    epochs = self.params["epochs"]
    if saved["epoch"] >= epochs:
      self._backup.refuse(f"epoch {saved['epoch']}, but this fit has {epochs} of them, from 0 on. Ask for more")

  def _fit_arguments(self):
    return {"steps": self.params["steps"], "steps_per_execution": self.model.steps_per_execution}

  def on_epoch_begin(self, epoch, logs=None):
    # Keras has read it, and the next fit must not.
    self.model._initial_epoch = None  # pylint: disable=protected-access
    super().on_epoch_begin(epoch, logs)
    self._epoch = epoch
    self._num_done = 0

  def _join(self, callbacks):
    if any(isinstance(callback, RestoreDataset) for callback in callbacks):
      raise RuntimeError("There are two RestoreDataset callbacks, and only one can say where fit goes on. Leave one out.")
    # Nobody else is to see the steps that are not run.
    callbacks.insert(0, self)

  def run_step(self, function, iterator):
    if isinstance(iterator, types.GeneratorType):
      return function(iterator)  # From train_on_batch, after this fit was interrupted.
    if self._first_step:
      self._begin(iterator)
    elif self._save_freq == "epoch":
      if self._num_done == 0:
        self._save(iterator)
    elif self._num_unsaved >= self._save_freq:
      self._save(iterator)
    if self._num_done < self._num_resumed:
      logs = self._resumed_logs
    else:
      self._num_resumed = 0
      logs = function(iterator)
      self._num_unsaved += self.model.steps_per_execution
    self._num_done += self.model.steps_per_execution
    return logs

  def _begin(self, iterator):
    if not isinstance(iterator, tf.data.Iterator):
      raise RuntimeError(
          f"RestoreDataset cannot save the {type(iterator).__name__} of a distribution strategy. Leave the strategy out, "
          "or use keras.callbacks.BackupAndRestore, which knows nothing of the data.")
    if self._saved is None:
      # Not only after an epoch is it told that a pipeline cannot be saved.
      self._backup.check_that_it_can_be_saved(iterator)
      _tell_of_draws(iterator)
    else:
      if self._saved["epoch"] != self._epoch:
        self._backup.refuse(
            f"epoch {self._saved['epoch']}, but fit begins with epoch {self._epoch}. Leave initial_epoch out")
      self._resumed_logs = self._backup.restore(self.model, iterator, self._saved)
      self._num_resumed = self._saved["step"]
      self._saved = None
    self._first_step = False

  def _save(self, iterator):
    self._backup.save(self.model, iterator, {"epoch": self._epoch, "step": self._num_done, **self._fit_arguments()})
    self._num_unsaved = 0

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    if not self.model.stop_training:
      self._backup.delete()


def _tell_of_draws(iterator):
  found = set().union(*(stage.draws() for stage in backup.pipeline(iterator) if hasattr(stage, "draws")))
  if found:
    warnings.warn(
        f"A function of refurbish or echo draws random numbers of its own, by {', '.join(sorted(found))}. A resumed run "
        "yields every sample once, as this one would, but does not repeat its draws; functions that take a seed do.",
        stacklevel=2)
