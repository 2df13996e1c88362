"""The datasets that a pipeline is made of: how they are found, called in messages, and run in parallel."""
import os
import re

import tensorflow as tf

PROCESSORS = len(os.sched_getaffinity(0))
# With how many calls a parallel map of tf.data itself does its best, for what is compared with it. With no more than there
# are processors, as with AUTOTUNE, its threads run out of work and are woken again for one element after the other.
PLAIN_MAP_CALLS = max(16, 2 * PROCESSORS)


def without_autotuner(dataset):
  """The dataset with tf.data's autotuner off, unless its options have it on.

  An iterator that has come to its end is not gone before the thread of the autotuner wakes up, which takes up to a second
  in an epoch of some seconds and up to a minute in a long one. Keras waits for that at the end of each epoch.
  """
  # While a function is traced only what Python knows of the options can be read.
  given = (dataset.options() if tf.executing_eagerly() else dataset._options_attr).autotune  # pylint: disable=protected-access
  if given.enabled is not None:
    return dataset
  options = tf.data.Options()
  options.autotune.enabled = False
  if given.initial_parallelism is None:
    # How many calls AUTOTUNE then stands for in the other stages: of these as many as the pool has threads, wherever it
    # is, and not 16.
    options.autotune.initial_parallelism = 1024
  return dataset.with_options(options)


def upstream_first(dataset):
  """A list of `dataset` and all that it is made from, each once, upstream first and from left to right."""
  found, seen, waiting = [], set(), [(dataset, False)]
  while waiting:
    each, is_entered = waiting.pop()
    if is_entered:
      found.append(each)
    elif id(each) not in seen:
      seen.add(id(each))
      waiting.append((each, True))
      waiting += [(upstream, False) for upstream in reversed(each._inputs())]  # pylint: disable=protected-access
  return found


def stage_title(kind, name):
  """A stage as it is called in a description: by its kind and by the name that its user gave it, if any."""
  return kind if name is None else f'{kind} "{name}"'


def method_name(name):
  """What a dataset is called where it is written, `filter` for FilterDataset and _FilterDataset, or else as TensorFlow does."""
  name = re.sub(r"(Dataset)?(V\d+)?$", "", name.rpartition(">")[2].lstrip("_"))
  method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub("^(Parallel|Adaptive)", "", name)).lower()
  return method if hasattr(tf.data.Dataset, method) else f"{name}Dataset"
