"""The position of a pipeline, as one value: which epoch each of its stages is in, and what was yielded.

Checkpoints of iterators get it as a second tensor: TensorFlow's `batch` and others drop the iterator of a stage at the
end of an epoch, and an iterator's own checkpoint then lacks the stage. Loaders and callbacks save nothing else.
"""

import base64
import contextlib
import functools
import json
import zlib

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import dataset_graph, native
from refurbish_tf._internal.tensorflow_internals import iterator_ops

_FORMAT = 3  # Raise this number for a change that other versions cannot read.
_STATE, _STAGES = "_STATE", "_STAGES"
_MOST_TRIES = 1000
# The exceptions that reading a damaged position raises.
_OF_DAMAGE = (ValueError, KeyError, TypeError, OverflowError, AttributeError, zlib.error, tf.errors.DataLossError)
# Datasets that yield an element as soon as they have read it: every element that has left a stage was yielded.
_PASSES_ON = frozenset(
  "_BatchDataset _FilterDataset _MapDataset _OptionsDataset _PaddedBatchDataset _RepeatDataset _ZipDataset "
  "LoaderOutputDataset".split()
)
# These also read ahead, but their symbolic checkpoint is at the last element that they yielded.
_PASSES_ON_SYMBOLIC = _PASSES_ON | {"_ParallelBatchDataset", "_ParallelMapDataset", "_PrefetchDataset"}


class RefurbishStage:
  """A refurbish stage, which the ops know by its `stage_name`."""

  def described(self):
    return native.rows(native.ops().refurbish_tf_refurbish_description(stage=self.stage_name))[0]

  def is_random_access(self):
    return self.described()["random_access"]

  def saved_state(self):
    """The position between two epochs, or in an epoch that was restored and not begun, as a dict for JSON."""
    return _state(native.ops().refurbish_tf_refurbish_position(stage=self.stage_name))

  def restore_state(self, state):
    state = dict(state)
    lost_shards = state.pop("lost_shards", [])
    yielded = np.frombuffer(zlib.decompress(base64.b64decode(state.pop("yielded"))), np.uint8)
    expected = self.saved_state()
    del expected["yielded"]
    *numbers, reuse_factor = native.numbers_of(state, expected)
    native.ops().refurbish_tf_refurbish_set_position(
      stage=self.stage_name,
      numbers=tf.constant(numbers, tf.int64),
      reuse_factor=tf.constant(reuse_factor, tf.float64),
      yielded=yielded,
      lost_shards=tf.constant(lost_shards, tf.int64),
    )


class _CapturedStage(RefurbishStage):
  """A refurbish stage in the graph of a dataset, or of a dataset that its functions have captured.

  `read_again_by` and `skipped_by` name operations after it that make a symbolic checkpoint wrong, or are empty.
  """

  def __init__(self, name, read_again_by, skipped_by):
    self.stage_name, self.read_again_by, self.skipped_by = name, read_again_by.decode(), skipped_by.decode()


def _in_graph(dataset):
  if not hasattr(dataset, "_refurbish_tf_stages"):
    rows = native.ops().refurbish_tf_refurbish_stages(dataset._variant_tensor)
    dataset._refurbish_tf_stages = list(map(_CapturedStage, *(row.numpy().tolist() for row in rows)))
  return dataset._refurbish_tf_stages


def _captured_by(dataset):
  captured = [each for function in dataset._functions() for each in getattr(function.function, "captured_inputs", ())]
  return _in_graph(dataset) if any(each.dtype == tf.variant for each in captured) else []


def _state(output):
  *rows, reuse_factor, yielded = output
  return {
    **native.rows(rows)[0],
    "reuse_factor": float(reuse_factor),
    "yielded": base64.b64encode(zlib.compress(yielded.numpy().tobytes(), 1)).decode(),
  }


def stages_of(dataset):
  """The stages of `dataset` that have a position, upstream first, including those that its functions have captured.

  The stages' names differ between processes, their order does not.
  """
  stages = {}
  for each in dataset_graph.upstream_first(dataset):
    for stage in ([each] if hasattr(each, "saved_state") else []) + _captured_by(each):
      stages.setdefault(getattr(stage, "stage_name", id(stage)), stage)
  return list(stages.values())


