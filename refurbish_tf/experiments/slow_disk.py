"""A source that is as slow as a disk."""

import contextlib
import threading
import time

import tensorflow as tf


class SlowDisk:
  """Files in memory that are read one after the other, each in `latency` + its bytes / `bytes_per_second` seconds.

  Attributes:
    reads: how many files have been read or are being read.
  """

  def __init__(self, files, bytes_per_second, latency=0.0):
    self._files, self._rate, self._latency = files, bytes_per_second, latency
    self._lock = threading.Lock()
    # When all requested reads end. With plain sleeps each would end late, and the disk would be slower than specified.
    self._free = 0.0
    self.reads = 0

  def read(self, index):
    """The file of an index, int64 `[]`, as a tensor, string `[]`."""
    return tf.ensure_shape(tf.numpy_function(self._read, [index], tf.string), [])

  @contextlib.contextmanager
  def paused(self):
    """A context in which no read begins, for time that must not count. Later reads are delayed by its duration."""
    with self._lock:
      began = time.perf_counter()
      yield
      self._free += time.perf_counter() - began

  def _read(self, index):
    file = self._files[index]
    with self._lock:
      self.reads += 1
      self._free = max(self._free, time.perf_counter()) + self._latency + len(file) / self._rate
      wait = self._free - time.perf_counter()
    time.sleep(max(0.0, wait))
    return file
