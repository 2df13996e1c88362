"""Warns of pipelines that are allowed but hardly what their user wants.

What is wrong with the arguments or the source is seen when a stage is built, and the warning is given then. What is seen
only while a stage runs, in a thread of tf.data, is given by Python's main thread as soon as it comes to it. Nobody could
catch an exception there, so where warnings are errors it is printed.
"""
import atexit
import ctypes
import dataclasses
import functools
import gc
import sys
import types
import warnings
import weakref

import tensorflow as tf
from tensorflow.python.data.ops import repeat_op
from tensorflow.python.data.ops import skip_op
from tensorflow.python.data.ops import take_op

from refurbish_tf import arguments
from refurbish_tf import native

SILENCE = 'warnings.filterwarnings("ignore", category=rtf.PipelineWarning)'
BATCHED_SOURCE = (
    "The source of refurbish yields batches, and refurbish takes each of them for one sample: the same samples stay "
    "together in every epoch, and files in the order of their classes make batches of one class. Batch behind refurbish: "
    "source.refurbish(...).batch(...). To do so, leave .batch out of the source. A folder of images is read one by one by "
    "rtf.sources.image_folder, and TFDS by batch_size=None; anything else can be split by .unbatch(). If a batch is meant to "
    f"be one sample, such as a sequence: {SILENCE}.")
SORTED_STREAM = (
    "The source of refurbish is a stream that is sorted by label: equal labels follow each other, so whole batches are of one "
    "class in the first epoch. Give "
    "refurbish a shuffle_buffer_size, best as large as the source: source.refurbish(..., shuffle_buffer_size=10_000). Or "
    "read by index, as from_tensor_slices and rtf.sources do: then the order is random by itself. If the order is meant to "
    f"be so: {SILENCE}.")
SPLIT_BEHIND = (
    "take({count}) and skip({count}) behind refurbish do not split the samples: each epoch comes in another order, so most "
    "samples of one part have been in the other part before. A validation on them measures what was trained on. Split "
    "before refurbish: source.skip(n).refurbish(...) for training, source.take(n) for validation. If that is meant to be "
    f"so: {SILENCE}.")
CACHED_BEHIND = (
    "cache() behind refurbish keeps one epoch and repeats it: the same order and the same augmentation each time, so neither r "
    "nor final_fn is of any use. Leave cache() out. To save the reading or decoding, put it before refurbish: "
    f"source.cache().refurbish(...). If that is meant to be so: {SILENCE}.")
PART_OF_EPOCH = (
    "take or skip behind the stage: other samples in each epoch. To hold out samples, split before refurbish")

# Stages that hand on the elements that they are given, or something made of each.
_ONE_BY_ONE = frozenset({
    "CacheDataset", "_AssertCardinalityDataset", "_ConcatenateDataset", "_FilterDataset", "_IgnoreErrorsDataset",
    "_MapDataset", "_OptionsDataset", "_ParallelMapDataset", "_PrefetchDataset", "_RepeatDataset", "_RestructuredDataset",
    "_ShardDataset", "_ShuffleDataset", "_SkipDataset", "_SnapshotDataset", "_TakeDataset", "_TakeWhileDataset",
    "_ZipDataset"})
_BATCHES = frozenset({
    "_BatchDataset", "_MapAndBatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset", "_RebatchDataset"})
_PARTS = (take_op._TakeDataset, skip_op._SkipDataset)  # pylint: disable=protected-access

# By name, those that Python can say the place of.
_stages = weakref.WeakValueDictionary()


class PipelineWarning(UserWarning):
  """A pipeline that is allowed but hardly what its user wants. The message names the way out.

  >>> import warnings
  >>> with warnings.catch_warnings():
  ...   warnings.simplefilter("ignore", rtf.PipelineWarning)  # A batch is meant to be one sample.
  ...   sequences = tf.data.Dataset.range(12).batch(3).refurbish(lambda x: 10 * x)

  What a stage sees only while it runs is warned of by the main thread, with the line that has built the stage. Where
  warnings are errors such a one is printed and training goes on.
  """


@dataclasses.dataclass(frozen=True)
class Place:
  """A line of the user's program, and what `warnings` has to know of it."""
  filename: str
  line: int
  module: str
  registry: dict

  @classmethod
  def of_caller(cls):
    """The innermost line outside of this package, TensorFlow and Keras."""
    frame = sys._getframe(1)  # pylint: disable=protected-access
    while frame.f_back is not None and _package(frame) in ("refurbish_tf", "tensorflow", "keras"):
      frame = frame.f_back
    return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<unknown>"),
               frame.f_globals.setdefault("__warningregistry__", {}))

  def warn(self, message):
    """Warns once a line, unless filters say otherwise, whatever the number of stages that are built there."""
    warnings.warn_explicit(message, PipelineWarning, self.filename, self.line, self.module, self.registry)


def _package(frame: types.FrameType):
  return str(frame.f_globals.get("__name__")).split(".", maxsplit=1)[0]


# Seen when a stage is built. ------------------------------------------------------------------------------------------------


def check_source(source, place):
  """Warns where the elements of `source` are batches."""
  if _yields_batches(source):
    place.warn(BATCHED_SOURCE)


