"""Stages whose samples include their generation, and checks of the guarantees."""

import collections
import functools
import math
import pathlib
import tempfile

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from support import datasets

RANDOM_ACCESS = ("range", "slices", "mapped", "records")
STREAMS = ("stream of known length", "stream")


# Kept until the process ends.
DIRECTORY = tempfile.TemporaryDirectory(prefix="refurbish_tf_records_")


@functools.cache
def files_of_numbers(n):
  """Two files with the records 0 to n - 1, the first a third as long as the second."""
  paths = []
  for begin, end in ((0, n // 4), (n // 4, n)):
    paths.append(str(pathlib.Path(DIRECTORY.name) / f"{begin}-{end}"))
    with tf.io.TFRecordWriter(paths[-1]) as writer:
      for i in range(begin, end):
        writer.write(b"%d" % i)
  return paths


def make_source(kind, n):
  if kind == "records":
    return rtf.sources.tfrecord(files_of_numbers(n)).map(lambda record: tf.strings.to_number(record, tf.int64))
  if kind == "range":
    return tf.data.Dataset.range(n)
  if kind == "slices":
    return tf.data.Dataset.from_tensor_slices(tf.range(n, dtype=tf.int64))
  if kind == "mapped":
    return tf.data.Dataset.range(n).map(tf.identity, num_parallel_calls=2)
  stream = datasets.stream(n)
  return stream if kind == "stream" else stream.apply(tf.data.experimental.assert_cardinality(n))


class Pipeline:
  """A refurbish stage that records for which samples partial_fn runs."""

  def __init__(self, kind, n, r, *, seed=1, sizes=None, **options):
    self.n, self.r = n, r
    self.prepared = []

    def record(index):
      self.prepared.append(int(index))
      return index

    def partial_fn(index, seed):
      index = tf.ensure_shape(tf.numpy_function(record, [index], tf.int64), [])
      sample = tf.concat([[index], tf.cast(seed, tf.int64)], axis=0)
      if sizes is None:
        return sample
      return sample, tf.zeros([tf.gather(sizes, index)], tf.uint8)

    def final_fn(sample, *rest, seed):
      del rest
      return tf.concat([sample, tf.cast(seed, tf.int64)], axis=0)

    self.dataset = make_source(kind, n).refurbish(partial_fn, final_fn, r, seed=seed, **options)

  def epoch(self, stop=None):
    """Reads an epoch, or its first `stop` elements. Returns them as an array [elements, 5]."""
    dataset = self.dataset if stop is None else self.dataset.take(stop)
    return np.array(list(dataset.as_numpy_iterator())).reshape([-1, 5])

  def calls(self):
    """Returns how often partial_fn has run since the last call."""
    calls, self.prepared = collections.Counter(self.prepared), []
    return calls

  @property
  def stats(self):
    return datasets.stats(self.dataset)


def assert_whole(epoch, n):
  assert sorted(epoch[:, 0]) == list(range(n))


def assert_spread(fresh, number):
  """G4: in every window of W of the N places, W * F / N of them are fresh, rounded up or down."""
  n = len(fresh)
  until = np.concatenate([[0], np.cumsum(fresh)])
  assert until[-1] == number
  for begin in range(n):
    for end in range(begin + 1, n + 1):
      assert abs(until[end] - until[begin] - (end - begin) * number / n) < 1 + 1e-9


class Uses:
  """Tracks which partially augmented samples are used, epoch by epoch."""

  def __init__(self, r):
    self.r = r
    self.latest = {}
    self.counts = collections.Counter()
    self.retired = set()

  def add(self, epoch):
    """Returns, for each place of the epoch, whether its partially augmented sample is new."""
    fresh = []
    for index, *seed in epoch[:, :3].tolist():
      sample = (index, *seed)
      fresh.append(self.latest.get(index) != sample)
      if fresh[-1] and index in self.latest:
        self.retired.add(self.latest[index])
      assert sample not in self.retired, "an evicted sample was handed out again"
      self.latest[index] = sample
      self.counts[sample] += 1
      assert self.counts[sample] <= math.ceil(self.r)  # G2.
    return fresh
