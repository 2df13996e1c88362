"""Warns about pipelines that are allowed but almost certainly a mistake."""

import sys
import warnings

import numpy as np
import tensorflow as tf

SILENCE = 'warnings.filterwarnings("ignore", category=rtf.PipelineWarning)'
BATCHED_SOURCE = (
  "The source of refurbish yields batches, and refurbish treats each batch as one sample, so the same images stay "
  "together in every epoch, and files sorted by class make batches of one class. Yield single elements "
  "(rtf.sources.image_folder for a folder, batch_size=None for TFDS, otherwise .unbatch()), and batch after refurbish: "
  "source.refurbish(...).batch(...). If a batch is meant to be one sample, such as a sequence, silence this warning: "
  f"{SILENCE}."
)
SEEMS_BATCHED = (
  "Each element of the source of refurbish is probably a batch, because it has several images and a label for each; "
  "refurbish treats it as one sample, so the same images stay together in every epoch. Split the elements with "
  ".unbatch() before refurbish, and batch after it: source.refurbish(...).batch(...). If each element is one sample, "
  f"such as a bag of instances or a clip with a number for each frame, silence this warning: {SILENCE}."
)
SHARDED_BY_KERAS = (
  "Keras' distribution shards the dataset after refurbish, so each process prepares all samples and drops those of the "
  "others; if the source is also sharded, or the processes have different seeds, samples come twice or not at all. "
  "Make keras.distribution.DataParallel(auto_shard_dataset=False), and shard the source: "
  "source.shard(processes, process).refurbish(...). If all processes have the same seed and no shard, and may "
  f"prepare all samples, silence this warning: {SILENCE}."
)

# Class names of datasets that yield batches, pass on elements unchanged, make one element from each, or yield stored
# elements one by one.
_BATCHES = frozenset(
  "_BatchDataset _DenseToSparseBatchDataset _MapAndBatchDataset _PaddedBatchDataset _ParallelBatchDataset "
  "_RebatchDataset".split()
)
_HANDS_ON = frozenset(
  "CacheDataset _AssertCardinalityDataset _CachedDataset _FilterDataset _IgnoreErrorsDataset _OptionsDataset "
  "_PrefetchDataset _RepeatDataset _ShardDataset _ShuffleDataset _SkipDataset _TakeDataset _TakeWhileDataset".split()
)
_MAPS = frozenset({"_MapDataset", "_ParallelMapDataset"})
_SINGLES = frozenset({"_RangeDataset", "_TensorSliceDataset", "TFRecordDatasetV2"})


class PipelineWarning(UserWarning):
  """A pipeline that is allowed but almost certainly a mistake. The message says what to do.

  >>> import warnings
  >>> with warnings.catch_warnings():
  ...   warnings.simplefilter("ignore", rtf.PipelineWarning)  # A batch is meant to be one sample.
  ...   sequences = tf.data.Dataset.range(12).batch(3).refurbish(lambda x: 10 * x)
  """


def check_source(source):
  """Warns if `source` is, or seems to be, a dataset of batches."""
  if yields_batches(source):
    warn(BATCHED_SOURCE)
  elif _seems_to_yield_batches(source):
    warn(SEEMS_BATCHED)


def yields_batches(source):
  """Whether `source` certainly yields batches. If it was made from batches, it must also seem to keep their rows."""
  kind, batches = _kind(source), source
  while kind == "mapped" and type(batches).__name__ not in _BATCHES:
    batches = next(each for each in batches._inputs() if _kind(each) in ("mapped", "batches"))
  return kind == "batches" or kind == "mapped" and _keeps_rows(_shapes(batches), _shapes(source))


def _keeps_rows(given, made):
  """Whether a function of a batch seems to have kept its rows, not made them one sample, like a clip with one label."""
  if given == made or all(shape.rank is None for shape in made):
    return any((shape.rank or 0) > 1 + (len(given) == 1) for shape in given)
  images = [shape[0] for shape in made if shape.rank == 4]
  labels = [shape[0] for shape in made if shape.rank in (1, 2)]
  stacks = images + [shape[0] for shape in made if shape.rank == 3 and shape[2] not in (1, 3, 4, None)]
  if not set(stacks).isdisjoint(labels):
    return True
  return bool(images) and all(shape.rank and shape[0] == images[0] for shape in made)


