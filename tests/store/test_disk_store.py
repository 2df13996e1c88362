"""The cache store on disk: guarantees of a stage on it, and runs that continue where earlier ones stopped."""

import gc
import math
import os

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.pipelines import Pipeline, RANDOM_ACCESS, Uses, assert_whole
from support.stores import delete, drop, new_path

SOME = settings(max_examples=cases.examples(6), derandomize=True)


@SOME
@given(
  kind=st.sampled_from(["range", "mapped", "stream of known length", "stream"]),
  n=st.integers(1, 24),
  r=st.sampled_from([1, 1.5, 2, 3, math.pi]),
  runs=st.lists(st.integers(1, 4), min_size=1, max_size=3),
  large=st.booleans(),
)
def test_runs_continue_where_the_last_one_stopped(root, kind, n, r, runs, large):
  """G1, G2, G3 and G5 hold over several runs, as if the runs were one."""
  path = new_path(root)
  uses, total, number = Uses(r), 0, 0
  for epochs in runs:
    pipeline = Pipeline(kind, n, r, store=path, sizes=[20_000 * large] * n)
    for _ in range(epochs):
      epoch = pipeline.epoch()
      assert_whole(epoch, n)
      fresh = uses.add(epoch)
      calls = pipeline.calls()
      assert set(calls.values()) <= {1}
      if number == 0:
        assert len(calls) == n
      else:
        total += len(calls)
        assert set(calls) == set(epoch[fresh, 0])
        assert total == math.floor(number * n / r + 1e-9)
      number += 1
    drop(pipeline)


@cases.each_value
@pytest.mark.parametrize("kind", cases.some(RANDOM_ACCESS, 2))
@pytest.mark.parametrize("epochs", [1, 3])
def test_yields_what_the_store_in_memory_yields(root, kind, epochs):
  """Identity: the store affects which samples are prepared, never the elements, even if it is lost between two runs.

  Then only the order of that epoch differs, because a lost sample is noticed when it is read.
  """
  memory = Pipeline(kind, 50, 3)
  expected = [memory.epoch() for _ in range(6)]
  path = new_path(root)
  disk = Pipeline(kind, 50, 3, store=path)
  for number in range(epochs):
    np.testing.assert_array_equal(disk.epoch(), expected[number])
  drop(disk)
  for name in os.listdir(path):
    if name.startswith("small-"):
      os.remove(os.path.join(path, name))
  disk = Pipeline(kind, 50, 3, store=path)
  np.testing.assert_array_equal(sorted(disk.epoch().tolist()), sorted(expected[epochs].tolist()))
  for number in range(epochs + 1, 6):
    np.testing.assert_array_equal(disk.epoch(), expected[number])
  drop(disk)


def test_takes_the_seed_of_the_store(root):
  path = new_path(root)
  first = Pipeline("range", 20, 2, seed=None, store=path)
  first.epoch()
  drop(first)
  second = Pipeline("range", 20, 2, seed=None, store=path)
  second.epoch()
  assert sum(second.calls().values()) == 10
  drop(second)


@pytest.mark.parametrize(
  "samples",
  [
    lambda x: {"image": tf.fill([40, 40], x), "name": tf.strings.as_string(x)},
    lambda x: (tf.ragged.range(tf.stack([x, 0, 2 * x])), tf.sparse.from_dense([x, 0, x])),
    lambda x: (x % 2 == 0, tf.cast(x, tf.complex64), tf.cast(tf.fill([x % 3, 700], x), tf.bfloat16), tf.zeros([0, 3])),
    lambda x: ((), x, (tf.fill([10], tf.cast(x, tf.float32)), {"b": tf.fill([1000], tf.strings.as_string(x))})),
  ],
)
def test_keeps_samples_of_any_structure(root, samples):
  source = tf.data.Dataset.range(1, 9)
  expected = [tf.nest.map_structure(_dense, element, expand_composites=False) for element in source.map(samples)]
  dataset = source.refurbish(samples, r=4, seed=3, store=new_path(root))
  for _ in range(3):
    got = [tf.nest.map_structure(_dense, element, expand_composites=False) for element in dataset]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))
  assert rtf.stats(dataset)[0].total.cached > 0


def _dense(component):
  if isinstance(component, tf.RaggedTensor):
    return component.to_list()
  if isinstance(component, tf.SparseTensor):
    return tf.sparse.to_dense(component).numpy().tolist()
  return np.asarray(component).tolist()


def test_samples_are_aligned_for_tensorflow(root):
  """Kernels abort on unaligned tensors."""
  dataset = tf.data.Dataset.range(64).refurbish(
    lambda x: (x, tf.fill([600], tf.cast(x, tf.float32)), tf.fill([100], tf.cast(x, tf.float64))),
    lambda x, a, b: tf.reduce_sum(tf.linalg.matmul(a[None], a[:, None])) + tf.cast(tf.reduce_sum(b), tf.float32),
    r=3,
    store=new_path(root),
  )
  for _ in range(3):
    assert sorted(dataset.as_numpy_iterator()) == [600.0 * x * x + 100 * x for x in range(64)]


