"""State of PyTorch that is not in the variables of a Keras model."""

import keras


class _Held:
  """A tensor with the part of the interface of a Keras variable that a backup needs."""

  def __init__(self, get, put):
    self._get = get
    self._put = put

  @property
  def value(self):
    return self._get()

  @property
  def dtype(self):
    return self.value.dtype

  @property
  def shape(self):
    return self.value.shape

  def assign(self, array):
    import torch

    self._put(torch.as_tensor(array))


def buffers(model):
  """The buffers of PyTorch's modules in a Keras model, such as the means of its normalizations."""
  if keras.backend.backend() != "torch":
    return []
  # Layer by layer, because the layers of a functional model are not its PyTorch submodules.
  found = {id(buffer): buffer for layer in model._flatten_layers() for buffer in layer.buffers()}
  return [_Held(lambda buffer=buffer: buffer, buffer.copy_) for buffer in found.values()]


def generators():
  """The states of PyTorch's generators, from which dropout without a seed draws."""
  if keras.backend.backend() != "torch":
    return []
  import torch

  devices = [torch, *([torch.cuda] if torch.cuda.is_available() else [])]
  return [_Held(device.get_rng_state, device.set_rng_state) for device in devices]
