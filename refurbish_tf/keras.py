"""Callbacks for Keras: training that goes on where it was stopped, and a log of what the reuse stages do."""
import contextlib
import json
import os
import pathlib
import shutil
import types

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf import arguments
from refurbish_tf import native
from refurbish_tf.stats import EchoStats
from refurbish_tf.stats import stats

_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")
_FORMAT = 1  # Of a backup. Another one for whatever an older package could not read.


class _StepCallback(keras.callbacks.Callback):
  """A callback that is around each call of the training step, on the thread that makes it.

  Keras' own hooks before and after a step do not see the iterator, and where they are used Keras waits for the device at
  each step.
  """

  def on_train_begin(self, logs=None):
    self._step = _Step(self, self.model)

  def on_train_end(self, logs=None):
    self._step.remove()

  def run_step(self, function, *args):
    raise NotImplementedError


class _Step:
  """Stands in for the training step of `model`, while the `fit` lasts that has begun."""

  def __init__(self, callback, model):
    self._callback = callback
    self._model = model
    # Every fit has one of its own. Of one that was interrupted nobody is told.
    self._history = model.history
    self.function = model.train_function
    model.train_function = self

  def __call__(self, *args):
    if self._model.history is not self._history:
      self.remove()
      return self.function(*args)
    if isinstance(args[-1], types.GeneratorType):  # From train_on_batch, after a fit that was interrupted.
      return self.function(*args)
    return self._callback.run_step(self.function, *args)

  def remove(self):
    holder = self._model
    while (step := getattr(holder, "train_function", None) or getattr(holder, "function", None)) is not self:
      if not isinstance(step, _Step):
        return
      holder = step
    setattr(holder, "train_function" if holder is self._model else "function", self.function)


class RestoreDataset(_StepCallback):
  """Goes on with an interrupted `model.fit` at the very step, with the position in the data and all else.

  >>> import keras, tempfile
  >>> backup_dir = tempfile.mkdtemp()
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> _ = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.RestoreDataset(backup_dir, save_freq=3)])

  Run the same program again after it was killed: `fit` goes on in the epoch and at the step that was saved last. The
  rest of the epoch is just what was not yielded before; with functions that take a `seed` and a source with random
  access, the finished run is the same as one without a break, weights, history of the resumed epochs and all. Keras'
  own `BackupAndRestore`, which this takes the place of, begins an interrupted epoch anew.

  It saves the weights of the model and the state of its optimizer, the metrics of the epoch so far and
  `tf.train.Checkpoint(iterator=...)` of the iterator that `fit` reads, all at once: a process killed at any time leaves
  a whole backup behind. The steps of the resumed epoch that were done before pass without being run, so that the
  progress bar and the other callbacks count as if there had been no break. When `fit` ends, the backup is deleted.

  Any pipeline of `tf.data` that can be checkpointed will do, if its order is repeatable: give `refurbish` a `seed`, or
  call `keras.utils.set_random_seed`. Set `options.experimental_symbolic_checkpoint` to keep what `prefetch` and the like
  hold out of the backup; a `shuffle` behind `refurbish` makes it large all the same.

  Implements restart (G7 of the design); in the paper training always runs to its end.

  Args:
    backup_dir: a directory for the backup, a str or a `pathlib.Path`, of this run and nothing else. It is made where it
      is missing. With several workers give each one of its own.
    save_freq: "epoch", to save when an epoch begins, or after how many batches to save, an int.

  Raises:
    ValueError: `save_freq` is neither; when `fit` begins, the backup is of a fit with another number of batches in an
      epoch or in an execution, or of more epochs than asked for, or of a newer version of this package.
    TypeError: `backup_dir` is not a path.
    RuntimeError: when `fit` begins, Keras runs on another backend than TensorFlow; at its first step, it reads through a
      distribution strategy, whose iterators cannot be saved.
    tf.errors.InvalidArgumentError: at the first step, the backup is of another pipeline. The model is not changed then.
    tf.errors.FailedPreconditionError: at the first step, the pipeline cannot be saved, as it has a state of its own.
  """

  def __init__(self, backup_dir, save_freq="epoch"):
    super().__init__()
    if not isinstance(backup_dir, (str, os.PathLike)) or not os.fspath(backup_dir):
      raise TypeError(f"backup_dir must be the path of a directory, a str or a pathlib.Path, got {backup_dir!r}.")
    if save_freq != "epoch":
      if isinstance(save_freq, str):
        raise ValueError(f'save_freq must be "epoch" or a number of batches of at least 1, got {save_freq!r}.')
      arguments.check_whole_number("save_freq", save_freq, 1)
    self._backup = _Backup(pathlib.Path(backup_dir))
    self._save_freq = save_freq

  def on_train_begin(self, logs=None):
    if keras.backend.backend() != "tensorflow":
      raise RuntimeError(
          f"RestoreDataset works with Keras' TensorFlow backend, and this is {keras.backend.backend()}, which reads "
          "ahead of training by an unknown number of batches. In a training loop of your own save "
          "tf.train.Checkpoint(iterator=...) with the weights.")
    # What there is to go on with, until the first step of this fit.
    self._saved = self._backup.state()
    if self._saved is not None:
      self._check(self._saved)
      self.model._initial_epoch = self._saved["epoch"]  # pylint: disable=protected-access
    self._first_step = True
    self._num_done = 0  # Batches of the epoch.
    self._num_resumed = 0  # Of them, how many were done before the break.
    self._num_unsaved = 0
    super().on_train_begin(logs)

  def _check(self, saved):
    def refuse(what, given, was, way_out):
      raise ValueError(
          f"The backup in {self._backup.directory} is of a fit with {what} {was}, but this one has {given}. {way_out}, "
          "or delete the backup to begin anew.")

    if saved["format"] > _FORMAT:
      refuse("a backup of format", _FORMAT, saved["format"], "Use the refurbish_tf that wrote it")
    for name in ("steps", "steps_per_execution"):
      given = self._fit_arguments()[name]
      if given != saved[name] and None not in (given, saved[name]):
        refuse(name, given, saved[name], "Give fit the same dataset and arguments as then")
    epochs = self.params["epochs"]
    if saved["epoch"] >= epochs:
      refuse("epochs of at least", epochs, saved["epoch"] + 1, "Ask for more epochs")

  def _fit_arguments(self):
    return {"steps": self.params["steps"], "steps_per_execution": self.model.steps_per_execution}

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch
    self._num_done = 0

  def run_step(self, function, iterator):
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
          "or use keras.callbacks.BackupAndRestore, which begins an interrupted epoch anew.")
    _build(self.model, iterator.element_spec)
    if self._saved is None:
      # Not only when the first epoch has gone by is it told that a pipeline cannot be saved.
      self._save(iterator)
    else:
      if self._saved["epoch"] != self._epoch:
        raise ValueError(
            f"The backup in {self._backup.directory} is of epoch {self._saved['epoch']}, but fit begins with epoch "
            f"{self._epoch}. Leave initial_epoch out, or delete the backup.")
      self._resumed_logs = self.model.get_metrics_result() if self._backup.restore(self.model, iterator) else {}
      self._num_resumed = self._saved["step"]
      self._saved = None
    self._first_step = False

  def _save(self, iterator):
    self._backup.save(self.model, iterator, {"epoch": self._epoch, "step": self._num_done, **self._fit_arguments()})
    self._num_unsaved = 0

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    self.model._initial_epoch = None  # pylint: disable=protected-access
    self._backup.delete()


