"""Callbacks for Keras: training that goes on where it was stopped, and a log of what the reuse stages do."""
from __future__ import annotations

import functools
import inspect
import os
import pathlib
import time
import types
import warnings
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf import arguments
from refurbish_tf import backup
from refurbish_tf import native
from refurbish_tf.stats import EchoStats
from refurbish_tf.stats import stats

_KNOWN_VERSIONS = "3.10 to 3.15"  # Of Keras; tests/test_keras_versions.py has the oldest and the newest.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")


class _StepCallback(keras.callbacks.Callback):
  """A callback that is around each call of the training step, on the thread that makes it.

  Keras' own hooks before and after a step do not see the iterator, and where they are used Keras waits for the device at
  each step.
  """

  _step = None

  def __init__(self):
    super().__init__()
    self._need(keras.Model, "fit", "train_function")
    self._need(keras.callbacks.History, "on_train_begin", "epoch")

  def _need(self, cls, method, *names):
    """Raises RuntimeError where a method of Keras' has not these names, which are not of its interface."""
    # What others have put in place of the method may not lead to it.
    functions = [inspect.unwrap(vars(base)[method]) for base in cls.__mro__ if method in vars(base)]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    missing = set(names).difference(*(code.co_names + code.co_varnames for code in codes))
    if missing:
      raise RuntimeError(
          f"{type(self).__name__} needs {cls.__name__}.{method} of Keras to use {', '.join(sorted(missing))}, and that of "
          f"Keras {keras.__version__} does not. It knows Keras {_KNOWN_VERSIONS}: install one of these.")

  def on_epoch_begin(self, epoch, logs=None):
    if self._step is None:
      self._step = _Step.of_this_fit(self.model)
      self._join(self._step.callbacks)

  def _join(self, callbacks):
    """Takes its place in the list, whose first is the outermost."""
    callbacks.append(self)

  def on_train_begin(self, logs=None):
    self._step = None  # It may be one of a fit that was interrupted.

  def on_train_end(self, logs=None):
    if self._step is not None:
      self._step.leave(self)
      self._step = None

  def run_step(self, function, *args):
    raise NotImplementedError


class _Step:
  """Stands in for the training step of `model` during one `fit`, and lets callbacks be around it."""

  def __init__(self, model, function):
    self._model = model
    self._function = function
    self._fit = _fit_of(model)
    self.callbacks = []

  @staticmethod
  def of_this_fit(model):
    step = model.train_function
    if isinstance(step, _Step):
      if step._fit is _fit_of(model):
        return step
      step = step._function  # Left behind by a fit that was interrupted.
    model.train_function = _Step(model, step)
    return model.train_function

  def __call__(self, *args):
    function = self._function
    # Of a fit that was interrupted nobody is told: it may be another fit that calls.
    if _fit_of(self._model) is self._fit:
      for callback in reversed(self.callbacks):
        function = functools.partial(callback.run_step, function)
    return function(*args)

  def leave(self, callback):
    self.callbacks.remove(callback)
    if not self.callbacks and self._model.train_function is self:
      self._model.train_function = self._function


def _fit_of(model):
  """An object that the running `fit` of `model` has for itself: the list of epochs, new with every fit, in its history."""
  return getattr(getattr(model, "history", None), "epoch", None)


class RestoreDataset(_StepCallback):
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
      arguments.check_whole_number("save_freq", save_freq, 1)
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


