"""Warns about stages of one pipeline that share their random numbers by a seed that was copied."""
import functools

import tensorflow as tf

from refurbish_tf._internal import fingerprint, mistakes
from refurbish_tf._internal.tensorflow_internals import iterator_ops

SHARED_SEED = (
    "{number} refurbish stages of this pipeline have seed={seed}, the same partial_fn and different sources: sample i of each gets the "
    "same random numbers. Give each stage another seed, such as seed={seed} + k, or none, or make one stage of the concatenated "
    f"sources. If the samples are to share their numbers, silence this: {mistakes.SILENCE}.")


def check(dataset):
  """Warns if stages that are merged have the same seed and function. Of a zip, which may mean that, one part is checked."""
  by_seed = {}
  for stage in _merged(dataset):
    arguments = stage._op_arguments
    if arguments["partial_seed"] or arguments["final_seed"]:
      by_seed.setdefault(arguments["seed"], []).append(stage)
  for seed, stages in by_seed.items():
    # Those of one source are counted once; those that were warned of are not again.
    stages = list({id(_source(stage)): stage for stage in stages if not hasattr(stage, "has_warned_of_seed")}.values())
    if len(stages) < 2:
      continue
    first, *others = (stage.fingerprint_of_samples() for stage in stages)
    alike = [stage for stage, other in zip(stages[1:], others) if not fingerprint.function_differs(first, other)]
    if alike:
      for stage in (stages[0], *alike):
        stage.has_warned_of_seed = True
      mistakes.warn(SHARED_SEED.format(number=1 + len(alike), seed=seed))


def _merged(dataset):
  """The last stages upstream of a dataset."""
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


def _source(stage):
  source = stage._input_dataset
  # Each stage adds its own.
  while type(source).__name__ == "_OptionsDataset":
    source, = source._inputs()
  return source


def attach():
  """Checks each pipeline when it is first read: stages are merged by TensorFlow's own functions."""
  original = iterator_ops.OwnedIterator.__init__

  @functools.wraps(original)
  def wrapper(self, dataset=None, *args, **kwargs):
    if isinstance(dataset, tf.data.Dataset):
      check(dataset)
    original(self, dataset, *args, **kwargs)

  iterator_ops.OwnedIterator.__init__ = wrapper
