"""Datasets, options and functions of tf.data, and the memory of a process, for tests of pipelines around a stage."""

import ctypes
import gc
import os
import threading
import time

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

Dataset = tf.data.Dataset


def plain(value):
  """The value as Python objects that can be compared and sorted."""
  if isinstance(value, tf.RaggedTensor):
    return "ragged", value.to_list()
  if isinstance(value, tf.SparseTensor):
    return "sparse", value.indices.numpy().tolist(), value.values.numpy().tolist(), value.dense_shape.numpy().tolist()
  if value is None:
    return None
  value = tf.convert_to_tensor(value)
  return value.dtype.name, value.shape.as_list(), np.array(value.numpy(), object).tolist()


def stats(dataset):
  (stage,) = rtf.stats(dataset)
  return stage


def fresh(dataset):
  return [epoch.fresh for epoch in stats(dataset).epochs]


def stream(n):
  """0 ... n - 1, as a dataset of unknown length."""
  return Dataset.range(n).filter(lambda index: True)


def plus_one(x):
  return x + 1


def epochs(dataset, number=3):
  return [list(map(tuple, dataset.as_numpy_iterator())) for _ in range(number)]


def draw(index, seed):
  return index, seed


def draw_again(index, first, seed):
  return index, *tf.unstack(first), *tf.unstack(seed)


def outcomes(iterator, limit=1000):
  """The remaining elements and errors of an iterator, in order."""
  found = []
  for _ in range(limit):
    try:
      found.append(next(iterator))
    except StopIteration:
      return found
    except tf.errors.OpError as error:
      found.append(error)
  raise AssertionError(f"No end after {limit} calls; the last one gave {found[-1]}.")


def read(dataset, limit=1000):
  """Reads to the end, continuing after errors. Returns the elements and the errors."""
  found = outcomes(iter(dataset), limit)
  errors = [each for each in found if isinstance(each, tf.errors.OpError)]
  return [each for each in found if not isinstance(each, tf.errors.OpError)], errors


def in_python(function):
  """A function for datasets that calls this Python function, which AutoGraph does not convert."""
  function = tf.autograph.experimental.do_not_convert(function)
  return lambda x: tf.ensure_shape(tf.numpy_function(function, [x], tf.int64, stateful=True), [])


class CallsAtOnce:
  """A Python function for datasets that records its calls and the maximum number that ran at once."""

  def __init__(self, seconds=0.002):
    self._seconds = seconds
    self._lock = threading.Lock()
    self._now = self.most = 0
    self.order = []

  def __call__(self, x):
    return in_python(self._call)(x)

  def _call(self, x):
    with self._lock:
      self._now += 1
      self.most = max(self.most, self._now)
      self.order.append(int(x))
    time.sleep(self._seconds)
    with self._lock:
      self._now -= 1
    return x


def with_options(dataset, group=None, **given):
  """The dataset with these options, or, with a `group` such as "threading", with these options of the group."""
  options = tf.data.Options()
  for name, value in given.items():
    assert hasattr(getattr(options, group) if group else options, name)
    setattr(getattr(options, group) if group else options, name, value)
  return dataset.with_options(options)


def without_prefetch(dataset):
  """The dataset without the `prefetch` that tf.data adds at the end."""
  return with_options(dataset, "experimental_optimization", inject_prefetch=False)


OPTIMIZATIONS = (
  "filter_fusion filter_parallelization inject_prefetch map_and_batch_fusion map_and_filter_fusion map_fusion "
  "map_parallelization noop_elimination parallel_batch seq_interleave_prefetch shuffle_and_repeat_fusion"
).split()
# Arguments of `with_options`.
OPTIONS = {
  "none": {},
  "no default optimizations": {"group": "experimental_optimization", "apply_default_optimizations": False},
  "no optimizations": {"group": "experimental_optimization", **dict.fromkeys(OPTIMIZATIONS, False)},
  "all optimizations": {"group": "experimental_optimization", **dict.fromkeys(OPTIMIZATIONS, True)},
  "no autotune": {"group": "autotune", "enabled": False},
  "ram budget": {"group": "autotune", "ram_budget": 1000},
  "autotune by gradient descent": {
    "group": "autotune",
    "autotune_algorithm": tf.data.experimental.AutotuneAlgorithm.GRADIENT_DESCENT,
  },
  "private thread pool": {"group": "threading", "private_threadpool_size": 1},
  "one intra-op thread": {"group": "threading", "max_intra_op_parallelism": 1},
  "warm start": {"experimental_warm_start": True},
  "not deterministic": {"deterministic": False},
  "deterministic": {"deterministic": True},
  "slack": {"experimental_slack": True},
}


# From malloc.h: allocations of at least this many bytes go back to the system when they are freed.
_M_MMAP_THRESHOLD = -3


def resident():
  """The resident memory of this process, in bytes.

  From the first call on, large allocations go back to the system when they are freed. Otherwise small allocations
  between them, such as TensorFlow's for each graph, would randomly keep some of that memory in the process.
  """
  ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)
  gc.collect()
  with open("/proc/self/statm", encoding="ascii") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