def test_limit(root):
  """G8: samples beyond max_bytes are prepared in every epoch, evenly spread, and the others as usual."""
  n = 40
  store = rtf.CacheStore(new_path(root), max_bytes=20 * 1152)  # A sample of 1,000 bytes takes 1,152.
  dataset = tf.data.Dataset.range(n).refurbish(
    lambda x: (x, tf.zeros([1000], tf.uint8)), lambda x, _: x, r=2, store=store
  )
  for epoch in range(6):
    assert sorted(dataset.as_numpy_iterator()) == list(range(n))
    assert store.stats().bytes <= store.max_bytes
    assert rtf.stats(dataset)[0].epochs[epoch].fresh == (n if epoch == 0 else 20 + 10)


def test_samples_put_by_hand_persist_until_the_next_run(root):
  path = new_path(root)
  store = rtf.CacheStore(path)
  store.put(2**20, {"a": tf.constant([1.0, 2.0]), "b": "text"})
  store.put(7, {"a": tf.constant([3.0]), "b": "more"})
  store.put(7, {"a": tf.constant([4.0]), "b": "replaced"})
  del store
  store = rtf.CacheStore(path)
  assert len(store) == 2 and 7 in store and 8 not in store
  assert store.get(2**20)["a"].numpy().tolist() == [1.0, 2.0]
  assert store.get(7)["b"].numpy() == b"replaced"
  assert store.remove(7).numpy() and 7 not in store
  assert store.verify() == (1, 0)
  with pytest.raises(tf.errors.NotFoundError, match="no sample at index 7"):
    store.get(7)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"index .*2\*\*28"):
    store.put(2**28, {"a": tf.constant([4.0]), "b": "far"})


def test_structure_is_kept_when_a_put_is_refused(root):
  """A refused put writes nothing that a stage would find, now or in the next run."""
  path = new_path(root)
  early = rtf.CacheStore(path)
  dataset = tf.data.Dataset.range(10).refurbish(lambda x: x + 1, r=1000, store=path)
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))
  with pytest.raises(ValueError, match="^sample .*structure"):
    early.put(3, tf.constant(1.5))
  assert early.get(3).numpy() == 4
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))
  again = rtf.CacheStore(path, element_spec=dataset.element_spec)
  assert again.get(5).numpy() == 6


def test_limit_with_samples_of_different_size_after_an_early_stop(root):
  """The same number of samples is kept as without the early stop."""
  n = 60
  sizes = [200 + 100 * (i % 7) for i in range(n)]

  def run(stops):
    path = new_path(root)
    for stop in stops:
      store = rtf.CacheStore(path, max_bytes=20_000)
      # One call at a time, so that few samples are read ahead of the stop.
      pipeline = Pipeline("range", n, 2, sizes=sizes, store=store, num_parallel_calls=None)
      pipeline.epoch(stop)
      drop(pipeline)
      del store
    return int(rtf.CacheStore(path)._agree({})["num_kept_samples"])

  kept = run([None])
  assert 10 < kept < n
  # The store is nearly full, but has not yet had to choose what to keep.
  for stop in cases.some(range(20, 40, 2), 3):
    assert run([stop, None]) == kept
  assert run([50, 10, None]) == kept


@pytest.mark.parametrize("kind, read", [("range", 80), ("stream", 20), ("stream", 80)])
def test_training_continues_without_its_directory(root, capfd, kind, read):
  """G1: all epochs are whole, with at most one line of warning. Samples that cannot be kept are prepared again."""
  n, path = 40, new_path(root)
  pipeline = Pipeline(kind, n, 2, sizes=[20_000] * n, store=path)
  for _ in range(read // n):
    pipeline.epoch()
  pipeline.epoch(read % n)
  delete(path)
  for _ in range(4):
    assert_whole(pipeline.epoch(), n)
  assert not os.path.exists(path)
  assert capfd.readouterr().err.count("the cache store") <= 1
  drop(pipeline)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_store_with_a_deleted_directory_is_not_reused(root, made_anew):
  """No later run could find its samples. Once nothing uses the store, the directory can be used again."""
  path = new_path(root)
  store = rtf.CacheStore(path)
  dataset = tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=store)
  list(dataset)
  delete(path)
  if made_anew:
    os.mkdir(path)
  for open_again in (
    lambda: rtf.CacheStore(path),
    lambda: tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=path),
    lambda: tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=store),
  ):
    with pytest.raises(ValueError, match="deleted"):
      open_again()
  assert sorted(map(int, dataset)) == list(range(6))  # The stage that already uses it goes on.
  del store, dataset
  gc.collect()
  store = rtf.CacheStore(path)
  assert len(store) == 0
  store.put(0, 5)
  assert int(rtf.CacheStore(path).get(0)) == 5
