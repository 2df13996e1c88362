"""Counts of the reuse stages of a dataset."""
import dataclasses

import tensorflow as tf

from refurbish_tf import native


@dataclasses.dataclass(frozen=True)
class EpochStats:
  """Counts of one epoch, or of all together.

  Attributes:
    fresh: samples that were prepared, cache misses.
    cached: samples that were taken from the cache store, cache hits.
    evicted: samples that the schedule evicted when the epoch began.
    absent: how many of the fresh samples the schedule expected in the store. They were not there because an earlier
      epoch was stopped early, because they were removed, or because there was no room.
    bytes: bytes held by the cache store when the next epoch began, or now if none has begun.
  """
  fresh: int
  cached: int
  evicted: int
  absent: int
  bytes: int


@dataclasses.dataclass(frozen=True)
class StageStats:
  """Counts of one stage.

  Attributes:
    name: the `name` that the stage was given, or "refurbish".
    epochs: a tuple of `EpochStats`, one for each epoch that has begun.
    total: `EpochStats` of all epochs together.
  """
  name: str
  epochs: tuple
  total: EpochStats

  def __str__(self):
    columns = [field.name for field in dataclasses.fields(EpochStats)]
    rows = [["epoch", *columns]]
    rows += [[str(i), *(f"{getattr(epoch, c):,}" for c in columns)] for i, epoch in enumerate(self.epochs)]
    rows += [["total", *(f"{getattr(self.total, c):,}" for c in columns)]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join([self.name, *lines])


@dataclasses.dataclass(frozen=True)
class EchoStats:
  """Counts of one stage `echo(rtf.AUTOTUNE)`, all its iterations together.

  Attributes:
    name: the `name` that the stage was given, or "echo".
    fresh: elements that were yielded for the first time.
    repeated: elements that were yielded again.
  """
  name: str
  fresh: int
  repeated: int

  @property
  def factor(self):
    """The echoing factor reached: how often an element was yielded on average. 1.0 when there was none."""
    return (self.fresh + self.repeated) / self.fresh if self.fresh else 1.0

  def __str__(self):
    return f"{self.name}: {self.fresh:,} fresh, {self.repeated:,} repeated, echoing factor {self.factor:.2f}"


def stats(dataset):
  """Counts of every reuse stage of `dataset`: of `refurbish` by epoch and in total, of `echo(rtf.AUTOTUNE)` in total.

  >>> train = tf.data.Dataset.range(6).refurbish(lambda x: 10 * x, r=3, seed=7).batch(2)
  >>> for _ in range(3):
  ...   _ = list(train)
  >>> stage, = rtf.stats(train)
  >>> [epoch.fresh for epoch in stage.epochs]
  [6, 2, 2]
  >>> stage.total.cached
  8

  >>> train = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE)
  >>> num_yielded = len(list(train))
  >>> stage, = rtf.stats(train)
  >>> stage.fresh
  3
  >>> stage.factor == num_yielded / 3
  True

  An `echo` with a number repeats just as it was told and is not listed.

  Args:
    dataset: a `tf.data.Dataset`.

  Returns:
    A list of `StageStats`, for `refurbish`, and `EchoStats`, for `echo(rtf.AUTOTUNE)`, upstream first. Each prints well.
    It is empty when `dataset` has no such stage, or has come as an argument of a `tf.function` or through a tf.data
    service, which keep only what it yields.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`.
    RuntimeError: called while a `tf.function` is traced.
  """
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(f"rtf.stats takes a tf.data.Dataset, got {type(dataset).__name__}.")
  if not tf.executing_eagerly():
    raise RuntimeError("rtf.stats reads counts now, so it cannot be a part of a tf.function: call it outside of one.")
  return _stats(dataset, seen=set())


def _stats(dataset, seen):
  # A dataset may be the input of several others, as in zip.
  if id(dataset) in seen:
    return []
  seen.add(id(dataset))
  found = [stage for upstream in dataset._inputs() for stage in _stats(upstream, seen)]  # pylint: disable=protected-access
  if (stage := _stage(dataset, "refurbish")) is not None:
    rows = native.ops().refurbish_counts(stage=stage).numpy().tolist()
    epochs = tuple(EpochStats(*row) for row in rows)
    total = EpochStats(
        *(sum(getattr(epoch, name) for epoch in epochs) for name in ("fresh", "cached", "evicted", "absent")),
        bytes=epochs[-1].bytes if epochs else 0)
    found.append(StageStats(dataset._name or "refurbish", epochs, total))  # pylint: disable=protected-access
  if (stage := _stage(dataset, "echo")) is not None:
    counts = native.ops().echo_counts(stage=stage).numpy().tolist()
    found.append(EchoStats(dataset._name or "echo", *counts))  # pylint: disable=protected-access
  return found


def _stage(dataset, kind):
  """The name of the stage that `dataset` is the end of, or None when it is none of this kind."""
  stage = getattr(dataset, f"{kind}_stage", None)
  if stage is not None and tf.is_symbolic_tensor(stage):
    article = "an" if kind == "echo" else "a"
    raise RuntimeError(
        f"rtf.stats cannot count for {article} {kind} stage that was built inside a tf.function: it is another stage at "
        "each call. Build the dataset outside.")
  return stage
