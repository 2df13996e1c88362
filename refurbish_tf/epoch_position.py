"""The position of a pipeline, for `tf.train.Checkpoint`, and the joined position of several workers."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Sequence

import tensorflow as tf

from refurbish_tf._internal import joined_positions, positions
from refurbish_tf.stats import datasets


class EpochPosition(tf.train.experimental.PythonState):
  """Stores which epoch of a pipeline comes next, for a `tf.train.Checkpoint` that is saved between two epochs.

  It is the state of the pipeline's stages and needs no iterator, so it can be restored with a different number of
  shards (docs/workers.md). Save it after the loop over an epoch: elements that an iterator has read ahead but not
  yielded by then count as used. In the middle of an epoch, save the iterator itself, or use
  `rtf.keras.BackupAndRestore` or a loader; `EpochPosition.joined` accepts what any of these has saved.

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
    dataset: the pipeline, with at least one `refurbish` or `offload` stage in it.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`.
    ValueError: `dataset` has no such stage; on saving, an iterator is in the middle of an epoch.
    tf.errors.InvalidArgumentError, ValueError: on restoring, the checkpoint is of another pipeline.
  """

  def __init__(self, dataset: tf.data.Dataset[Any]) -> None:
    super().__init__()
    datasets("rtf.EpochPosition", dataset)
    self._stages = positions.stages_of(dataset)
    self._value = None
    if not self._stages:
      raise ValueError(
        "dataset has no refurbish stage, so there is no position between its epochs. Save an iterator of it, by "
        "tf.train.Checkpoint(iterator=iter(dataset))."
      )

  @classmethod
  def joined(cls, saved: Sequence[str | os.PathLike[str] | Mapping[str, Any] | EpochPosition | None]) -> EpochPosition:
    """Joins the positions of all workers into one that any number of workers can restore.

    Each worker then continues with its own part of the rest of the epoch. No sample is lost or repeated.

    >>> def worker(i, n):
    ...   return rtf.jax_loader(tf.data.Dataset.range(12).shard(n, i).refurbish(tf.identity, r=2, seed=7).batch(2))
    >>> two = [worker(i, 2) for i in range(2)]
    >>> seen = [int(x) for loader in two for x in next(iter(loader))]
    >>> position = rtf.EpochPosition.joined([loader.state_dict() for loader in two])
    >>> three = [worker(i, 3) for i in range(3)]
    >>> for loader in three:
    ...   position.restore(loader)
    >>> sorted(seen + [int(x) for loader in three for batch in loader for x in batch])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]

    Args:
      saved: a list of what each worker has saved, in any order: the path of a `tf.train.Checkpoint` with an iterator or
        an `EpochPosition` in it, the `backup_dir` of an `rtf.keras.BackupAndRestore`, the `state_dict()` of a loader,
        an `EpochPosition`, or None for a lost worker. All samples of a lost worker are prepared and yielded again in
        this epoch. If all other workers have left the loop over the epoch, the next epoch begins, and the samples that
        the lost worker had left are skipped. A warning says which of these happens.

    Raises:
      TypeError: `saved` contains something else.
      ValueError: there are not as many positions as there were workers; they are of different pipelines, seeds or
        epochs; a checkpoint cannot be read, or does not have exactly one position; or an operation after `refurbish`
        has its own position: `repeat(n)`, `take`, `concatenate`, `shuffle`, `prefetch` without
        `options.experimental_symbolic_checkpoint`.
    """
    if isinstance(saved, (str, os.PathLike, Mapping, EpochPosition)) or not isinstance(saved, Sequence):
      raise TypeError(
        "saved of rtf.EpochPosition.joined must be a list, with what each worker has saved, got "
        f"{type(saved).__name__}."
      )
    position = cls.__new__(cls)
    tf.train.experimental.PythonState.__init__(position)
    position._stages, position._value = [], joined_positions.joined(saved)
    return position

  def restore(self, pipeline: Any) -> None:
    """Sets a `tf.data.Dataset` or a loader to this position: its next epoch is the rest of the saved epoch.

    Raises:
      ValueError, tf.errors.InvalidArgumentError: it is a different pipeline, which is left unchanged.
      tf.errors.FailedPreconditionError: an iterator of the pipeline has already started an epoch.
    """
    if hasattr(pipeline, "load_position"):
      pipeline.load_position(self._position())
    else:
      datasets("rtf.EpochPosition.restore", pipeline)
      positions.restore("rtf.EpochPosition", positions.stages_of(pipeline), self._position())

  @property
  def epoch(self) -> int | None:
    """The epoch that it is in, as a loader or `fit` counts; None if neither has saved it."""
    return self._position().get("epoch")

  def serialize(self) -> str:
    """The position, as text."""
    return json.dumps(self._position())

  def deserialize(self, string_value: str) -> None:
    """Sets the stages to the position that was saved; if one refuses it, none is changed."""
    try:
      saved = json.loads(string_value)
    except ValueError as error:
      raise positions.damaged("rtf.EpochPosition", error) from error
    positions.restore("rtf.EpochPosition", self._stages, saved)

  def _position(self):
    if self._value is not None:
      return self._value
    if any(stage.is_in_epoch() for stage in self._stages if hasattr(stage, "is_in_epoch")):
      raise ValueError(
        "rtf.EpochPosition was saved in the middle of an epoch: an iterator over the pipeline is alive and has not "
        "come to its end, so the rest of its epoch would be lost. Save it after the loop over an epoch, or delete the "
        "iterator first; to continue in the middle, save the iterator itself."
      )
    return positions.of(self._stages)


joined_positions.READERS.append(lambda saved: saved._position() if isinstance(saved, EpochPosition) else None)
