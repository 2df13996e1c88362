"""Connects the trainer and a process: messages go through a socket, arrays through shared memory.

A process imports nothing else of the package: importing TensorFlow would take seconds, and memory.
"""

import functools
import marshal
import math
import mmap
import os
import select
import struct
import tempfile

import numpy as np

# Arrays are aligned to this many bytes, so that TensorFlow can use them without a copy.
_ALIGNED = 64
_LENGTH = struct.Struct("<Q")


def new_memory():
  """The descriptor of an empty block of memory, which is freed when the last process that holds it ends."""
  if hasattr(os, "memfd_create"):
    return os.memfd_create("refurbish_tf")
  with tempfile.TemporaryFile() as file:
    return os.dup(file.fileno())


class Memory:
  """Memory that both sides share. It grows on demand and is reused for each sample."""

  def __init__(self, descriptor):
    self.descriptor = descriptor
    self._mapped = None

  def write(self, values):
    """Writes arrays and bytes; returns what the other side needs to read them."""
    described, pieces, end = [], [], 0
    for value in values:
      if isinstance(value, bytes):
        form = "bytes", len(value)
      elif value.dtype == object:
        texts = [bytes(each) for each in value.ravel()]
        form, value = ("strings", [len(text) for text in texts], value.shape), b"".join(texts)
      else:
        form = _name(value.dtype), value.shape
      described.append((*form, end))
      pieces.append((value, end))
      end += -(-(len(value) if isinstance(value, bytes) else value.nbytes) // _ALIGNED) * _ALIGNED
    memory = self._of_size(end)
    for value, begin in pieces:
      if isinstance(value, bytes):
        memory[begin : begin + len(value)] = value
      elif value.size:
        np.copyto(np.ndarray(value.shape, value.dtype, memory, begin), value)
    return described

  def read(self, described):
    """Copies of what the other side has written."""
    values = []
    for kind, *form, begin in described:
      if kind == "bytes":
        values.append(bytes(self._of_size(begin + form[0])[begin : begin + form[0]]))
      elif kind == "strings":
        memory, array = self._of_size(begin + sum(form[0])), np.empty(len(form[0]), object)
        for number, length in enumerate(form[0]):
          array[number] = bytes(memory[begin : begin + length])
          begin += length
        values.append(array.reshape(form[1]))
      else:
        dtype, shape = _dtype(kind), form[0]
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + _ALIGNED, np.uint8)
        value = np.ndarray(shape, dtype, memory, -memory.__array_interface__["data"][0] % _ALIGNED)
        if size:
          np.copyto(value, np.ndarray(shape, dtype, self._of_size(begin + size), begin))
        values.append(value)
    return values

  def _of_size(self, size):
    if self._mapped is None or len(self._mapped) < size:
      there = os.fstat(self.descriptor).st_size
      if there < max(size, 1):
        there = 1 << max(16, (size - 1).bit_length())
        os.ftruncate(self.descriptor, there)
      self._mapped = mmap.mmap(self.descriptor, there)
    return self._mapped

  def close(self):
    os.close(self.descriptor)


@functools.cache
def _name(dtype):
  return dtype.name


@functools.cache
def _dtype(name):
  try:
    return np.dtype(name)
  except TypeError:
    import ml_dtypes  # noqa: F401  Adds bfloat16 and similar types to NumPy.

    return np.dtype(name)


class Connection:
  """Sends and receives messages through a socket: tuples of numbers, strings and bytes."""

  def __init__(self, socket, process=None):
    """`process`: a descriptor of the other process that shows its death even if a third process holds its socket."""
    self.socket, self._process = socket, process
    self._poll = select.poll()
    self._poll.register(socket, select.POLLIN)
    if process is not None:
      self._poll.register(process, select.POLLIN)

  def send(self, message, data=b""):
    """`data`: bytes that the other side reads with `read`. They may be large, so they are not copied."""
    described = marshal.dumps(message)
    self.socket.sendall(_LENGTH.pack(len(described)) + described)
    if data:
      self.socket.sendall(data)

  def receive(self):
    """Waits for a message. EOFError: the other side is gone."""
    (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
    return marshal.loads(self.read(length))

  def read(self, size):
    """Waits for `size` bytes. Each is copied only once."""
    data = memoryview(bytearray(size))
    there = 0
    while there < size:
      if self._process is not None and [self._process] == [each for each, _ in self._poll.poll()]:
        raise EOFError
      more = self.socket.recv_into(data[there:])
      if not more:
        raise EOFError
      there += more
    return data

  def close(self):
    self.socket.close()
    if self._process is not None:
      os.close(self._process)