def of(stages):
  """The position of stages that are not in an epoch."""
  states = [stage.saved_state() for stage in stages]
  return {"format": _FORMAT, "kinds": _kinds(stages), "between": True, "stages": states}


def restore(what, stages, position):
  """Sets stages to a position; if one refuses it, none is changed. `what` names the caller in errors."""
  try:
    found, kinds, states = position["format"], position["kinds"], position["stages"]
  except (KeyError, TypeError) as error:
    raise damaged(what, error) from error
  if found != _FORMAT:
    raise ValueError(
      f"{what}: the position has format {found}, but this refurbish_tf reads format {_FORMAT}. Use the version that "
      "saved it."
    )
  if not stages and kinds:
    raise ValueError(f"{what}: a joined position has a value but no pipeline. Call its restore(pipeline) instead.")
  if kinds != _kinds(stages):
    raise ValueError(
      f"{what}: the position is of another pipeline, with the stages {kinds}, but this one has {_kinds(stages)}. "
      "Build the same pipeline."
    )
  with unchanged_on_error(stages):
    try:
      for stage, state in zip(stages, states, strict=True):
        stage.restore_state(state)
    except _OF_DAMAGE as error:
      raise damaged(what, error) from error


def damaged(what, error):
  return ValueError(
    f"{what}: the position is damaged ({type(error).__name__}: {error}). Restore another checkpoint, or leave it out "
    "to begin with the first epoch."
  )


@contextlib.contextmanager
def unchanged_on_error(stages):
  """Restores the state of `stages` if the body of the `with` statement raises."""
  before = [stage.saved_state() for stage in stages]
  try:
    yield
  except Exception:
    for stage, saved in zip(stages, before):
      stage.restore_state(saved)
    raise


def in_epoch(position, checkpoint):
  """The position of an iterator in an epoch, from the two tensors of its checkpoint, perhaps from another process."""
  states = []
  for name, state in zip(position.get("names", ()), position["stages"], strict=True):
    *found, num_found, _ = native.ops().refurbish_tf_refurbish_saved_position(stage=name, checkpoint=checkpoint)
    if num_found > 1:
      raise ValueError(
        "several iterators of the pipeline are in an epoch of the same refurbish stage. Read each stage only once."
      )
    states.append({**_state(found), "next_epoch": state["next_epoch"]} if num_found else state)
  return {**position, "stages": states}


def saved_in(path):
  """The positions in a `tf.train.Checkpoint`: of iterators, and of `rtf.EpochPosition`."""
  found = []
  for name, _ in tf.train.list_variables(path):
    restored = functools.partial(tf.raw_ops.RestoreV2, prefix=path, shape_and_slices=[""])
    tensor = lambda name, dtype: restored(tensor_names=[name], dtypes=[dtype])[0]
    if name.endswith(_STAGES):
      position = json.loads(tensor(name, tf.string).numpy())
      found.append(in_epoch(position, tensor(name.removesuffix(_STAGES) + _STATE, tf.variant)))
    elif name.endswith("py_state"):
      with contextlib.suppress(ValueError):
        position = json.loads(tensor(name, tf.string).numpy())
        if isinstance(position, dict) and position.keys() >= {"kinds", "stages"}:
          found.append(position)
  return found


def _kinds(stages):
  return [type(stage).__name__ for stage in stages]


def _not_movable(dataset, symbolic):
  """An operation whose own position would be lost if the stages' position were moved to other workers, or None.

  Moving the position is right only if every element that has left the stages was yielded.
  """
  if hasattr(dataset, "refurbish_stage"):
    return None
  is_known = type(dataset).__name__ in (_PASSES_ON_SYMBOLIC if symbolic else _PASSES_ON)
  counts = type(dataset).__name__ == "_RepeatDataset" and int(tf.get_static_value(dataset._count)) >= 0
  # In a loader, an element may be on its way to a device: it has left the stages but was not yielded.
  if not is_known or counts or not (symbolic or getattr(dataset, "holds_nothing", True)):
    return dataset_graph.method_name(type(dataset).__name__)
  return next(filter(None, (_not_movable(upstream, symbolic) for upstream in dataset._inputs())), None)


