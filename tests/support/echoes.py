"""Datasets and functions whose elements and errors show how they were echoed."""

import threading

from hypothesis import settings
import numpy as np
import tensorflow as tf

from support import cases
from support.datasets import outcomes

# Far longer than anything here takes, so that a test fails instead of hanging.
LIMIT = 20
MANY = settings(max_examples=cases.examples(12), derandomize=True)


def contents(dataset):
  return [element.tolist() for element in dataset.as_numpy_iterator()]


def failing_at(n, *failures):
  def check(x):
    with tf.control_dependencies(
      [tf.debugging.assert_none_equal(x, tf.constant(failures, tf.int64), message="spoilt")]
    ):
      return tf.identity(x)

  return tf.data.Dataset.range(n).map(check)


def read(iterator):
  """The remaining elements; for each error, its message."""
  return [
    each.message if isinstance(each, tf.errors.InvalidArgumentError) else each.numpy().tolist()
    for each in outcomes(iterator)
  ]


class Calls:
  """An augmentation that counts its calls and returns a different result at each call."""

  def __init__(self):
    self.number = 0
    self._lock = threading.Lock()

  def __call__(self, x):
    return tf.stack([x, tf.ensure_shape(tf.numpy_function(self._next, [], tf.int64, stateful=True), [])])

  def _next(self):
    with self._lock:
      self.number += 1
      return np.int64(self.number)
