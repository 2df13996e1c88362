"""`rtf.torch_loader`: a `tf.data` pipeline for PyTorch."""

from __future__ import annotations

import collections
from importlib import metadata
import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings
from refurbish_tf.loaders import loader_output, loader

if TYPE_CHECKING:
  import torch


def torch_loader(dataset: tf.data.Dataset[Any], device: torch.device | str | int | None = None) -> loader.Loader:
  """Returns a loader of a `tf.data` pipeline's batches as PyTorch tensors, in place of a `torch.utils.data.DataLoader`.

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([6, 32, 32, 3], tf.uint8))
  >>> train = images.refurbish([rtf.augment.rand_augment()], [rtf.augment.random_flip()], r=3, seed=7).batch(2)
  >>> loader = rtf.torch_loader(train)
  >>> for epoch in range(3):
  ...   for batch in loader:
  ...     images = batch.permute(0, 3, 1, 2).float().div_(255)
  >>> len(loader), images.shape
  (3, torch.Size([2, 3, 32, 32]))

  Each iteration over the loader is an epoch. Batches have the structure, names, shapes and dtypes of the pipeline's
  elements, and come in the pipeline's order. On the CPU a batch uses the pipeline's memory without a copy, unless
  something else uses that memory: a slice, a constant, an element of a `cache()` or of an `echo` after `batch` is
  copied. So you may write into a batch. End the pipeline with `.prefetch(tf.data.AUTOTUNE)`, so that batches are made
  in parallel with training.

  To a CUDA device batches are moved ahead: the next one is copied from pinned memory, in a separate stream, while you
  use this one. TensorFlow must not use the GPU: call `tf.config.set_visible_devices([], "GPU")` first.

  `loader.state_dict()` and `loader.load_state_dict(state)` resume in mid-epoch, like those of torchdata's
  `StatefulDataLoader`, including within Lightning. The state is the position after the last batch that was returned.
  The rest of the epoch has exactly the samples that were not returned; with functions that take a `seed` it is the same
  bit for bit. After the last batch of an epoch comes the next one. `loader.epoch` is the number of the epoch: a program
  that may be restarted trains `for epoch in range(loader.epoch, num_epochs)`.

  Implements the reuse of one preparation by several frameworks (Kakaraparthi et al., "The Case for Unifying Data
  Loading in Machine Learning Clusters", HotCloud 2019, section 3): jobs in PyTorch, JAX and TensorFlow share a `store`.

  Args:
    dataset: a finite `tf.data.Dataset`. Its elements are dense tensors of booleans, integers, floating point or complex
      numbers, in any nest of tuples, dicts and named tuples.
    device: where to put the batches: a `torch.device`, or its argument, such as "cuda" or 0. None for the CPU.

  Returns:
    An `rtf.Loader`. Its `len` is the length of the dataset, and raises TypeError if this is unknown.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`, or it yields strings, ragged or sparse tensors, or another type
      that PyTorch does not have.
    ValueError: `dataset` repeats without end.
    RuntimeError: `device` is invalid; called while a `tf.function` is traced.
    ModuleNotFoundError: PyTorch is not installed.
    Errors of the pipeline: when it is read, in place of a batch. The next one follows.
  """
  try:
    import torch
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "rtf.torch_loader needs PyTorch, which is not installed: pip install torch.", name="torch"
    ) from error
  _tell_of_triton()
  device = torch.device("cpu" if device is None else device)
  if device.type == "cpu":
    mover = _ToCpu(torch)
  else:
    if device.type == "cuda" and not torch.cuda.is_available():
      raise RuntimeError(
        f'rtf.torch_loader: device is "{device}", but PyTorch finds no GPU that it can use. Pass "cpu" if '
        "torch.cuda.is_available() is false, or install a driver and a PyTorch that fit your GPU."
      )
    loader_output.tell_of_gpu("rtf.torch_loader")
    mover = _ToCuda(torch, device) if device.type == "cuda" else _ToDevice(torch, device)
  return loader.Loader("rtf.torch_loader", dataset, mover)


def _tell_of_triton():
  """Warns that the process will crash if TensorFlow was imported before a Triton that cannot be imported after it."""
  try:
    triton = metadata.version("triton")
  except metadata.PackageNotFoundError:
    return
  if "triton" not in sys.modules and tuple(map(int, triton.split(".")[:2])) >= (3, 7):
    pipeline_warnings.warn(
      f"PyTorch will crash when it imports Triton {triton}, at the latest with the first optimizer, because TensorFlow "
      "was imported before it (tensorflow#124205). Begin the program with `import torch._dynamo`, which imports "
      "Triton, before TensorFlow and refurbish_tf."
    )


class _ToCpu:
  """Hands the pipeline's memory to PyTorch without a copy."""

  num_ahead = 0
  exclusive = True

  def __init__(self, torch):
    self._torch = torch

  def begin(self, tensors):
    return [self._handed_over(tensor) for tensor in tensors]

  def finish(self, begun):
    return begun

  def state(self, array):
    return self._torch.from_numpy(array)

  def _handed_over(self, tensor):
    result = self._torch.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))
    # TensorFlow before 2.21 hands over booleans as uint8.
    return result.view(self._torch.bool) if tensor.dtype == tf.bool else result


class _ToDevice(_ToCpu):
  """Copies to a device."""

  num_ahead = 1
  exclusive = False

  def __init__(self, torch, device):
    super().__init__(torch)
    self._device = device

  def begin(self, tensors):
    return [tensor.to(self._device) for tensor in super().begin(tensors)]


class _ToCuda(_ToDevice):
  """Copies to a GPU from pinned memory, in a stream of its own."""

  def __init__(self, torch, device):
    super().__init__(torch, device)
    self._cuda = torch.cuda
    self._stream = torch.cuda.Stream(device)
    # Each copy's event, and the pinned tensors that it reads.
    self._under_way = collections.deque()

  def begin(self, tensors):
    while self._under_way and self._under_way[0][0].query():
      self._under_way.popleft()
    pinned = [tensor.pin_memory() for tensor in _ToCpu.begin(self, tensors)]
    with self._cuda.stream(self._stream):
      moved = [tensor.to(self._device, non_blocking=True) for tensor in pinned]
      copied = self._stream.record_event()
    self._under_way.append((copied, pinned))
    return copied, moved

  def finish(self, begun):
    copied, moved = begun
    current = self._cuda.current_stream(self._device)
    current.wait_event(copied)
    for tensor in moved:
      # The memory is the copying stream's. Once freed, it must not be reused before the current stream is done with it.
      tensor.record_stream(current)
    return moved
