"""Warns, when a stage is built, of a pipeline that is allowed but hardly what its user wants."""
import sys
import warnings

import numpy as np
import tensorflow as tf

SILENCE = 'warnings.filterwarnings("ignore", category=rtf.PipelineWarning)'
BATCHED_SOURCE = (
    "The source of refurbish yields batches, and refurbish takes each of them for one sample: the same samples stay "
    "together in every epoch, and files in the order of their classes make batches of one class. Batch behind refurbish: "
    "source.refurbish(...).batch(...). To do so, leave .batch out of the source. A folder of images is read one by one by "
    "rtf.sources.image_folder, and TFDS by batch_size=None; anything else can be split by .unbatch(). If a batch is meant to "
    f"be one sample, such as a sequence: {SILENCE}.")

# By the names of their classes: those that yield batches, and those that hand on just what they are given.
_BATCHES = frozenset({
    "_BatchDataset", "_DenseToSparseBatchDataset", "_MapAndBatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset",
    "_RebatchDataset"})
_HANDS_ON = frozenset({"CacheDataset", "_OptionsDataset", "_PrefetchDataset"})


class PipelineWarning(UserWarning):
  """A pipeline that is allowed but hardly what its user wants. The message names the way out.

  >>> import warnings
  >>> with warnings.catch_warnings():
  ...   warnings.simplefilter("ignore", rtf.PipelineWarning)  # A batch is meant to be one sample.
  ...   sequences = tf.data.Dataset.range(12).batch(3).refurbish(lambda x: 10 * x)
  """


def check_source(source):
  """Warns where `source` is a dataset of batches. What is made of batches may be a sample."""
  while type(source).__name__ in _HANDS_ON:
    source, = source._inputs()  # pylint: disable=protected-access
  if type(source).__name__ in _BATCHES and not _has_batches_of_one(source):
    warn(BATCHED_SOURCE)


def warn(message):
  """Warns of the line of the user's that builds a stage."""
  warnings.warn(message, PipelineWarning, stacklevel=_stacklevel_of_user())


def _has_batches_of_one(batches):
  """These are samples with one more dimension."""
  sizes = getattr(batches, "_batch_sizes", getattr(batches, "_batch_size", None))
  return sizes is not None and np.all(tf.get_static_value(sizes) == 1)


def _stacklevel_of_user():
  """For who calls this: of the innermost line outside of this package, TensorFlow and Keras."""
  frame, level = sys._getframe(1), 1  # pylint: disable=protected-access
  while frame.f_back is not None and _package(frame) in ("refurbish_tf", "tensorflow", "keras"):
    frame, level = frame.f_back, level + 1
  return level


def _package(frame):
  return str(frame.f_globals.get("__name__")).split(".", maxsplit=1)[0]
