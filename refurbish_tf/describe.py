"""A description of the stages of a dataset."""

from typing import Any

import tensorflow as tf

from refurbish_tf import stats
from refurbish_tf._internal import dataset_graph, html


def describe(dataset: tf.data.Dataset[Any]) -> str:
  """Describes what every `refurbish`, `echo` and `offload` of `dataset` does, as text to print.

  >>> train = tf.data.Dataset.range(600).refurbish(lambda x: 10 * x, r=3, seed=7, name="train").batch(2)
  >>> print(rtf.describe(train))
  refurbish "train", r = 3
    epoch   600 samples; after the first epoch about 200 fresh, 400 cached
    order   balanced eviction, cache-aware shuffle, seed 7
    source  by index: about 200 of 600 elements are read in an epoch after the first
    fresh   in uniformly random order, by index
    store   memory, without a limit; 400 samples of 8 bytes take 3.2 kB
    after   batch(2)

  A source is read by index, so that only fresh samples are read, or as a stream, which is read completely in every
  epoch; then the description names the dataset that makes it a stream. See `rtf.sources`. The order after the stage
  changes in each epoch. If `rtf.sources.image_folder` has skipped files, a line at the top counts them by extension.

  Args:
    dataset: a `tf.data.Dataset`.

  Returns:
    A string with a few lines for each of these stages, upstream first. It is "no reuse stages" if there are none, or
    if they are hidden as described in `rtf.stats`. Notebooks show tables.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`.
    RuntimeError: called while a `tf.function` is traced.
  """
  found = stats.datasets("rtf.describe", dataset)
  # A dict, so that a folder is described once even if both of its subsets are in the pipeline.
  sources = dict.fromkeys(each.source_description for each in found if hasattr(each, "source_description"))
  stages = []
  for each in (each for each in found if hasattr(each, "describe_stage")):
    after = _operations_after(each, dataset) if hasattr(each, "refurbish_stage") else []
    stages.append(each.describe_stage() + f"\n  after   {', '.join(after)}" * bool(after))
  return _Description("\n".join([*sources, *(stages or ["no reuse stages"])]))


class _Description(str):
  """A text that notebooks show as tables."""

  def _repr_html_(self):
    tables = []
    for line in self.splitlines():
      if line.startswith("  "):
        name, _, text = line.strip().partition(" ")
        tables[-1][1].append((name, text.strip()))
      else:
        tables.append((line, []))
    return "".join(html.table(title, rows, heading=False) for title, rows in tables)


def _operations_after(stage, dataset):
  """The methods called after `stage` to make `dataset`, in order, with their number of elements if they have one."""
  found, after = [], {id(stage)}
  for each in dataset_graph.upstream_first(dataset):
    if after.isdisjoint(map(id, each._inputs())):
      continue
    after.add(id(each))
    if type(each).__name__ != "_OptionsDataset":
      size = getattr(each, "_count", getattr(each, "_batch_size", None))
      size = None if size is None else tf.get_static_value(size)
      found.append(dataset_graph.method_name(type(each).__name__) + ("" if size is None or size < 0 else f"({size})"))
  return found