def _yields_batches(source):
  # Of each dataset that yields batches, the first dimension.
  sizes = {}
  for each in arguments.upstream_first(source):
    kind = type(each).__name__
    inputs = [id(upstream) for upstream in each._inputs()]  # pylint: disable=protected-access
    if kind in _BATCHES:
      # A batch of one is a sample with one more dimension.
      if tf.get_static_value(getattr(each, "_batch_size", 0)) != 1:
        sizes[id(each)] = _first_dimension(each.element_spec)
    elif kind in _ONE_BY_ONE:
      found = {sizes.get(upstream) for upstream in inputs}
      # A function may have made one sample of the batch.
      if len(found) == 1 and _first_dimension(each.element_spec) in found:
        sizes[id(each)], = found
  return sizes.get(id(source)) is not None


def _first_dimension(element_spec):
  """How long the first dimension of all components is, as a tuple; None when it differs or there is none."""
  shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(element_spec)]
  if not shapes or any(shape is None or not shape.rank for shape in shapes):
    return None
  found = {shape[0] for shape in shapes}
  return tuple(found) if len(found) == 1 else None


# Seen while a stage runs. ---------------------------------------------------------------------------------------------------


def watch(stage, place):
  """Has the user warned, at `place`, of what the stage sees while it runs.

  Args:
    stage: the dataset of a stage `refurbish`.
    place: a `Place`.
  """
  _listen()
  stage.place, stage.is_told_of_split = place, False
  stage.counts_behind = {kind: set() for kind in _PARTS}
  # What is built inside a tf.function is another stage at each call.
  if not tf.is_symbolic_tensor(stage.refurbish_stage):
    _stages[stage.refurbish_stage.numpy().decode()] = stage


@functools.lru_cache(maxsize=None)
def _listen():
  library, python = native.symbols(), ctypes.pythonapi
  # It must not ask for a call once there is no interpreter.
  atexit.register(library.refurbish_tf_tell_nobody)
  library.refurbish_tf_tell_python(
      python.Py_AddPendingCall, python.PyObject_CallFunction, python.Py_DecRef, ctypes.py_object(_hear))


def _hear(notice):
  """Called in the main thread, between two lines of whatever program it runs: only an interrupt may come out."""
  try:
    what, _, name = notice.partition(" ")
    # The program may just be tracing a function, which is to stay as it is.
    with tf.init_scope():
      _tell(what, _stages.get(name))
  except Warning as warning:
    # A filter has made it an error.
    print(f"{type(warning).__name__}: {warning}", file=sys.stderr)
  except Exception as error:  # pylint: disable=broad-except
    # Of a `warnings.showwarning` of the user's.
    print(f"refurbish_tf could not warn: {error!r}", file=sys.stderr)


def _tell(what, stage):
  place = Place.of_caller() if stage is None else stage.place
  if what == "sorted":
    place.warn(SORTED_STREAM)
  elif what == "cached":
    place.warn(CACHED_BEHIND)
  elif stage is not None and not stage.is_told_of_split:
    count = _split_at(stage, middles_only=what == "split_if_all")
    if count is not None:
      stage.is_told_of_split = True
      place.warn(SPLIT_BEHIND.format(count=count))


def _split_at(stage, middles_only):
  """A number that is both taken and skipped behind `stage`, or None.

  With `middles_only` what was skipped must have been followed by a `take` of all that is left: no other has been iterated.
  What was there before counts, too: a part may be gone when the other one is made.
  """
  take, skip = _PARTS
  for each in gc.get_objects():
    # The exact type: other objects may do anything when they are asked. The main thread may just be making it.
    if (type(each) is take or type(each) is skip) and hasattr(each, "_variant_tensor_attr"):
      parts = parts_behind(each, stage)
      # skip(3).take(3) is no part of a split, unless it is all that is left.
      if len(parts) == 1 and (isinstance(each, take) or not middles_only):
        count = tf.get_static_value(parts[0]._count)  # pylint: disable=protected-access
        if count is not None:
          stage.counts_behind[type(parts[0])].add(int(count))
  return max(set.intersection(*stage.counts_behind.values()), default=None)


def parts_behind(dataset, stage):
  """The datasets between `stage` and `dataset`, itself included, that leave out a beginning or an end of its epoch."""
  found, behind, repeated = [], {id(stage)}, set()
  for each in arguments.upstream_first(dataset):
    inputs = set(map(id, each._inputs()))  # pylint: disable=protected-access
    if behind.isdisjoint(inputs):
      continue
    behind.add(id(each))
    if isinstance(each, repeat_op._RepeatDataset) or not repeated.isdisjoint(inputs):  # pylint: disable=protected-access
      # What is taken of many epochs is a number of steps.
      repeated.add(id(each))
    elif isinstance(each, _PARTS) and not _leaves_nothing_out(each):
      found.append(each)
  return found


def _leaves_nothing_out(dataset):
  """Whether it is a `take` of as many elements as there are, or skips none."""
  # pylint: disable=protected-access
  # Of what is built inside a tf.function nobody knows how much there is.
  if tf.is_symbolic_tensor(dataset._variant_tensor):
    return False
  if isinstance(dataset, skip_op._SkipDataset):
    return tf.get_static_value(dataset._count) == 0
  before, after = (each.cardinality().numpy() for each in (*dataset._inputs(), dataset))
  return 0 <= before == after
