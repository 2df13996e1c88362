"""The stage yields, bit for bit, what its specification `support/reference.py` yields."""

import itertools

from hypothesis import example, given, settings, strategies as st
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.reference import Refurbish


def partial_fn(x, seed, generation):
  return tf.stack([x, tf.random.stateless_uniform([], seed, 0, 2**62, tf.int64), generation])


def final_fn(sample, seed, epoch):
  return tf.concat([sample, tf.random.stateless_uniform([2], seed, 0, 2**62, tf.int64), [epoch]], axis=0)


# For each epoch: how many of its elements are read, and whether the stored samples are lost before it.
epochs = st.lists(st.tuples(st.one_of(st.none(), st.integers(1, 12)), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=cases.examples(10), derandomize=True)
@given(
  n=st.integers(1, 12),
  r=st.sampled_from([1, 1.5, 2, 2.7, 3, 7]),
  seed=st.integers(-(2**63), 2**63 - 1),
  order_seed=st.one_of(st.none(), st.integers(0, 5)),
  capacity=st.one_of(st.none(), st.integers(1, 12)),
  eviction=st.sampled_from(["balanced", "balanced", "reference_count"]),
  shuffle=st.sampled_from(["cache_aware", "cache_aware", "uniform"]),
  history=epochs,
  parallel=st.sampled_from([None, 3, tf.data.AUTOTUNE]),
)
@example(
  n=12,
  r=2.7,
  seed=1,
  order_seed=3,
  capacity=7,
  eviction="balanced",
  shuffle="cache_aware",
  parallel=3,
  history=[(None, False), (None, False), (5, False), (None, True), (None, False)],
)
@example(
  n=12,
  r=2,
  seed=1,
  order_seed=None,
  capacity=None,
  eviction="balanced",
  shuffle="uniform",
  parallel=None,
  history=2 * [(None, False)],
)
def test_the_stage_is_its_specification(n, r, seed, order_seed, capacity, eviction, shuffle, history, parallel):
  source = tf.data.Dataset.range(100, 100 + n).map(tf.identity)
  how = {"seed": seed, "order_seed": order_seed, "eviction": eviction, "shuffle": shuffle}
  # Room for `capacity` samples of three int64, and a little more, which is too small for another sample.
  store = rtf.CacheStore(max_bytes=None if capacity is None else 24 * capacity + 9)
  stage = source.refurbish(partial_fn, final_fn, r, store=store, num_parallel_calls=parallel, **how)
  reference = Refurbish(
    source,
    partial_fn,
    final_fn,
    r,
    capacity=capacity,
    store=rtf.CacheStore(element_spec=(tf.TensorSpec([], tf.int64), tf.TensorSpec([3], tf.int64))),
    **how,
  )
  for stop, lost in history:
    if lost:
      store.clear()
      reference.store.clear()
    stop = n if stop is None else min(stop, n)
    np.testing.assert_array_equal(
      list(stage.take(stop).as_numpy_iterator()), list(itertools.islice(reference.epoch(), stop))
    )


def test_the_specification_prepares_missing_samples():
  """Counts the calls, because the elements would be the same without a store."""
  prepared = []

  def counted(x, seed, generation):
    x = tf.ensure_shape(tf.numpy_function(lambda x: prepared.append(int(x)) or x, [x], tf.int64), [])
    return partial_fn(x, seed, generation)

  reference = Refurbish(
    tf.data.Dataset.range(12),
    counted,
    final_fn,
    3,
    seed=1,
    store=rtf.CacheStore(element_spec=(tf.TensorSpec([], tf.int64), tf.TensorSpec([3], tf.int64))),
  )
  for number in (12, 4, 4, 4, 4):
    prepared.clear()
    assert len(list(reference.epoch())) == 12
    assert len(prepared) == number == len(set(prepared))