class RefurbishLogger(_StepCallback):
  """Writes what the reuse stages did in each epoch, and how long training waited for input, to history and TensorBoard.

  >>> import keras
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> history = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(train)])
  >>> history.history["refurbish_fresh"]
  [8, 4, 4]
  >>> len(history.history["input_wait_fraction"])
  3

  The history, which `fit` returns, gets a list with a value for each epoch of `fit`:

  - `input_wait_fraction`: the time that training waited for its input, over the time of the epoch without validation. It
    is in the `logs` of the epoch, for the progress bar and for callbacks that come later, such as `CSVLogger`. What it says
    depends on where training runs, see `verdict`.
  - `input_wait_p50`, `input_wait_p95`, `input_wait_max`: the median, the 95th percentile and the largest of the seconds
    that a call of the training step waited for its input, for all of its batches with `steps_per_execution`. Waits come
    in bursts: a median near 0 does not say that the input keeps up.
  - for each stage `refurbish` of the dataset: `refurbish_fresh`, `refurbish_cached`, `refurbish_evicted`,
    `refurbish_absent`, `refurbish_bytes`, `refurbish_fresh_wait` and `refurbish_store_wait`, as in `rtf.EpochStats`;
  - for each stage `echo(rtf.AUTOTUNE)`: `echo_fresh`, `echo_repeated`, `echo_fresh_wait` and `echo_factor`, as in
    `rtf.EchoStats`.

  The waits are what TensorFlow measures for all pipelines of the process together: under a distribution strategy, the sum
  over its devices, and the fraction their mean.

  A stage with a `name` has it in place of `refurbish` or `echo`. With `log_dir` all are written for TensorBoard as well, as
  `refurbish/fresh`, `input_wait/max` and so on, next to what `keras.callbacks.TensorBoard(log_dir)` writes of training. The
  callback takes some 0.1 ms a step.

  Attributes:
    verdict: when `fit` is done, a sentence on what a faster input can save, which `fit` prints, too, unless its `verbose` is
      0. It is of all epochs but the first, which is slower, where there are more. None before, and without a step.

  Args:
    dataset: the `tf.data.Dataset` that `fit` is given, or any part of it behind the stages.
    log_dir: a directory for TensorBoard, a str or a `pathlib.Path`, or None for none.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`, or `log_dir` is not a path.
    RuntimeError: Keras is of a version whose internals are not those of the known ones.
  """

  verdict: str | None = None

  def __init__(self, dataset: tf.data.Dataset[Any], log_dir: str | os.PathLike[str] | None = None) -> None:
    super().__init__()
    stats(dataset)  # Tells what is wrong with it, if anything.
    if log_dir is not None and not isinstance(log_dir, (str, os.PathLike)):
      raise TypeError(f"log_dir must be the path of a directory, or None for no TensorBoard, got {log_dir!r}.")
    self._dataset = dataset
    self._log_dir = log_dir
    self._writer = None

  def on_train_begin(self, logs=None):
    if self._log_dir is not None:
      self._writer = tf.summary.create_file_writer(os.path.join(os.fspath(self._log_dir), "train"))
    self.verdict = None
    self._times = []  # Of each epoch how long it was waited, and how long it took.
    super().on_train_begin(logs)

  def on_epoch_begin(self, epoch, logs=None):
    super().on_epoch_begin(epoch, logs)
    self._before = stats(self._dataset)
    self._waits = []
    self._waited = _waited()
    self._began, self._ended = time.perf_counter(), None

  def run_step(self, function, *args):
    result = function(*args)
    waited = _waited()
    self._waits.append(waited - self._waited)
    self._waited = waited
    return result

  def on_test_begin(self, logs=None):
    # Of the validation in an epoch; `evaluate` by itself has no epoch.
    if self._step is not None and self._ended is None:
      self._ended = time.perf_counter()

  def on_epoch_end(self, epoch, logs=None):
    values = {}
    if self._waits:
      self._times.append((sum(self._waits) / _num_devices(self.model), (self._ended or time.perf_counter()) - self._began))
      median, high = np.percentile(self._waits, [50, 95]).tolist()
      values = {"input_wait": {"p50": median, "p95": high, "max": max(self._waits)}}
      logs["input_wait_fraction"] = _fraction(self._times[-1:])
    for before, after in zip(self._before, stats(self._dataset)):
      values[_unused(after.name, values)] = _difference(before.total, after.total)
    history = self.model.history.history
    for group, scalars in values.items():
      for name, value in scalars.items():
        history.setdefault(f"{group}_{name}", []).append(value)
    if self._waits:
      values["input_wait"]["fraction"] = logs["input_wait_fraction"]  # Keras has it in the history.
    if self._writer is not None:
      with self._writer.as_default():
        for group, scalars in values.items():
          for name, value in scalars.items():
            # What tf.summary.scalar writes, which needs TensorBoard to be installed where the training runs.
            tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), step=epoch, metadata=_SCALAR)
      self._writer.flush()

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    if self._times:
      self.verdict = _verdict(_fraction(self._times[1:] or self._times), _trains_on_processors(self.model))
      if self.params["verbose"]:
        print(self.verdict)
    if self._writer is not None:
      self._writer.close()
      self._writer = None


def _waited():
  """The seconds that the pipelines of this process have been waited for."""
  return float(native.ops().refurbish_tf_input_wait())


def _num_devices(model):
  """How many devices wait at the same time."""
  return model.distribute_strategy.num_replicas_in_sync if keras.backend.backend() == "tensorflow" else 1


def _trains_on_processors(model):
  return all("cpu" in str(variable.value.device).lower() for variable in model.trainable_variables)


def _fraction(times):
  waited, took = map(sum, zip(*times))
  return waited / took


def _verdict(fraction, on_processors):
  waited = f"Training waited for its input during {100 * fraction:.0f} % of its time"
  if not on_processors:
    return f"{waited}, which is about the most that a faster input can save."
  return (f"{waited}, but it runs on the processors that prepare the input: a cheaper input may save more than that, "
          "which only a trial of some epochs tells.")


def _difference(before, after):
  values = {name: value - getattr(before, name) for name, value in vars(after).items()}
  if isinstance(after, EchoStats):
    values["factor"] = EchoStats(**values).factor
  else:
    values["bytes"] = after.bytes  # Not a sum.
  return values


def _unused(name, names):
  """`name`, with a number behind it if another stage has it."""
  number, candidate = 1, name
  while candidate in names:
    number += 1
    candidate = f"{name}_{number}"
  return candidate
