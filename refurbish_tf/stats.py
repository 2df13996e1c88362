"""Counts of the stages of a dataset."""

import dataclasses
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import dataset_graph, html, native


@dataclasses.dataclass(frozen=True)
class EpochStats:
  """Counts of one epoch of a `refurbish` stage, or of all epochs together.

  Attributes:
    fresh: samples that this process prepared (cache misses).
    cached: samples that came from the cache store (cache hits). Fresh and cached samples together are the samples of
      the epoch, even if jobs share a store on disk: a sample that another job has prepared counts as cached here.
    from_other_jobs: how many of the cached samples another process prepared: a job that runs at the same time, or one
      that ran before. They were in the store, in its `shared` level, or in transit. 0 for a store in memory alone.
    evicted: samples that the schedule evicted when the epoch began.
    missing: how many of the fresh samples should have been in the store by the schedule. They were not there because an
      earlier epoch was stopped early, because they were removed, or because there was no room or memory was short.
    bytes: bytes in the cache store when the next epoch began, or now if it has not begun.
    fresh_wait: seconds that the stage waited for fresh samples, that is, for the source and `partial_fn`. Training may
      have waited less, because a `prefetch` after the stage can hide this wait.
    store_wait: seconds that the stage waited for reads of a cache store on disk. 0.0 for a store in memory.
  """

  fresh: int
  cached: int
  from_other_jobs: int
  evicted: int
  missing: int
  bytes: int
  fresh_wait: float
  store_wait: float


@dataclasses.dataclass(frozen=True)
class EchoStats:
  """Counts of one iteration of an `echo(rtf.AUTOTUNE)` stage, or of all iterations together.

  Attributes:
    fresh: elements that were yielded for the first time.
    repeated: elements that were yielded again.
    fresh_wait: seconds that the stage waited for a fresh element after it had yielded the newest one `max_e` times.
  """

  fresh: int
  repeated: int
  fresh_wait: float

  @property
  def factor(self) -> float:
    """The actual echoing factor: how often an element was yielded on average. 1.0 if there were no elements."""
    return (self.fresh + self.repeated) / self.fresh if self.fresh else 1.0


@dataclasses.dataclass(frozen=True)
class OffloadStats:
  """Counts of one epoch of an `offload` stage, or of all epochs together.

  Attributes:
    batches: batches that were yielded.
    host_images: images in them whose policy layers the host ran.
    device_images: images in them whose policy layers were left to the accelerator.
    host_wait: seconds spent waiting for batches. Training may have waited less, because a `prefetch` after the stage
      can hide this wait.
  """

  batches: int
  host_images: int
  device_images: int
  host_wait: float

  @property
  def device_fraction(self) -> float:
    """The fraction of the images whose policy layers were left to the accelerator. 0.0 if there were no images."""
    images = self.host_images + self.device_images
    return self.device_images / images if images else 0.0


@dataclasses.dataclass(frozen=True)
class ProcessStats:
  """Counts of a layer of `rtf.augment.numpy_layer`, since its stage was built.

  Attributes:
    name: the name of the layer.
    processes: how many processes call it, shared with other layers with the same number; 0 means this process.
    calls: how many calls have ended.
    seconds: seconds spent in its function in these calls.
    busy: the fraction of the processes' time spent in its function, from the first call to the last, 0 to 1.
  """

  name: str
  processes: int
  calls: int
  seconds: float
  busy: float

  def __str__(self) -> str:
    where = "this process" if not self.processes else f"{self.processes} process{'es' * (self.processes > 1)}"
    return f"{where} for {self.name}: {self.calls:,} calls, busy {self.busy:.0%} of the time"


_COUNTS = {"refurbish": EpochStats, "echo": EchoStats, "offload": OffloadStats}
# The counts that notebooks show as bars.
_BARS = {
  EpochStats: ("fresh", "cached"),
  EchoStats: ("fresh", "repeated"),
  OffloadStats: ("host_images", "device_images"),
}
# Numbers that are derived from the counts and shown after them.
DERIVED = {EpochStats: (), EchoStats: ("factor",), OffloadStats: ("device_fraction",)}


