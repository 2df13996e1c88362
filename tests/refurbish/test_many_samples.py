"""Stages of many samples: their computed orders, memory and checkpoints."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph, native
from support import schedule
from support.checkpoint_states import state_of
from support.checkpoints import restore, save, with_checkpoints

# So many samples that orders are computed instead of shuffled.
N = 70_000


def make(store=None, **options):
  # The seeds of a sample show the epoch of its generation.
  return (
    tf.data.Dataset.range(N)
    .refurbish(lambda x, seed: tf.stack([x, tf.cast(seed[0], tf.int64)]), r=3, seed=1, store=store, **options)
    .batch(1000)
  )


def epoch(dataset):
  return np.concatenate([batch.numpy() for batch in dataset])


def bytes_beside_store(dataset):
  stage = next(each for each in dataset_graph.upstream_first(dataset) if hasattr(each, "refurbish_stage"))
  (described,) = native.rows(native.ops().refurbish_tf_refurbish_description(stage=stage.refurbish_stage))
  return described["bytes_beside_store"]


def test_computed_orders_match_their_epochs(tmp_path):
  """This includes orders after a restore to another epoch."""
  dataset = make()
  specified = schedule.Schedule(1, N, 3)
  epochs = [epoch(dataset) for _ in range(4)]
  for number, (each, later) in enumerate(itertools.pairwise(epochs)):
    np.testing.assert_array_equal(each[:, 0], specified.epoch(number))
    assert (each[:, 0] == later[:, 0]).mean() < 0.01
  again = make()
  paths = []
  for number, each in enumerate(epochs[:3]):
    paths.append(save(iter(again), tmp_path / str(number)))
    np.testing.assert_array_equal(epoch(again), each)
  restored = restore(again, paths[1])
  np.testing.assert_array_equal(epoch(restored), epochs[1])
  np.testing.assert_array_equal(epoch(again), epochs[2])


def test_two_iterators_at_once():
  expected = [epoch(dataset) for dataset in [make()] * 3]
  dataset = make()
  first, second = iter(dataset), iter(dataset)
  both = [(next(first).numpy(), next(second).numpy()) for _ in range(N // 1000)]
  for parts, each in zip(zip(*both), expected):
    np.testing.assert_array_equal(np.concatenate(parts), each)
  np.testing.assert_array_equal(epoch(dataset), expected[2])


@pytest.mark.parametrize("on_disk", [False, True])
def test_at_most_3_bytes_a_sample_beside_a_store_in_memory(on_disk, tmp_path):
  dataset = make(tmp_path if on_disk else None)
  for _ in range(2):
    iterator = iter(dataset)
    next(iterator)
    assert bytes_beside_store(dataset) < (13 if on_disk else 3) * N
    for _ in iterator:
      pass
  under_way = bytes_beside_store(dataset)
  del iterator
  # The order and the bits of an epoch are freed with its iterator.
  assert bytes_beside_store(dataset) <= under_way


def test_notes_about_fitting_samples_are_freed_when_the_schedule_begins():
  """Until it is known how many samples fit, the stage notes which ones do."""
  store = rtf.CacheStore(max_bytes=12 * N // 2)
  dataset = (
    tf.data.Dataset.range(N)
    .refurbish(lambda x: tf.fill([1 + x % 2], x), r=3, seed=1, store=store)
    .map(tf.size)
    .batch(1000)
  )
  iterator = iter(dataset)
  for _ in iterator:
    pass
  noted = bytes_beside_store(dataset)
  next(iter(dataset))
  assert noted > 4 * N
  assert bytes_beside_store(dataset) < 3 * N


def test_symbolic_checkpoints_do_not_copy_all_bits_again_and_again(tmp_path):
  """The list of samples yielded since the last copy may grow to the size of the bits."""
  dataset = with_checkpoints(make())
  iterator = iter(dataset)
  yielded, states, counted = [], [], []
  for _ in range(9):
    yielded.append(next(iterator).numpy()[:, 0])
    counted.append(bytes_beside_store(dataset))
    states.append(state_of(iterator).values)
  # The memory of the list of yielded samples is counted.
  assert counted[1] > counted[0]
  bits = [np.unpackbits(state["yielded"], bitorder="little").sum() for state in states]
  # The bits were not copied again for each batch of 1,000.
  assert len(set(bits)) <= 5
  for state, number in zip(states, range(1, 10)):
    known = np.flatnonzero(np.unpackbits(state["yielded"], bitorder="little"))
    told = np.concatenate([known, state["yielded_since"], state["yielded_last"]])
    assert set(np.concatenate(yielded[:number])) <= set(told.tolist())
    assert len(state["yielded_last"]) <= 1024
  restored = restore(dataset, save(iterator, tmp_path))
  np.testing.assert_array_equal(next(restored), next(iterator))