def _seems_to_yield_batches(source):
  """Whether elements of unknown origin seem to be batches: several images and as many labels. A clip has one label."""
  kind, specs = _kind(source), _tensor_specs(source)
  if kind not in (None, "made") or 0 in [spec.shape.rank for spec in specs]:
    return False
  # Labels are integers, but int16 may be a clip's sound. In elements made from single ones, a vector of known length
  # may describe a clip's frames. A matrix in the label's place may be one-hot.
  numbers = [spec.shape for spec in specs if spec.shape.rank == 1 and spec.dtype.is_integer and spec.dtype != tf.int16]
  labels = [shape for shape in numbers if shape[0] is None or kind is None]
  second = specs[1:2] if type(source.element_spec) is tuple else []
  labels += [spec.shape for spec in second if spec.shape.rank == 2 and spec.shape[0] is None]
  return any(image[0] == label[0] for image in _images(source) for label in labels)


def _tensor_specs(source):
  return [spec for spec in tf.nest.flatten(source.element_spec) if isinstance(spec, tf.TensorSpec)]


def _shapes(source):
  return [tf.TensorShape(spec.shape) for spec in tf.nest.flatten(source.element_spec) if hasattr(spec, "shape")]


def _images(source):
  specs = [spec for spec in _tensor_specs(source) if spec.dtype == tf.uint8 or spec.dtype.is_floating]
  return [spec.shape for spec in specs if spec.shape.rank == 4 and spec.shape[3] in (1, 3, 4, None)]


def _kind(source):
  """What `source` yields: "batches", "mapped" batches, "single" elements, some "made" from these, or None."""
  while type(source).__name__ in _HANDS_ON:
    (source,) = source._inputs()
  name = type(source).__name__
  if name in _BATCHES:
    # A batch of one is a single sample with one more dimension.
    sizes = getattr(source, "_batch_sizes", getattr(source, "_batch_size", None))
    return "single" if sizes is not None and np.all(tf.get_static_value(sizes) == 1) else "batches"
  if name in _MAPS:
    return {"batches": "mapped", "single": "made"}.get(kind := _kind(*source._inputs()), kind)
  if name in ("_ConcatenateDataset", "_ZipDataset"):
    # Skips the endless counter of `enumerate`.
    ends = lambda dataset: tf.get_static_value(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY
    inputs = list(filter(ends, source._inputs()))
    kinds = set(map(_kind, inputs))
    return kinds.pop() if len(kinds) == 1 and (len(inputs) == 1 or kinds <= {"single", "made"}) else None
  return "single" if name in _SINGLES else None


def check_distribution():
  """Warns if Keras was imported and will shard its input among several processes."""
  keras = sys.modules.get("keras")
  if hasattr(keras, "distribution"):
    distribution = keras.distribution.distribution()
    # With model parallelism all processes may need the same samples.
    is_data_parallel = isinstance(distribution, keras.distribution.DataParallel)
    if is_data_parallel and distribution._is_multi_process and distribution._auto_shard_dataset:
      warn(SHARDED_BY_KERAS)


def warn(message):
  """Warns at the user's line that builds the stage or, if the C++ part calls this, at the line that is running."""
  warnings.warn(message, PipelineWarning, stacklevel=_stacklevel_of_user())


def _stacklevel_of_user():
  """The `stacklevel`, for the caller, of the innermost line outside this package, TensorFlow and Keras."""
  frame, level = sys._getframe(1), 1
  package = lambda frame: str(frame.f_globals.get("__name__")).split(".", maxsplit=1)[0]
  while frame.f_back is not None and package(frame) in ("refurbish_tf", "tensorflow", "keras"):
    frame, level = frame.f_back, level + 1
  return level
