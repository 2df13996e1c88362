"""The common part of `torch_loader` and `jax_loader`: epochs, and their state."""

from __future__ import annotations

import collections
import math
import re
import threading
from typing import Any, Iterator

import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph, pipeline_warnings, positions
from refurbish_tf._internal.tensorflow_internals import none_tensor
from refurbish_tf.loaders import loader_output
from refurbish_tf.loaders import state as states


class Loader:
  """Batches of a `tf.data` pipeline for another framework. Made by `rtf.torch_loader` and `rtf.jax_loader`.

  `iter` returns the batches of the next epoch, `len` their number if it is known, and `epoch` the number of the epoch.
  `state_dict` and `load_state_dict` save and restore the position.
  """

  def __init__(self, function: str, dataset: tf.data.Dataset[Any], mover: Any) -> None:
    """Makes a loader, as the user's `function` does, with a `mover` of tensors.

    The mover's `begin(tensors)` starts to send them, `finish(begun)` returns what the user gets, `state(array)`
    converts a uint8 array for the framework. Its `num_ahead` and `exclusive` are for `loader_output.pipeline`.
    """
    self._function = function
    self._mover = mover
    self._pipeline = loader_output.pipeline(function, dataset, mover.num_ahead, mover.exclusive)
    datasets = dataset_graph.upstream_first(dataset)
    self._stages = positions.stages_of(dataset)
    self._reads_endless_service = dataset_graph.reads_endless_service(datasets)
    self._outputs = {"output_types": self._pipeline._flat_types, "output_shapes": self._pipeline._flat_shapes}
    self._pack = _packer(dataset.element_spec)
    self._described = {"elements": str(dataset.element_spec), "stages": len(self._stages)}
    self._epoch = None  # The newest `_Epoch`.
    self._next_number = 0  # The number of the epoch that begins next.
    self._rest = None  # A `_Rest`: what is left of that epoch, if a state was loaded and is not read yet.
    self._told = None  # The number by which Lightning knows the epoch.
    self._is_read_early = False  # Whether Lightning reads one batch more than it trains on.
    self._num_loads = 0
    # Several threads may use the epochs and the state. Reentrant, because signal handlers may run at any time.
    self._lock = threading.RLock()

  def __len__(self) -> int:
    return len(self._pipeline)

  def __reduce__(self):
    raise TypeError(
      f"{self._function}: a loader cannot be copied or pickled, because its pipeline belongs to this process. Make one "
      "where it is needed. In a checkpoint, save its state_dict()."
    )

  def __iter__(self) -> Iterator[Any]:
    with self._lock:
      self._epoch = _Epoch(self)
      return self._epoch

  @property
  def epoch(self) -> int:
    """The number of the epoch that is being read, from 0, or of the next one if none is being read.

    It is part of the state. After `load_state_dict` it is the number of the epoch whose rest comes next, or, if nothing
    is left of it, of the one after it: to find out, this reads a batch. So a program that may be restarted trains `for
    epoch in range(loader.epoch, num_epochs)`.
    """
    with self._lock:
      if self._position() is not None:
        return self._epoch.number
      return self._next_number + self._rest_is_over()

  @property
  def batch_sampler(self) -> _BatchSampler:
    return _BatchSampler(self)  # Lightning gives the number of the epoch to the sampler that it finds here.

  def state_dict(self) -> dict[str, Any]:
    """Returns the position after the last batch that was returned, even if later ones were read ahead.

    Returns:
      `{"state": array}`: a vector of uint8, a `torch.Tensor` or a `numpy.ndarray`. Its length is a power of two, at
      least 65,536 and for N samples about N / 4, the same at each position. It holds no samples except those that
      stages after `refurbish` have buffered: docs/torch_jax.md lists these stages.

    Raises:
      tf.errors.FailedPreconditionError, tf.errors.UnimplementedError: the pipeline cannot be saved, because it draws
        random numbers without a seed, or reads a Python generator or a tf.data service.
    """
    if self._is_read_early:
      pipeline_warnings.warn(
        f"{self._function}: Lightning does not know how many batches an epoch has, so it reads one more than it trains "
        "on. A state saved in mid-epoch lacks that batch, and training that resumes at the end of an epoch starts with "
        "the order of the first one. Declare the number: .apply(tf.data.experimental.assert_cardinality(number))."
      )
    with self._lock, checks.save_errors(self._function):
      if self._reads_endless_service:
        # The service cannot be saved, even between epochs: the stages that count epochs are on the workers.
        raise tf.errors.UnimplementedError(None, None, "it reads a tf.data service that repeats without end.")
      if self._rest is not None:
        state = self._rest.state.copy()  # Its first batch may have been read, but was not handed out.
      else:
        state = states.of(self._stages, self._position(), self._described, self.epoch, self._told)
    return {"state": self._mover.state(state)}

  def load_state_dict(self, state_dict: dict[str, Any]) -> None:
    """Goes to the position that `state_dict` has saved: the next iteration reads the rest of that epoch.

    If nothing is left of it, the next iteration reads the whole next epoch; `epoch` tells which one it is. An iterator
    that is being read is abandoned: it raises an error when it is read again.

    Args:
      state_dict: the result of `state_dict()` of a loader of the same pipeline, in any process, for any device.

    Raises:
      ValueError: it is damaged, or belongs to another pipeline or another version.
      TypeError: it is not what `state_dict()` returns.
      tf.errors.OpError: the pipeline does not fit. The next iteration reads the next epoch, or the rest that was loaded
      before and not read.
    """
    state = states.as_array(f"{self._function}: load_state_dict", state_dict)
    with self._lock:
      saved = states.read(self._function, state)
      # Between two epochs the size of a batch may change, as for another number of workers.
      told = (lambda each: each) if saved.iterator is not None else _without_batch_sizes
      if told(saved.described) != told(self._described):
        raise ValueError(
          f"{self._function}: the state belongs to another pipeline, with {saved.described}, but this one has "
          f"{self._described}. Build the same pipeline."
        )
      self._load(saved, state)

  def load_position(self, position: dict[str, Any]) -> None:
    """Goes to a position of all workers: what `rtf.EpochPosition.restore` does."""
    with self._lock:
      self._load(states.Saved(position, None, self._described, position.get("epoch", self._next_number), None), None)

  def _load(self, saved, state):
    unread = self._rest
    if self._epoch is not None:
      self._epoch.leave()
    self._epoch = self._rest = None  # Dropped, because by reading ahead they would begin the stages' next epoch.
    self._num_loads += 1
    try:
      with positions.unchanged_on_error(self._stages):
        if saved.iterator is None:
          positions.restore(self._function, self._stages, saved.position)
        else:
          rest = _Rest(saved, state.copy(), _Batches(self))
          states.restore(rest.batches.iterator, saved)
          self._rest = rest
    except Exception as error:
      if unread is not None:
        self._load(unread.saved, unread.state)
      if isinstance(error, tf.errors.OpError):
        raise type(error)(
          error.node_def, error.op, f"{self._function} cannot load the state: {checks.message_of(error)}"
        ) from error
      raise
    self._next_number = saved.epoch
    self._told = None

  def _rest_is_over(self):
    """Whether the next epoch replaces the rest of the one that was loaded."""
    if self._rest is None:
      return False
    known_by = self._rest.saved.told  # The number by which Lightning knew the epoch, if it gave one.
    if self._told is not None and known_by is not None:
      return self._told != known_by
    # If the length is unknown, Lightning reads a batch before it gives the number of the epoch.
    return self._rest.batches.is_empty() and (known_by is None or int(self._pipeline.cardinality()) >= 0)

  def _position(self):
    """The iterator of the epoch that is being read."""
    return None if self._epoch is None else self._epoch.position()

  def _tell(self, number):
    """Called when Lightning begins epoch `number`. If Lightning does not know the length, it has read a batch of it."""
    with self._lock:
      is_first, self._told = self._told is None, number
      if not is_first:
        return
      self._is_read_early = self._position() is not None and int(self._pipeline.cardinality()) < 0
      number += self._is_read_early
      if self._num_loads == 0 and number > self._next_number:
        self._next_number = number
        for stage, passes in zip(self._stages, dataset_graph.passes(self._pipeline, self._stages)):
          if passes == math.inf:
            pipeline_warnings.warn(
              f"{self._function}: training continues with epoch {number}, but its samples come in the order of the "
              "first one: after .repeat() without a number, it is unknown how many epochs of the source were read. "
              "Pass a number to .repeat(), or save the loader's state in a LightningDataModule, as in "
              "docs/torch_jax.md."
            )
          elif (saved := stage.saved_state())["next_epoch"] < number * passes:
            stage.restore_state({**saved, "next_epoch": number * passes})


