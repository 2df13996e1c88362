"""Iterators of a refurbish stage, one or many: whole epochs whatever reads them, and no thread or memory left."""
import random
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

import refurbish_tf as rtf
from support import cases
from support.datasets import call_in_python, fresh, resident, stats, stream

Dataset = tf.data.Dataset


# Behind the stage. ------------------------------------------------------------------------------------------------------


def test_transformations_behind_the_stage():
  dataset = stream(10).refurbish(lambda x: 10 * x, r=2, seed=1)
  whole = [10 * x for x in range(10)]
  assert sorted(np.concatenate(list(dataset.batch(3).as_numpy_iterator()))) == whole
  assert [len(batch) for batch in dataset.batch(3, drop_remainder=True).as_numpy_iterator()] == [3, 3, 3]
  assert sorted(dataset.prefetch(3).map(tf.identity, num_parallel_calls=2).as_numpy_iterator()) == whole
  assert sorted(dataset.shuffle(10).as_numpy_iterator()) == whole
  assert sorted(dataset.enumerate().map(lambda i, x: x - 0 * i).as_numpy_iterator()) == whole
  assert sorted(dataset.filter(lambda x: x > 30).as_numpy_iterator()) == whole[4:]
  assert sorted(x for x, _ in Dataset.zip(dataset, Dataset.range(10)).as_numpy_iterator()) == whole
  assert sorted(dataset.concatenate(Dataset.range(2)).as_numpy_iterator()) == sorted(whole + [0, 1])
  assert int(dataset.reduce(np.int64(0), tf.add)) == sum(whole)
  cached = dataset.cache()
  assert list(cached.as_numpy_iterator()) == list(cached.as_numpy_iterator())
  assert sorted(cached.as_numpy_iterator()) == whole
  assert sorted(dataset.ignore_errors().as_numpy_iterator()) == whole
  # All of these are epochs of one stage, and no epoch was begun that was not read.
  assert all(epoch.fresh + epoch.cached == 10 for i, epoch in enumerate(stats(dataset).epochs) if i != 1)


@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
def test_repeat(source):
  """The epochs of .repeat() are epochs of the stage."""
  dataset = source.refurbish(tf.identity, r=2, seed=1).repeat(4)
  values = np.reshape(list(dataset.as_numpy_iterator()), [4, 10])
  assert np.array_equal(np.sort(values), [range(10)] * 4)
  assert len({tuple(epoch) for epoch in values}) == 4
  assert fresh(dataset) == [10, 5, 5, 5]
  forever = source.refurbish(tf.identity, r=2, seed=1).repeat()
  assert np.array_equal(np.reshape(list(forever.take(40).as_numpy_iterator()), [4, 10]), values)


def test_an_iterator_that_is_made_but_not_read_begins_no_epoch():
  source = Dataset.range(10)
  for dataset in (source.refurbish(tf.identity), source.refurbish(tf.identity, tf.identity).batch(2).prefetch(2)):
    iterators = [iter(dataset) for _ in range(5)]
    del iterators
    assert stats(dataset).epochs == ()


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range(50), stream(50)], ids=["range", "stream"])
@pytest.mark.parametrize("options", [
    {"r": 2.7, "shuffle_buffer_size": 7}, {"deterministic": False, "max_bytes": 160}, {"num_parallel_calls": None}], ids=str)
def test_many_threads(source, options):
  """Iterators in several threads, some stopped early, while samples are removed: all epochs are whole."""
  options = dict(options)
  store = rtf.CacheStore(max_bytes=options.pop("max_bytes", None))
  dataset = source.refurbish(tf.identity, tf.identity, store=store, seed=1, **options)
  failures = []

  def work(number):
    randomly = random.Random(number)
    try:
      for _ in range(4):
        stop = randomly.choice([None, None, randomly.randrange(50)])
        values = [int(value) for value in (dataset if stop is None else dataset.take(stop))]
        assert sorted(values) == list(range(50)) if stop is None else len(set(values)) == stop
        store.clear()
    except BaseException as error:
      failures.append(error)

  threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert not failures and not any(thread.is_alive() for thread in threads)


# Threads and memory. ----------------------------------------------------------------------------------------------------


def test_a_dropped_dataset_frees_its_samples():
  """They are freed with the last dataset or iterator that uses them; until then there is one copy of each."""
  mebibyte = 2**20

  def use():
    dataset = Dataset.range(10).refurbish(lambda x: tf.fill([8 * mebibyte], tf.cast(x, tf.uint8)), r=100, seed=1)
    for _ in range(2):
      for _ in dataset:
        pass
    assert stats(dataset).total.bytes == 80 * mebibyte
    iterator = iter(dataset)
    next(iterator)
    del dataset
    for _ in iterator:
      pass

  before = resident()
  use()
  once = resident()
  assert once - before < 140 * mebibyte  # 80, and those in progress.
  # Freed memory may stay with the process, but is used again.
  for _ in range(2):
    use()
  assert resident() - once < 60 * mebibyte


def test_many_datasets_take_no_memory():
  """Whatever a created, read and dropped dataset leaves behind would add up."""
  options = tf.data.Options()  # Rewriting takes most of the time and is not under test.
  options.experimental_optimization.apply_default_optimizations = False
  options.autotune.enabled = False
  partial_fn = tf.autograph.experimental.do_not_convert(lambda x: tf.fill([4_000_000], tf.cast(x, tf.uint8)))
  make = lambda: Dataset.range(2).refurbish(partial_fn, r=2, num_parallel_calls=None).with_options(options)
  # Most are built from a graph, without the tracing, whose memory is only TensorFlow's.
  dataset = make()
  spec, graph = dataset.element_spec, dataset._as_serialized_graph()
  del dataset

  def make_and_read(number):
    for i in range(number):
      dataset = make() if i % 5 == 0 else dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)
      for _ in dataset:
        pass

  make_and_read(200 if cases.exhaustive else 20)
  base = resident()
  make_and_read(800 if cases.exhaustive else 100)
  # The one sample that each of them caches would add up to 400 MB, or 80 MB for those built by Python alone.
  assert resident() - base < 60 * 2**20


def test_a_blocked_epoch_takes_no_lock():
  """While partial_fn of one iterator is blocked, another one reads its epoch of cached samples, and stats answers."""
  go, blocked = threading.Event(), threading.Event()
  armed = []

  def block(x):
    if armed:
      blocked.set()
      go.wait(60)
    return x

  store = rtf.CacheStore()
  dataset = Dataset.range(10).refurbish(
      lambda x: call_in_python(tf.autograph.experimental.do_not_convert(block), x), r=1000, seed=1, store=store)
  list(dataset)
  store.remove(3)
  armed.append(True)
  reader = threading.Thread(target=lambda: list(dataset), daemon=True)
  reader.start()
  assert blocked.wait(60)
  store.put(3, tf.constant(3, tf.int64))
  result = []
  read_and_ask = lambda: result.append((sorted(dataset.as_numpy_iterator()), len(stats(dataset).epochs)))
  other = threading.Thread(target=read_and_ask, daemon=True)
  other.start()
  other.join(30)
  finished = not other.is_alive()
  go.set()
  reader.join(30)
  assert finished and not reader.is_alive()
  assert result == [(list(range(10)), 3)]
