"""What `torch_loader` and `jax_loader` share: epochs, and their state."""
from __future__ import annotations

import collections
import threading
from typing import Any, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import none_tensor

from refurbish_tf._internal import checks, dataset_graph
from refurbish_tf.loaders import hand_over
from refurbish_tf.loaders import state as states


class Loader:
  """Batches of a `tf.data` pipeline for another framework. Made by `rtf.torch_loader` and `rtf.jax_loader`.

  `iter` gives the batches of the next epoch, `len` their number where it is known. `state_dict` and `load_state_dict`
  are those of a checkpoint.
  """

  def __init__(self, function: str, dataset: tf.data.Dataset[Any], mover: Any) -> None:
    """Makes a loader, as the user's `function` does, with a `mover` of tensors.

    Its `begin(tensors)` sends them on their way, `finish(begun)` returns what the user gets of them, `state(array)` a uint8
    array as the framework has it. `num_ahead` and `exclusive` are those of `hand_over.pipeline`.
    """
    self._function = function
    self._mover = mover
    self._pipeline = hand_over.pipeline(function, dataset, mover.num_ahead, mover.exclusive)
    datasets = dataset_graph.upstream_first(dataset)
    self._stages = dataset_graph.stages_with_state(datasets)
    self._reads_endless_service = dataset_graph.reads_endless_service(datasets)
    self._outputs = {"output_types": self._pipeline._flat_types, "output_shapes": self._pipeline._flat_shapes}
    self._pack = _packer(dataset.element_spec)
    self._described = {"elements": str(dataset.element_spec), "stages": len(self._stages)}
    self._epoch = None  # The newest one.
    self._restored = None  # An iterator for the next epoch to be read.
    self._restored_number = None  # What number that epoch had when it was saved.
    self._num_loads = 0
    # Threads may share the epochs and the state. Reentrant for signal handlers, which run in the middle of anything.
    self._lock = threading.RLock()
    self.batch_sampler = _EpochNumber()  # Where Lightning looks for it.

  def __len__(self) -> int:
    return len(self._pipeline)

  def __reduce__(self):
    raise TypeError(
        f"{self._function}: a loader cannot be copied or pickled, as its pipeline is of this process. Make one where it is "
        "needed. What belongs into a checkpoint is its state_dict().")

  def __iter__(self) -> Iterator[Any]:
    with self._lock:
      self._epoch = _Epoch(self)
      return self._epoch

  def state_dict(self) -> dict[str, Any]:
    """The position behind the last batch that was handed out, whatever is read ahead.

    Returns:
      `{"state": array}`: a vector of uint8, a `torch.Tensor` or a `numpy.ndarray`. Its length is a power of two, at
      least 65,536 and for N samples about N / 4, the same at each position. It holds no samples but those that stages
      behind `refurbish` have buffered: docs/torch_jax.md says which do.

    Raises:
      tf.errors.FailedPreconditionError, tf.errors.UnimplementedError: the pipeline cannot be saved, as it draws random
        numbers without a seed, or reads a Python generator or a tf.data service.
    """
    with self._lock, checks.save_errors(self._function):
      if self._reads_endless_service:
        # Between epochs, too: the stages that count them are on the workers.
        raise tf.errors.UnimplementedError(None, None, "it reads a tf.data service that repeats without end.")
      iterator = self._restored
      if iterator is None and self._epoch is not None:
        iterator = self._epoch.position()
      state = states.of(self._stages, iterator, self._described, self._number())
    return {"state": self._mover.state(state)}

  def load_state_dict(self, state_dict: dict[str, Any]) -> None:
    """Goes to the position that `state_dict` has saved: the next epoch that is read is the rest of that one.

    The epoch that is being read is left: its iterator gives an error when it is read again.

    Args:
      state_dict: what `state_dict()` has returned, of a loader of the same pipeline in this or another process, for
        any device.

    Raises:
      ValueError: it is damaged, of another pipeline, or of a newer version.
      TypeError: it is not what `state_dict()` returns.
      tf.errors.OpError: the pipeline does not fit. The next epoch follows.
    """
    with self._lock:
      self._load(*states.read(self._function, self._as_array(state_dict), self._described, self._stages))

  def _load(self, stages, parts, number):
    if self._epoch is not None:
      self._epoch.leave()
      self._epoch = None
    self._num_loads += 1
    before = [stage.saved_state() for stage in self._stages]
    try:
      # Stages before the iterator, whose word on them counts.
      for stage, saved in zip(self._stages, stages):
        stage.restore_state(saved)
      restored = None
      if parts is not None:
        restored = iter(self._pipeline)
        states.restore(restored, parts)
    except Exception as error:
      for stage, saved in zip(self._stages, before):
        stage.restore_state(saved)
      if isinstance(error, tf.errors.OpError):
        raise type(error)(
            error.node_def, error.op, f"{self._function} cannot load the state: {checks.message_of(error)}") from error
      raise
    self._restored = restored
    self._restored_number = self.batch_sampler.number = number

  def _number(self):
    return self.batch_sampler.number if self._restored is None else self._restored_number

  def _as_array(self, state_dict):
    state = state_dict.get("state") if isinstance(state_dict, collections.abc.Mapping) else None
    if hasattr(state, "cpu"):
      state = state.cpu()  # Of PyTorch, perhaps on a device.
    try:
      array = None if state is None else np.asarray(state)
    except (TypeError, ValueError, RuntimeError):
      array = None
    if array is None or array.dtype != np.uint8 or array.ndim != 1:
      raise TypeError(
          f'{self._function}: load_state_dict takes what state_dict() has returned, {{"state": a vector of uint8}}, got '
          f"{_described_state(state_dict)}.")
    return array