def _check_symbolic(dataset):
  for stage in _in_graph(dataset):
    by, skipped_by = map(dataset_graph.method_name, (stage.read_again_by, stage.skipped_by))
    if stage.read_again_by and not stage.is_random_access():
      raise ValueError(
        f"A symbolic checkpoint of {by} after refurbish reads an element again, but a stream may then yield another "
        f"element. Put {by} before refurbish, read the source by index (rtf.sources), or do not set "
        "options.experimental_symbolic_checkpoint."
      )
    if stage.skipped_by:
      raise ValueError(
        f"A symbolic checkpoint of {skipped_by} after interleave does not record which elements of a refurbish stage "
        f"it has skipped. Put {skipped_by} before refurbish, or do not set options.experimental_symbolic_checkpoint."
      )


def _save(iterator, serialize):
  """The tensors of an iterator's checkpoint, with the position of its stages at the same element."""
  stages = _stages_read_by(iterator)
  if not stages:
    return serialize(iterator)
  # The iterator may be reading ahead. Retries until no stage begins an epoch while the iterator is being saved.
  next_epochs = lambda position: [state["next_epoch"] for state in position["stages"]]
  position = of(stages)
  for _ in range(_MOST_TRIES):
    tensors, before, position = serialize(iterator), position, of(stages)
    if next_epochs(before) == next_epochs(position):
      break
  else:
    raise ValueError(
      "The iterator cannot be saved, because its pipeline began an epoch during every attempt. Stop other threads that "
      "read it, or save between two epochs."
    )
  symbolic = bool(iterator._dataset.options().experimental_symbolic_checkpoint)
  if symbolic:
    _check_symbolic(iterator._dataset)
  restored = getattr(iterator, "_refurbish_tf_restored", None)
  position["between"] = symbolic  # Set to False below if an element was read.
  for i, stage in enumerate(stages):
    if not hasattr(stage, "stage_name"):
      continue
    *_, next_epoch = native.ops().refurbish_tf_refurbish_saved_position(
      stage=stage.stage_name, checkpoint=tensors[_STATE]
    )
    if next_epoch >= 0:
      # The stage may have read further than the last element that was yielded.
      position["stages"][i]["next_epoch"] = int(next_epoch)
      position["between"] = False
    elif symbolic and restored is not None:
      position["stages"][i] = restored[i]  # No element of the stage has been read since the restore.
    elif symbolic and position["stages"][i]["next_epoch"] > 0:
      position["stages"][i]["next_epoch"] = -1  # Reading ahead has begun an epoch; which one is unknown.
  position["names"] = [getattr(stage, "stage_name", b"").decode() for stage in stages]
  position["not_movable"] = _not_movable(iterator._dataset, symbolic)
  return {**tensors, _STAGES: tf.constant(json.dumps(position))}


def _restore(iterator, tensors, deserialize):
  stages = _stages_read_by(iterator)
  if not stages:
    return deserialize(iterator, tensors)
  try:
    position = json.loads(tensors[_STAGES].numpy())
  except ValueError as error:
    raise damaged("tf.train.Checkpoint", error) from error
  next_epochs = [state["next_epoch"] for state in position["stages"]]
  known = [{**state, "next_epoch": max(0, state["next_epoch"])} for state in position["stages"]]
  with unchanged_on_error(stages):
    restore("tf.train.Checkpoint", stages, {**position, "stages": known})
    result = deserialize(iterator, tensors)
    for stage, next_epoch in zip(stages, next_epochs):
      if hasattr(stage, "stage_name"):
        native.ops().refurbish_tf_refurbish_keep_position(stage=stage.stage_name, next_epoch=next_epoch)
  iterator._refurbish_tf_restored = position["stages"]
  return result


def _stages_read_by(iterator):
  dataset = getattr(iterator, "_dataset", None)
  return stages_of(dataset) if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly() else []


def attach():
  """Adds the position to the checkpoints of iterators whose pipeline has a stage. Other checkpoints stay unchanged."""
  for method, ours in (("_serialize_to_tensors", _save), ("_restore_from_tensors", _restore)):
    original = getattr(iterator_ops.OwnedIterator, method)

    @functools.wraps(original)
    def wrapper(self, *tensors, _original=original, _ours=ours):
      return _ours(self, *tensors, (lambda iterator, *rest: _original(iterator, *rest)))

    setattr(iterator_ops.OwnedIterator, method, wrapper)
