"""The position of a pipeline between two epochs, for `tf.train.Checkpoint`."""
import json
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import dataset_graph
from refurbish_tf.stats import datasets

_FORMAT = 2  # Raise it for a change that another package cannot read.


class EpochPosition(tf.train.experimental.PythonState):
  """Which epoch of a pipeline comes next, for a `tf.train.Checkpoint` that is saved between two epochs.

  It is the state of the pipeline's stages, and needs no iterator: it can be restored where the source is divided into
  another number of shards, as docs/workers.md says. Save it after the loop over an epoch: what an iterator has read
  ahead and not handed out by then counts as used. In the middle of an epoch save the iterator itself, or use
  `rtf.keras.BackupAndRestore`, or a loader.

  >>> import tempfile
  >>> import tensorflow as tf
  >>> import refurbish_tf as rtf
  >>> def pipeline():
  ...   return tf.data.Dataset.range(6).refurbish(tf.identity, r=3, seed=7).batch(4)
  >>> train = pipeline()
  >>> epochs = [[batch.tolist() for batch in train.as_numpy_iterator()] for _ in range(2)]
  >>> checkpoint = tf.train.Checkpoint(position=rtf.EpochPosition(train))
  >>> path = checkpoint.save(tempfile.mkdtemp() + "/checkpoint")
  >>> resumed = pipeline()                      # In another process, say.
  >>> status = tf.train.Checkpoint(position=rtf.EpochPosition(resumed)).restore(path)
  >>> third = [batch.tolist() for batch in train.as_numpy_iterator()]
  >>> third == [batch.tolist() for batch in resumed.as_numpy_iterator()], third in epochs
  (True, False)

  Args:
    dataset: the pipeline, with at least one stage of `refurbish` or of an AUTOTUNE `echo` or `offload` in it.

  Raises:
    TypeError: `dataset` is no `tf.data.Dataset`.
    ValueError: it has no stage; when it is saved, an iterator is in an epoch.
    tf.errors.InvalidArgumentError, ValueError: when it is restored, the checkpoint is of another pipeline.
  """

  def __init__(self, dataset: tf.data.Dataset[Any]) -> None:
    super().__init__()
    self._stages = dataset_graph.stages_with_state(datasets("rtf.EpochPosition", dataset))
    if not self._stages:
      raise ValueError(
          "dataset has no refurbish stage, so there is no position between its epochs. Save an iterator of it, by "
          "tf.train.Checkpoint(iterator=iter(dataset)).")

  def serialize(self) -> str:
    """The state of the stages, as text."""
    if any(stage.is_in_epoch() for stage in self._stages if hasattr(stage, "is_in_epoch")):
      raise ValueError(
          "rtf.EpochPosition was saved in the middle of an epoch: an iterator over the pipeline is alive and has not come to "
          "its end, so the rest of its epoch would be lost. Save it after the loop over an epoch, or delete the iterator "
          "first; to go on in the middle, save the iterator itself.")
    return json.dumps({
        "format": _FORMAT, "kinds": self._kinds(), "stages": [stage.saved_state() for stage in self._stages]})

  def deserialize(self, string_value: str) -> None:
    """Sets the stages to the state that was saved; if one refuses it, none is changed."""
    try:
      saved = json.loads(string_value)
      found, kinds = saved["format"], saved.get("kinds")
    except (ValueError, KeyError, TypeError) as error:
      raise _damaged(error) from error
    if found != _FORMAT:
      raise ValueError(
          f"rtf.EpochPosition: the checkpoint has format {found}, but this refurbish_tf reads format {_FORMAT}. Use the one that "
          "saved it.")
    if kinds != self._kinds():
      raise ValueError(
          f"rtf.EpochPosition: the checkpoint is of another pipeline, with the stages {kinds}, but this one has "
          f"{self._kinds()}. Build the same pipeline.")
    with dataset_graph.unchanged_on_error(self._stages):
      try:
        for stage, state in zip(self._stages, saved["stages"], strict=True):
          stage.restore_state(state)
      except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(error) from error

  def _kinds(self):
    return [type(stage).__name__ for stage in self._stages]


def _damaged(error):
  return ValueError(
      f"rtf.EpochPosition: what the checkpoint has for it is damaged ({type(error).__name__}: {error}). Restore another "
      "checkpoint, or leave it out to begin with the first epoch.")
