"""Loaders of the installed frameworks, and one of NumPy arrays for tests that do not depend on the framework."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.loaders.loader import Loader

INTEGERS = (tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64)
DTYPES = (tf.bool, *INTEGERS, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)
# The loader "numpy" hands over the memory itself. As with PyTorch, its users may write into the memory.
FRAMEWORKS = [
  "numpy",
  *(
    pytest.param(
      name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    )
    for name in ("torch", "jax")
  ),
]


def partial(index, seed):
  return index, tf.random.stateless_uniform([], seed)


def final(index, value, seed):
  return index, value + tf.random.stateless_uniform([], seed)


class NumpyMover:
  """Copies batches when they are read, so that tests can distinguish reading ahead from handing out."""

  def __init__(self, num_ahead=0):
    self.num_ahead = num_ahead
    self.exclusive = not num_ahead

  def begin(self, tensors):
    return [tensor.numpy() for tensor in tensors]

  def finish(self, begun):
    return begun

  def state(self, array):
    return array


class MemoryMover(NumpyMover):
  """Hands over the memory itself, writable."""

  def begin(self, tensors):
    return [np.asarray(tensor.__array__()) for tensor in tensors]


def numpy_loader(dataset, num_ahead=0):
  return Loader("numpy_loader", dataset, NumpyMover(num_ahead))


def loader_of(framework, dataset):
  if framework == "numpy":
    return Loader("rtf.numpy_loader", dataset, MemoryMover())
  return rtf.torch_loader(dataset) if framework == "torch" else rtf.jax_loader(dataset)


def as_numpy(framework, batch):
  """Copies of a batch as NumPy arrays, in its structure."""
  if framework == "torch":
    import torch

    def array(tensor):
      if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(tf.bfloat16.as_numpy_dtype)
      return tensor.numpy().copy()
  else:
    array = np.array
  return tf.nest.map_structure(lambda tensor: None if tensor is None else array(tensor), batch)


def values(batches):
  """The components of each batch as lists, which can be compared."""
  return [[np.array(array).tolist() for array in tf.nest.flatten(batch)] for batch in batches]
