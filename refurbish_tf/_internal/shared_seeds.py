"""Warns about stages of one pipeline that draw the same random numbers because they were given the same seed."""

import functools

import tensorflow as tf

from refurbish_tf._internal import dataset_graph, fingerprint, pipeline_warnings
from refurbish_tf._internal.tensorflow_internals import iterator_ops

SHARED_SEED = (
  "{number} refurbish stages of this pipeline have seed={seed}, the same partial_fn and different sources, so sample i "
  "of each gets the same random numbers. Give each stage its own seed, such as seed={seed} + k, or none, or use one "
  "stage after concatenating the sources. If the samples should share their numbers, silence this warning: "
  f"{pipeline_warnings.SILENCE}."
)


def check(dataset):
  """Warns if stages that are merged have the same seed and function, and different sources.

  Only the first part of a zip is checked: images and their targets may use the same random numbers on purpose.
  """
  by_seed = {}
  drawing = [
    stage for stage in _merged(dataset) if stage._op_arguments["partial_seed"] or stage._op_arguments["final_seed"]
  ]
  for stage in drawing if len(drawing) > 1 else ():
    with tf.init_scope():  # The pipeline may be read in a tf.function.
      state = stage.saved_state()
    # A sample's random numbers depend on its place in the whole source.
    shard = (state["num_shards"], state["shard"]) if state["schedule_shards"] else (1, 0)
    by_seed.setdefault((stage._op_arguments["seed"], *shard), []).append(stage)
  for (seed, *_), stages in by_seed.items():
    # A stage is warned about only once. Stages with the same source, to which each adds options, count as one.
    stages = [stage for stage in stages if not hasattr(stage, "has_warned_of_seed")]
    stages = list({id(dataset_graph.without_options(stage._input_dataset)): stage for stage in stages}.values())
    if len(stages) < 2:
      continue
    first, *others = (stage.fingerprint_of_samples() for stage in stages)
    alike = [stage for stage, other in zip(stages[1:], others) if not fingerprint.function_differs(first, other)]
    if alike:
      for stage in (stages[0], *alike):
        stage.has_warned_of_seed = True
      pipeline_warnings.warn(SHARED_SEED.format(number=1 + len(alike), seed=seed))


def _merged(dataset):
  """The refurbish stages of a dataset that no other refurbish stage follows."""
  found, seen, waiting = [], set(), [dataset]
  while waiting:
    each = waiting.pop()
    if id(each) in seen:
      continue
    seen.add(id(each))
    if hasattr(each, "fingerprint_of_samples"):
      found.append(each)
      continue
    inputs = each._inputs()
    waiting += reversed(inputs[:1] if type(each).__name__ == "_ZipDataset" else inputs)
  return found


def attach():
  """Makes TensorFlow check each pipeline when it is read, because TensorFlow's own functions merge the stages."""
  original = iterator_ops.OwnedIterator.__init__

  @functools.wraps(original)
  def wrapper(self, dataset=None, *args, **kwargs):
    if isinstance(dataset, tf.data.Dataset):
      check(dataset)
    original(self, dataset, *args, **kwargs)

  iterator_ops.OwnedIterator.__init__ = wrapper