class _Epoch:
  """The batches of an epoch, or of its rest. The pipeline is started by the first `next`."""

  number = None  # The number of the epoch, once it has begun.

  def __init__(self, loader):
    self._loader = loader
    self._mover = loader._mover
    self._batches = None
    self._num_loads = None  # The loader's `_num_loads` when this epoch was begun.
    self._ended = False

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
        f"{self._loader._function}: load_state_dict() has moved to another position since this iterator was begun. "
        "Call iter() again."
      )
    self._batches.read_ahead(self._mover.num_ahead)
    if self._batches.is_empty():
      self._ended = True
      raise StopIteration
    return self._loader._pack(self._mover.finish(self._batches.take()))

  def _begin(self):
    loader = self._loader
    number = loader.epoch
    batches = _Batches(loader) if loader._rest is None or loader._rest_is_over() else loader._rest.batches
    # In this order, because a signal's handler may read the state at any time.
    self._num_loads, self.number, self._batches = loader._num_loads, number, batches
    loader._rest, loader._next_number = None, number + 1

  def position(self):
    """The iterator, if the epoch has begun and not ended."""
    return None if self._ended or self._batches is None else self._batches.iterator

  def leave(self):
    self._batches = None


class _Batches:
  """The batches of an epoch, or of its rest, on their way to the user."""

  def __init__(self, loader):
    self._begin = loader._mover.begin
    self._outputs = loader._outputs
    self._read_to_end = False
    self._on_their_way = collections.deque()
    self.iterator = iter(loader._pipeline)

  def read_ahead(self, number):
    while not self._read_to_end and len(self._on_their_way) <= number:
      self._read()

  def is_empty(self):
    """Whether no batch is left. Reads one to find out."""
    self.read_ahead(0)
    return not self._on_their_way

  def take(self):
    begun, error = self._on_their_way.popleft()
    if error is not None:
      raise error
    return begun

  def _read(self):
    """Reads a batch, or the error that comes in its place, or the end."""
    try:
      # The iterator's `next` would take 35 us longer, partly to pack the tensors.
      tensors = tf.raw_ops.IteratorGetNext(iterator=self.iterator._iterator_resource, **self._outputs)
      self._on_their_way.append((self._begin(tensors), None))
    except tf.errors.OutOfRangeError:
      self._read_to_end = True
    except Exception as error:
      self._on_their_way.append((None, error))


