"""A source that is as slow as a disk, for benchmarks."""
import threading
import time

import tensorflow as tf


class SlowDisk:
  """Files in memory that are read one after the other, each in its bytes / `bytes_per_second`."""

  def __init__(self, files, bytes_per_second):
    self._files, self._rate = files, bytes_per_second
    self._lock = threading.Lock()
    # When all that was asked for is read. Of sleeps alone each would be late, and the disk slower than it says.
    self._free = 0.0

  def source(self):
    """A dataset of the files, string `[]`, read by index."""
    return tf.data.Dataset.range(len(self._files)).map(
        lambda index: tf.ensure_shape(tf.numpy_function(self._read, [index], tf.string), []), tf.data.AUTOTUNE)

  def _read(self, index):
    file = self._files[index]
    with self._lock:
      self._free = max(self._free, time.perf_counter()) + len(file) / self._rate
      wait = self._free - time.perf_counter()
    time.sleep(max(0.0, wait))
    return file