class _Backup:
  """A backup in a directory: whole, or not there at all.

  A new one is written beside the last one and then renamed. A process that is killed between the two renames leaves the
  last one as "previous".
  """

  def __init__(self, directory):
    self.directory = directory
    self._new = directory / "new"
    self._latest = directory / "latest"
    self._previous = directory / "previous"

  def state(self):
    """What was saved besides the model and the iterator, or None when there is no backup."""
    path = self._path()
    return json.loads((path / "state.json").read_text()) if path else None

  def _path(self):
    return next((path for path in (self._latest, self._previous) if path.is_dir()), None)

  def save(self, model, iterator, state):
    shutil.rmtree(self._new, ignore_errors=True)
    self._new.mkdir(parents=True)
    tf.train.Checkpoint(iterator=iterator).write(str(self._new / "iterator"))
    model.save_weights(str(self._new / "model.weights.h5"))
    np.savez(self._new / "random.npz", *(variable.numpy() for variable in _random_state(model)))
    np.savez(self._new / "metrics.npz", *(variable.numpy() for variable in model.metrics_variables))
    (self._new / "state.json").write_text(json.dumps({"format": _FORMAT, **state}) + "\n")
    # Against a loss of power: what is renamed is on disk.
    for path in [*self._new.iterdir(), self._new]:
      _synchronize(path)
    if self._latest.is_dir():
      shutil.rmtree(self._previous, ignore_errors=True)
      self._latest.rename(self._previous)
    self._new.rename(self._latest)
    _synchronize(self.directory)
    shutil.rmtree(self._previous, ignore_errors=True)

  def restore(self, model, iterator):
    """Returns whether the metrics of the epoch were restored, too."""
    path = self._path()
    # First, as it is the one that may not fit.
    tf.train.Checkpoint(iterator=iterator).read(str(path / "iterator")).assert_consumed()
    model.load_weights(str(path / "model.weights.h5"))
    _assign(_random_state(model), path / "random.npz")
    return _assign(model.metrics_variables, path / "metrics.npz")

  def delete(self):
    for path in (self._new, self._latest, self._previous):
      shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # Not ours alone.
      self.directory.rmdir()


