"""PyTorch state that is not in the variables of a Keras model."""

import types

import keras


def _held(value, put):
  """A tensor with the part of the interface of a Keras variable that a backup needs."""
  import torch

  assign = lambda array: put(torch.as_tensor(array))
  return types.SimpleNamespace(value=value, dtype=value.dtype, shape=value.shape, assign=assign)


def buffers(model):
  """The buffers of PyTorch's modules in a Keras model, such as the means of its normalizations."""
  if keras.backend.backend() != "torch":
    return []
  # Layer by layer, because the layers of a functional model are not its PyTorch submodules.
  found = {id(buffer): buffer for layer in model._flatten_layers() for buffer in layer.buffers()}
  return [_held(buffer, buffer.copy_) for buffer in found.values()]


def generators():
  """The states of PyTorch's generators, from which dropout without a seed draws."""
  if keras.backend.backend() != "torch":
    return []
  import torch

  devices = [torch, *([torch.cuda] if torch.cuda.is_available() else [])]
  return [_held(device.get_rng_state(), device.set_rng_state) for device in devices]