@dataclasses.dataclass(frozen=True)
class StageStats:
  """Counts of one stage.

  Attributes:
    name: the `name` given to the stage, or "refurbish", "echo" or "offload".
    epochs: a tuple of `EpochStats`, `EchoStats` or `OffloadStats`, one for each epoch that has begun in this process.
      An epoch resumed from a checkpoint has its own entry. So does an epoch that was abandoned: under `tf.distribute`,
      and on JAX and PyTorch, Keras' `fit` begins one to build the model.
    total: the same for all epochs together.
    processes: for `refurbish`, a tuple of `ProcessStats`, one for each `rtf.augment.numpy_layer` in its functions.
  """

  name: str
  # EpochStats, EchoStats or OffloadStats, depending on the stage, which the caller knows.
  epochs: tuple[Any, ...]
  total: Any
  processes: tuple[ProcessStats, ...] = ()

  def __str__(self) -> str:
    rows = self._rows()
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join([self.name, *lines, *map(str, self.processes)])

  def _rows(self):
    columns = [*(field.name for field in dataclasses.fields(self.total)), *DERIVED[type(self.total)]]
    rows = [["epoch", *map(_heading, columns)]]
    rows += [[str(i), *(_cell(epoch, c) for c in columns)] for i, epoch in enumerate(self.epochs)]
    return [*rows, ["total", *(_cell(self.total, c) for c in columns)]]

  def _repr_html_(self) -> str:
    counts = _BARS[type(self.total)]
    waits = [field.name for field in dataclasses.fields(self.total) if field.name.endswith("_wait")]
    sums = lambda names: [sum(getattr(epoch, name) for name in names) for epoch in self.epochs]
    most = [max(sums(names), default=0) for names in (counts, waits)]
    bars = [[" and ".join(counts), "waiting"]]
    for epoch in self.epochs:
      counted = [(name, getattr(epoch, name), colour) for name, colour in zip(counts, html.COLOURS)]
      waited = [(_heading(name), getattr(epoch, name), html.COLOURS[2]) for name in waits]
      bars.append([html.bar(most[0], *counted), html.bar(most[1], *waited)])
    bars.append(["", ""])
    rows = [[row[0], *made, *row[1:]] for row, made in zip(self._rows(), bars)]
    return html.table("; ".join([self.name, *map(str, self.processes)]), rows)


def _heading(column):
  return f"{column} [s]" if column.endswith("_wait") else column


def _cell(counts, column):
  value = getattr(counts, column)
  return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def stats(dataset: "tf.data.Dataset[Any]") -> list["StageStats"]:
  """Counts, by epoch and in total, for every `refurbish`, `echo(rtf.AUTOTUNE)` and `offload` stage of `dataset`.

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
  >>> stage.total.fresh
  3
  >>> stage.total.factor == num_yielded / 3
  True

  An `echo` with a number is not listed, because it has nothing to count.

  Args:
    dataset: a `tf.data.Dataset`.

  Returns:
    A list of `StageStats`, upstream first. Each prints as a table, and notebooks add bars to it. It is empty if
    `dataset` has no such stage, or if its stages are hidden. A stage is hidden if a function, such as the argument of
    `flat_map`, captures it, or if its dataset is an argument of a `tf.function` or comes from a tf.data service.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`.
    RuntimeError: called while a `tf.function` is traced.
  """
  found = _Stages()
  for upstream in datasets("rtf.stats", dataset):
    kind, stage = _stage_of(upstream)
    if kind is None:
      continue
    epochs = _by_epoch(_COUNTS[kind], getattr(native.ops(), f"refurbish_tf_{kind}_counts")(stage=stage))
    fields = dataclasses.fields(_COUNTS[kind])
    sums = {each.name: sum((getattr(epoch, each.name) for epoch in epochs), each.type()) for each in fields}
    total = _COUNTS[kind](**sums)
    if kind == "refurbish":
      total = dataclasses.replace(total, bytes=epochs[-1].bytes if epochs else 0)
    processes = tuple(ProcessStats(**layer.counts()) for layer in getattr(upstream, "python_layers", ()))
    found.append(StageStats(upstream._name or kind, tuple(epochs), total, processes))
  return found


def _stage_of(dataset):
  """The kind of a stage, and its name in the ops; two Nones for a dataset that is not a stage."""
  kind = next((kind for kind in _COUNTS if hasattr(dataset, f"{kind}_stage")), None)
  return kind, kind and getattr(dataset, f"{kind}_stage")


class _Stages(list):
  """A list that notebooks show as tables, and that says why it is empty if code indexes it."""

  def _repr_html_(self):
    return "".join(stage._repr_html_() for stage in self) or "no stages with counts"

  def __getitem__(self, index):
    if not self and not isinstance(index, slice):
      raise IndexError(
        "dataset has no stage that rtf.stats counts: no refurbish, echo(rtf.AUTOTUNE) or offload. Pass the dataset "
        "with the stage or one made from it, such as dataset.refurbish(...).batch(128), not the source. Stages that a "
        "function captures, such as that of flat_map, and stages on the workers of a tf.data service are hidden."
      )
    return super().__getitem__(index)


def datasets(function, dataset):
  """`dataset` and all datasets before it, upstream first. Raises the errors of `stats`, which name `function`."""
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(
      f"dataset must be a tf.data.Dataset, got {type(dataset).__name__}: {function} looks for its stages."
    )
  if not tf.executing_eagerly():
    raise RuntimeError(f"{function} cannot be part of a tf.function, because it reads counts at once. Call it outside.")
  found = dataset_graph.upstream_first(dataset)
  for each in found:
    kind, stage = _stage_of(each)
    if tf.is_symbolic_tensor(stage):
      raise RuntimeError(
        f"{function} cannot read the counts of {'an' if kind == 'echo' else 'a'} {kind} stage that was built inside a "
        "tf.function, because each call builds a new stage. Build the dataset outside."
      )
  return found


def _by_epoch(kind, counts):
  """The counts that an op returned, as `kind`; counts named `..._nanos` are converted to seconds."""
  in_seconds = lambda name, value: 1e-9 * value if name.endswith("_nanos") else value
  named = lambda row: {name.removesuffix("_nanos"): in_seconds(name, value) for name, value in row.items()}
  return [kind(**named(row)) for row in native.rows(counts)]