class _Epoch:
  """The batches of an epoch, or of its rest. The pipeline is started by the first `next`."""

  def __init__(self, loader):
    self._loader = loader
    self._mover = loader._mover
    self._iterator = None
    self._num_loads = None  # The loader's when this was begun.
    self._passed_over_if_empty = False
    self._read_to_end = False
    self._ended = False
    self._on_their_way = collections.deque()

  def __iter__(self):
    return self

  def __reduce__(self):
    return self._loader.__reduce__()

  def __next__(self):
    with self._loader._lock:
      return self._next()

  def _next(self):
    if self._ended:
      raise StopIteration
    if self._num_loads is None:
      self._begin()
    if self._num_loads != self._loader._num_loads:
      raise RuntimeError(
          f"{self._loader._function}: load_state_dict() has gone to another position since this iterator was begun. Call "
          "iter() again.")
    self._read_ahead()
    if self._passed_over_if_empty and not self._on_their_way:
      self._iterator = iter(self._loader._pipeline)
      self._read_to_end = False
      self._read_ahead()
    self._passed_over_if_empty = False
    if not self._on_their_way:
      self._ended = True
      raise StopIteration
    begun, error = self._on_their_way.popleft()
    if error is not None:
      raise error
    return self._loader._pack(self._mover.finish(begun))

  def position(self):
    """The iterator, if the epoch has begun and not ended."""
    return None if self._ended else self._iterator

  def leave(self):
    """Ends the reading ahead, which would take the stages on to their next epoch."""
    self._iterator = None

  def _begin(self):
    self._num_loads = self._loader._num_loads
    self._iterator, self._loader._restored = self._loader._restored, None
    if self._iterator is None:
      self._iterator = iter(self._loader._pipeline)
    else:
      self._passed_over_if_empty = self._loader._restored_number != self._loader.batch_sampler.number

  def _read_ahead(self):
    while not self._read_to_end and len(self._on_their_way) <= self._mover.num_ahead:
      self._read()

  def _read(self):
    """Reads a batch, or the error that comes in its place, or the end."""
    try:
      # `next` of the iterator would take 35 us longer, also to pack them.
      tensors = tf.raw_ops.IteratorGetNext(iterator=self._iterator._iterator_resource, **self._loader._outputs)
      self._on_their_way.append((self._mover.begin(tensors), None))
    except tf.errors.OutOfRangeError:
      self._read_to_end = True
    except Exception as error:
      self._on_their_way.append((None, error))


class _EpochNumber:
  """The number of the epoch, as Lightning tells a batch sampler's sampler when it begins one.

  From a checkpoint of an epoch's last batch Lightning goes on with the next epoch, and asks for its batches without having
  seen the other one end. Told another number than the state has, a loader passes over an empty rest. A loop that tells no
  number gets it, as an epoch without batches.
  """
  batch_size = 1  # Lightning's DeepSpeed strategy asks for it.
  number = None

  @property
  def sampler(self):
    return self

  def set_epoch(self, number):
    self.number = number


def _packer(element_spec):
  """A function that packs a list of all but the Nones as `element_spec` has them."""
  flat = tf.nest.flatten(element_spec)
  if any(isinstance(spec, none_tensor.NoneTensorSpec) for spec in flat):
    def pack(tensors):
      tensors = iter(tensors)
      return tf.nest.map_structure(
          lambda spec: None if isinstance(spec, none_tensor.NoneTensorSpec) else next(tensors), element_spec)
    return pack
  # The two usual cases first: the third takes 10 us.
  if flat == [element_spec]:
    return lambda tensors: tensors[0]
  if type(element_spec) is tuple and flat == list(element_spec):
    return tuple
  return lambda tensors: tf.nest.pack_sequence_as(element_spec, tensors)


def _described_state(state_dict):
  if not isinstance(state_dict, collections.abc.Mapping):
    return type(state_dict).__name__
  return "{" + ", ".join(f"{key!r}: {type(value).__name__}" for key, value in state_dict.items()) + "}"
