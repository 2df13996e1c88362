"""The backup of `rtf.keras.BackupAndRestore`: the model's variables, and the iterator's checkpoint and position."""

import contextlib
import json
import os
import pathlib
import shutil
import warnings

import keras
import tensorflow as tf

from refurbish_tf._internal import checks, joined_positions, positions
from refurbish_tf.keras import torch_state
from refurbish_tf.stats import datasets

_FORMAT = 4  # Format of backups. Raise this number for a change that other versions cannot read.


class Backup:
  """A backup in a directory. It is either complete or missing.

  A new backup is written to another folder. Then the latest one is renamed to "previous", and the new one to "latest".
  If a process is killed between the two renames, the previous one is used.

  Args:
    keeps_two: whether the previous backup is kept, to be used if the latest one is damaged.
  """

  def __init__(self, directory, keeps_two=False):
    self.directory, self._keeps_two = directory, keeps_two
    # Unusual names, because the user may have other files there.
    self._latest = directory / "refurbish_tf_backup"
    self._previous = directory / "refurbish_tf_backup.previous"
    self._new = directory / "refurbish_tf_backup.new"
    self._damaged = directory / "refurbish_tf_backup.damaged"

  def refuse(self, reason):
    raise ValueError(f"backup_dir {self.directory} has a backup of {reason}, or delete the backup to start over.")

  def _refuse_damaged(self, error):
    raise ValueError(
      f"backup_dir: the backup in {self._path()} is damaged ({type(error).__name__}: {error}). Delete it to start over."
    ) from error

  def _path(self):
    return next((path for path in (self._latest, self._previous) if path.is_dir()), None)

  def state(self):
    """The part of the backup that is not tensors, or None if there is no backup."""
    path = self._path()
    if path is None:
      return None
    if self._keeps_two and path == self._latest and self._previous.is_dir() and not _is_whole(path):
      warnings.warn(
        f"backup_dir: the backup in {path} is damaged. fit resumes from the one before it, and the damaged one is now "
        f"{self._damaged}.",
        stacklevel=2,
      )
      shutil.rmtree(self._damaged, ignore_errors=True)
      path.rename(self._damaged)
      path = self._previous
    try:
      state = json.loads((path / "state.json").read_text())
      found = state["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
      self._refuse_damaged(error)
    if found != _FORMAT:
      self.refuse(f"format {found}, but this refurbish_tf reads format {_FORMAT}. Use the one that wrote it")
    return state

  def save_position(self, iterator):
    """Begins a new backup, which `save` completes when training reaches this position."""
    shutil.rmtree(self._new, ignore_errors=True)
    self._new.mkdir(parents=True)
    try:
      with checks.save_errors("BackupAndRestore"):
        tf.train.Checkpoint(iterator=iterator).write(str(self._new / "iterator"))
    except BaseException:
      shutil.rmtree(self._new)
      raise

  def save(self, model, state):
    """Completes the backup that `save_position` began."""
    variables = _variables(model)
    values = [keras.ops.convert_to_numpy(variable.value) for group in variables.values() for variable in group]
    with tf.device("cpu"):
      tf.raw_ops.SaveV2(
        prefix=str(self._new / "variables"),
        tensor_names=list(map(_key, range(len(values)))),
        shape_and_slices=[""] * len(values),
        tensors=list(map(tf.convert_to_tensor, values)),
      )
    state = {"format": _FORMAT, **state, "metrics": _metric_names(model)}
    state["variables"] = {name: _specs(group) for name, group in variables.items()}
    (self._new / "state.json").write_text(json.dumps(state) + "\n")
    # The files must be on disk before they are renamed, or a power failure could leave a broken backup.
    for path in [*self._new.iterdir(), self._new]:
      _synchronize(path)
    if self._latest.is_dir():
      shutil.rmtree(self._previous, ignore_errors=True)
      self._latest.rename(self._previous)
    self._new.rename(self._latest)
    _synchronize(self.directory)
    if not self._keeps_two:
      shutil.rmtree(self._previous, ignore_errors=True)

  def restore(self, model, iterator, state, joined=None):
    """Restores everything, or leaves the model unchanged. Returns the logs of the epoch at the break.

    `joined`: the position of all workers, which replaces the backup's own.
    """
    error = _build(model, iterator.element_spec)
    variables = _variables(model)
    if _specs(variables["optimizer"]) != state["variables"]["optimizer"]:
      # The backup was saved after the first step, in which the model's own code had built its optimizers.
      _build_optimizers(_optimizers(model), model)
      variables = _variables(model)
    for name in ("weights", "random states", "optimizer"):
      if _specs(variables[name]) != state["variables"][name]:
        self.refuse(
          f"a model whose {name} have the variables {state['variables'][name]}, but this model's have "
          f"{_specs(variables[name])}. Make and compile the same model, and if you wrote its class, call it on a batch "
          "before fit"
        )
    path = self._path()
    try:
      values = iter(_values(path, state))
    except (OSError, ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
      self._refuse_damaged(error)
    # The position is restored before the model is changed, because this fails if the backup is of another pipeline.
    if joined is None:
      tf.train.Checkpoint(iterator=iterator).read(str(path / "iterator")).assert_consumed()
    else:
      positions.restore("BackupAndRestore", positions.stages_of(iterator._dataset), joined)
    for name in ("weights", "random states", "optimizer"):
      for variable in variables[name]:
        variable.assign(next(values))
    if _metric_names(model) != state["metrics"] or _specs(variables["metrics"]) != state["variables"]["metrics"]:
      if error is not None:
        warnings.warn(
          "The metrics of the resumed epoch cover only the steps after the interruption, because Keras could not build "
          f"them before the first step: {type(error).__name__}: {error}",
          stacklevel=2,
        )
      return {}  # The metrics restart at the interruption.
    for variable in variables["metrics"]:
      variable.assign(next(values))
    return model.get_metrics_result()

  def delete(self):
    shutil.rmtree(self._previous, ignore_errors=True)
    # The backup is renamed first, so that it disappears at once: a partly deleted backup could not be restored.
    shutil.rmtree(self._new, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
      self._latest.rename(self._new)
    shutil.rmtree(self._new, ignore_errors=True)
    with contextlib.suppress(OSError):  # Fails if other files are in the directory.
      self.directory.rmdir()


def position_in(directory):
  """The position in a backup, with its epoch in `fit`; None if it is not a directory, ValueError if it has none."""
  if not isinstance(directory, (str, os.PathLike)) or not os.path.isdir(directory):
    return None
  backup = Backup(pathlib.Path(directory))
  state = backup.state()
  if state is None:
    raise ValueError(
      f"{directory} has no backup of rtf.keras.BackupAndRestore. Pass None for a worker whose backup was lost."
    )
  return {
    **joined_positions.read_checkpoint(backup._path() / "iterator"),
    "epoch": state["epoch"],
    "between": state["step"] == 0,
  }


joined_positions.READERS.append(position_in)


def pipeline(iterator):
  """The datasets that `iterator` reads from, upstream first; an empty list if they are unknown."""
  dataset = getattr(iterator, "_dataset", None)
  return datasets("BackupAndRestore", dataset) if isinstance(dataset, tf.data.Dataset) else []


def _is_whole(path):
  """Whether all of a backup can be read. Of the iterator's checkpoint only the index is checked."""
  try:
    state = json.loads((path / "state.json").read_text())
    if state["format"] != _FORMAT:
      return True  # Only another version of the package can read it.
    _values(path, state)
    tf.train.load_checkpoint(str(path / "iterator"))
  except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, tf.errors.OpError):
    return False
  return True


def _values(path, state):
  reader = tf.train.load_checkpoint(str(path / "variables"))
  return [reader.get_tensor(_key(i)) for i in range(sum(map(len, state["variables"].values())))]


def build_before_training(model, element_spec):
  """Makes the variables of the layers and the optimizer before the first step, so that the first backup has them.

  A resumed model may already have them, and must match the backup. Metrics begin with zero in any case.
  """
  if all(layer.built for layer in model._flatten_layers()):
    _build_optimizers([model.optimizer], model)
  else:
    _build(model, element_spec)


def _build(model, element_spec):
  """Makes the variables that Keras would make at the first step, of the metrics and the optimizer.

  Returns the exception that the model raises, or None. A model with its own training step may not support this.
  """
  error = None
  try:
    model._symbolic_build(data_batch=element_spec)
  except Exception as raised:
    error = raised
  _build_optimizers([model.optimizer], model)
  return error


def _build_optimizers(optimizers, model):
  for optimizer in optimizers:
    if optimizer is not None and not optimizer.built and model.trainable_variables:
      optimizer.build(model.trainable_variables)


def _optimizers(model):
  """The optimizer of `compile`, and all optimizers that are attributes of the model."""
  own = [value for value in vars(model).values() if isinstance(value, keras.Optimizer)]
  optimizers = [model.optimizer, *own] if model.optimizer is not None else own
  return list({id(optimizer): optimizer for optimizer in optimizers}.values())


def _variables(model):
  """All variables that training changes: a list for each group, in an order that depends on the model alone."""
  weights = {id(variable) for variable in model.weights}
  return {
    "weights": [*model.weights, *torch_state.buffers(model)],
    # The variables of dropout and similar layers, which are not among Keras' weights.
    "random states": [*(each for each in model.variables if id(each) not in weights), *torch_state.generators()],
    "optimizer": [variable for optimizer in _optimizers(model) for variable in optimizer.variables],
    "metrics": model.metrics_variables,
  }


def _key(number):
  """The name of a variable in the file."""
  return f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"


def _specs(variables):
  return [f"{keras.backend.standardize_dtype(variable.dtype)}{list(variable.shape)}" for variable in variables]


def _metric_names(model):
  try:
    return list(model.get_metrics_result())
  except ValueError:
    return []  # Not built yet, before the first step.


def _synchronize(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