def _build(model, element_spec):
  """Makes the variables that Keras else makes at the first step: of metrics and of the optimizer."""
  with contextlib.suppress(Exception):
    # A model with a training step of its own may not be fit for this. If it has metrics that Keras makes for it, they
    # count from the break on.
    model._symbolic_build(data_batch=element_spec)  # pylint: disable=protected-access
  if model.optimizer is not None and not model.optimizer.built:
    model.optimizer.build(model.trainable_variables)


def _random_state(model):
  """The states of random layers, such as dropout, which Keras does not count among the weights."""
  weights = {id(variable) for variable in model.weights}
  return [variable for variable in model.variables if id(variable) not in weights]


def _assign(variables, path):
  """Assigns what was saved of `variables`, in their order. Returns False, and assigns nothing, if there are others."""
  with np.load(path) as values:
    if len(values.files) != len(variables):
      return False
    for variable, name in zip(variables, values.files):
      variable.assign(values[name])
  return True


def _synchronize(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


class RefurbishLogger(_StepCallback):
  """Writes what the reuse stages did in each epoch, and how long training waited for input, to history and TensorBoard.

  >>> import keras
  >>> train = tf.data.Dataset.range(8).refurbish(lambda x: (tf.cast([x], tf.float32), 1.0), r=2, seed=7).batch(2)
  >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  >>> model.compile("sgd", "mse")
  >>> history = model.fit(train, epochs=3, verbose=0, callbacks=[rtf.keras.RefurbishLogger(train)])
  >>> history.history["refurbish_fresh"]
  [8, 4, 4]
  >>> len(history.history["input_wait_max"])
  3

  The history, which `fit` returns, gets a list with a value for each epoch of `fit`:

  - `input_wait_p50`, `input_wait_p95`, `input_wait_max`: the median, the 95th percentile and the largest of the seconds
    that a call of the training step waited for its input. They are what TensorFlow measures for all pipelines of the
    process together. A median near 0 says that the input keeps up, and a maximum far above it that it stalled.
  - for each stage `refurbish` of the dataset: `refurbish_fresh`, `refurbish_cached`, `refurbish_evicted`,
    `refurbish_absent`, `refurbish_bytes`, `refurbish_fresh_wait` and `refurbish_store_wait`, as in `rtf.EpochStats`;
  - for each stage `echo(rtf.AUTOTUNE)`: `echo_fresh`, `echo_repeated`, `echo_fresh_wait` and `echo_factor`, as in
    `rtf.EchoStats`.

  A stage with a `name` is called by it. With `log_dir` they are written for TensorBoard as well, as `refurbish/fresh`,
  `input_wait/max` and so on, next to what `keras.callbacks.TensorBoard(log_dir)` writes of training.

  Args:
    dataset: the `tf.data.Dataset` that `fit` is given, or any part of it behind the stages.
    log_dir: a directory for TensorBoard, a str or a `pathlib.Path`, or None for none.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`, or `log_dir` is not a path.
  """

  def __init__(self, dataset, log_dir=None):
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
    super().on_train_begin(logs)

  def on_epoch_begin(self, epoch, logs=None):
    self._before = stats(self._dataset)
    self._waits = []
    self._waited = _waited()

  def run_step(self, function, *args):
    result = function(*args)
    waited = _waited()
    self._waits.append(waited - self._waited)
    self._waited = waited
    return result

  def on_epoch_end(self, epoch, logs=None):
    values = {}
    if self._waits:
      median, high = np.percentile(self._waits, [50, 95]).tolist()
      values = {"input_wait": {"p50": median, "p95": high, "max": max(self._waits)}}
    for before, after in zip(self._before, stats(self._dataset)):
      values[_unused(after.name, values)] = _difference(before.total, after.total)
    history = self.model.history.history
    for group, scalars in values.items():
      for name, value in scalars.items():
        history.setdefault(f"{group}_{name}", []).append(value)
    if self._writer is not None:
      with self._writer.as_default():
        for group, scalars in values.items():
          for name, value in scalars.items():
            # What tf.summary.scalar writes, which needs TensorBoard to be installed where the training runs.
            tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), step=epoch, metadata=_SCALAR)
      self._writer.flush()

  def on_train_end(self, logs=None):
    super().on_train_end(logs)
    if self._writer is not None:
      self._writer.close()
      self._writer = None


def _waited():
  """The seconds that the pipelines of this process have been waited for."""
  return float(native.ops().refurbish_tf_input_wait()[1])


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