# The rest of an epoch that was loaded and is not read yet.
_Rest = collections.namedtuple("_Rest", ["saved", "state", "batches"])


class _BatchSampler:
  """Receives the number of the epoch, which Lightning gives to a batch sampler's sampler when an epoch begins.

  Some versions of Lightning continue a checkpoint of an epoch's last batch with the empty rest of that epoch. If
  Lightning gives another number than the state has, the loader begins another epoch. No version loads the loader's
  state from a checkpoint of an epoch's end: a new loader begins with the epoch that Lightning gives.
  """

  batch_size = 1  # Lightning's DeepSpeed strategy asks for it.

  def __init__(self, loader):
    self._loader = loader

  @property
  def sampler(self):
    return self

  def set_epoch(self, number):
    self._loader._tell(number)


def _without_batch_sizes(described):
  return {**described, "elements": re.sub(r"shape=\(\d+,", "shape=(None,", str(described.get("elements")))}


def _packer(element_spec):
  """A function that packs a list of tensors into the structure `element_spec`; the list omits its Nones."""
  flat = tf.nest.flatten(element_spec)
  if any(isinstance(spec, none_tensor.NoneTensorSpec) for spec in flat):

    def pack(tensors):
      tensors = iter(tensors)
      return tf.nest.map_structure(
        lambda spec: None if isinstance(spec, none_tensor.NoneTensorSpec) else next(tensors), element_spec
      )

    return pack
  # The two usual cases first: the third takes 10 us.
  if flat == [element_spec]:
    return lambda tensors: tensors[0]
  if type(element_spec) is tuple and flat == list(element_spec):
    return tuple
  return lambda tensors: tf.nest.pack_sequence_as(element_spec, tensors)
