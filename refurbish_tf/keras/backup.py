"""What `rtf.keras.RestoreDataset` writes: the state of a training, with the position in its dataset."""
import contextlib
import json
import os
import shutil
import warnings

import keras
import tensorflow as tf

from refurbish_tf.stats import datasets

_FORMAT = 1  # Of a backup. Another one for whatever an older package could not read.


class Backup:
  """A backup in a directory: whole, or not there at all.

  A new one is written beside the last one and then renamed. A process that is killed between the two renames leaves the
  last one as the previous one.
  """

  def __init__(self, directory):
    self.directory = directory
    # The user may have files of his own there.
    self._latest = directory / "refurbish_tf_backup"
    self._previous = directory / "refurbish_tf_backup.previous"
    self._new = directory / "refurbish_tf_backup.new"

  def refuse(self, reason):
    raise ValueError(f"The backup in {self.directory} is of {reason}, or delete it to begin anew.")

  def _refuse_damaged(self, error):
    raise ValueError(
        f"The backup in {self._path()} is damaged ({type(error).__name__}: {error}). Delete it to begin anew.") from error

  def _path(self):
    return next((path for path in (self._latest, self._previous) if path.is_dir()), None)

  def state(self):
    """What was saved besides tensors, or None when there is no backup."""
    path = self._path()
    if path is None:
      return None
    try:
      state = json.loads((path / "state.json").read_text())
      newer = state["format"] > _FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
      self._refuse_damaged(error)
    if newer:
      self.refuse(f"format {state['format']}, but this refurbish_tf knows {_FORMAT}. Use the one that wrote it")
    return state

  def check_that_it_can_be_saved(self, iterator):
    shutil.rmtree(self._new, ignore_errors=True)
    self._new.mkdir(parents=True)
    try:
      tf.train.Checkpoint(iterator=iterator).write(str(self._new / "iterator"))
    except tf.errors.FailedPreconditionError as error:
      raise tf.errors.FailedPreconditionError(
          error.node_def, error.op,
          f"RestoreDataset cannot save the pipeline: {error.message} Draw with a seed there (tf.random.stateless_*), or "
          "accept that it is not repeated: options.experimental_external_state_policy = "
          "tf.data.experimental.ExternalStatePolicy.IGNORE.") from error
    finally:
      shutil.rmtree(self._new, ignore_errors=True)

  def save(self, model, iterator, state):
    shutil.rmtree(self._new, ignore_errors=True)
    self._new.mkdir(parents=True)
    variables = _variables(model)
    tf.train.Checkpoint(iterator=iterator).write(str(self._new / "iterator"))
    # Behind the iterator, which may be reading ahead: a stage that is no longer in its checkpoint stays where it is.
    stages = [stage.saved_state() for stage in _stages(iterator)]
    tf.train.Checkpoint(variables=[variable.value for group in variables.values() for variable in group]).write(
        str(self._new / "variables"))
    (self._new / "state.json").write_text(json.dumps({
        "format": _FORMAT, **state, "stages": stages, "metrics": _metric_names(model),
        "variables": {name: _specs(group) for name, group in variables.items()}}) + "\n")
    # Against a loss of power: what is renamed is on disk.
    for path in [*self._new.iterdir(), self._new]:
      _synchronize(path)
    if self._latest.is_dir():
      shutil.rmtree(self._previous, ignore_errors=True)
      self._latest.rename(self._previous)
    self._new.rename(self._latest)
    _synchronize(self.directory)
    shutil.rmtree(self._previous, ignore_errors=True)

  def restore(self, model, iterator, state):
    """Restores all of it, or changes nothing of the model. Returns the logs of the epoch as they were."""
    error = _build(model, iterator.element_spec)
    variables = _variables(model)
    for name in ("weights", "random states", "optimizer"):
      if _specs(variables[name]) != state["variables"][name]:
        self.refuse(
            f"a model of which the {name} have other variables: {state['variables'][name]}, but they have "
            f"{_specs(variables[name])}. Make and compile the model as then, and if it is one of your own class, call it "
            "on a batch before fit")
    path = self._path()
    try:
      reader = tf.train.load_checkpoint(str(path / "variables"))
      number = sum(map(len, state["variables"].values()))
      values = iter([reader.get_tensor(f"variables/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i in range(number)])
    except (OSError, ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
      self._refuse_damaged(error)
    # Before anything is changed of the model, as it may be of another pipeline. What the iterator says of a stage counts:
    # with symbolic checkpoints the stage was further than training.
    self._restore_stages(_stages(iterator), state)
    tf.train.Checkpoint(iterator=iterator).read(str(path / "iterator")).assert_consumed()
    for name in ("weights", "random states", "optimizer"):
      for variable in variables[name]:
        variable.assign(next(values))
    if _metric_names(model) != state["metrics"] or _specs(variables["metrics"]) != state["variables"]["metrics"]:
      if error is not None:
        warnings.warn(
            "The metrics of the resumed epoch count from the break on, as Keras cannot make them before its first step: "
            f"{type(error).__name__}: {error}", stacklevel=2)
      return {}  # They count from the break on.
    for variable in variables["metrics"]:
      variable.assign(next(values))
    return model.get_metrics_result()

  def _restore_stages(self, stages, state):
    """An iterator's checkpoint has no stage of which all was read: `batch` and the like let go of it at its end."""
    try:
      saved = list(state["stages"])
      if len(saved) == len(stages):
        for stage, each in zip(stages, saved):
          stage.restore_state(each)
        return
    except (KeyError, TypeError, ValueError, OverflowError, tf.errors.DataLossError) as error:
      self._refuse_damaged(error)
    self.refuse(
        f"a pipeline with another number of refurbish stages, {len(saved)}, but this one has {len(stages)}. Build the "
        "pipeline as then")

  def delete(self):
    shutil.rmtree(self._previous, ignore_errors=True)
    # At once: half of it would not be a backup.
    shutil.rmtree(self._new, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
      self._latest.rename(self._new)
    shutil.rmtree(self._new, ignore_errors=True)
    with contextlib.suppress(OSError):  # Not ours alone.
      self.directory.rmdir()


def pipeline(iterator):
  """The datasets that `iterator` reads from, upstream first; none where they are not known."""
  dataset = getattr(iterator, "_dataset", None)
  return datasets("RestoreDataset", dataset) if isinstance(dataset, tf.data.Dataset) else []


def _stages(iterator):
  """Those of refurbish. They have other names in each process, but the same order."""
  return [dataset for dataset in pipeline(iterator) if hasattr(dataset, "saved_state")]


def _build(model, element_spec):
  """Makes the variables that Keras else makes at the first step: of metrics and of the optimizer.

  Returns what the model raises, or None. One with a training step of its own may not be fit for this.
  """
  error = None
  try:
    model._symbolic_build(data_batch=element_spec)  # pylint: disable=protected-access
  except Exception as raised:  # pylint: disable=broad-except
    error = raised
  for optimizer in _optimizers(model):
    if not optimizer.built and model.trainable_variables:
      optimizer.build(model.trainable_variables)
  return error


def _optimizers(model):
  """That of `compile`, and those that the class of the model keeps itself."""
  own = [value for value in vars(model).values() if isinstance(value, keras.Optimizer)]
  optimizers = [model.optimizer, *own] if model.optimizer is not None else own
  return list({id(optimizer): optimizer for optimizer in optimizers}.values())


def _variables(model):
  """All that training changes of a model. A list for each group, in an order that depends on the model alone."""
  weights = {id(variable) for variable in model.weights}
  return {
      "weights": model.weights,
      # Of dropout and the like, which Keras does not count among the weights.
      "random states": [variable for variable in model.variables if id(variable) not in weights],
      "optimizer": [variable for optimizer in _optimizers(model) for variable in optimizer.variables],
      "metrics": model.metrics_variables}


def _specs(variables):
  return [f"{keras.backend.standardize_dtype(variable.dtype)}{list(variable.shape)}" for variable in variables]


def _metric_names(model):
  try:
    return list(model.get_metrics_result())
  except ValueError:
    return []  # Not built, which is only before the first step.


def _synchronize(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
