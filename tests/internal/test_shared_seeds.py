"""Stages with the same seed cause a warning if they are merged, and only then."""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import shared_seeds
from support.warned import told

D = tf.data.Dataset
X = np.zeros([6, 8, 8, 3], np.uint8)


def stage(source=X, seed=7, layers=(rtf.augment.random_flip,), **arguments):
  source = source if isinstance(source, D) else D.from_tensor_slices(source)
  return source.refurbish([layer() for layer in layers], r=2, seed=seed, **arguments)


def interleaved(stages):
  return D.sample_from_datasets(stages)


def concatenated(stages):
  first, *others = stages
  for other in others:
    first = first.concatenate(other)
  return first


def of_rotations(stages):
  return interleaved([each.batch(2).map(lambda images: images) for each in stages]).prefetch(1)


@pytest.mark.parametrize("merge", [interleaved, concatenated, of_rotations])
def test_stages_of_several_classes(merge):
  """Sample i of each stage gets the same random numbers. The warning comes once, and its remedies work."""
  train = merge([stage() for _ in range(4)])
  assert told(lambda: [iter(train) for _ in range(2)]) == [shared_seeds.SHARED_SEED.format(number=4, seed=7)]
  assert told(lambda: iter(merge([stage(seed=7 + k) for k in range(4)]))) == []
  assert told(lambda: iter(merge([stage(seed=None) for _ in range(4)]))) == []
  assert (
    told(lambda: iter(concatenated([D.from_tensor_slices(X)] * 3).refurbish([rtf.augment.random_flip()], r=2, seed=7)))
    == []
  )


def test_the_draws_are_shared():
  """The sharing that the warning describes does happen."""
  seeds_of = lambda *ends, seed: sorted(
    tuple(drawn) for drawn in D.range(*ends).refurbish(lambda i, seed: seed, r=2, seed=seed).as_numpy_iterator()
  )
  assert seeds_of(5, seed=7) == seeds_of(5, 10, seed=7)
  assert not set(seeds_of(5, seed=7)) & set(seeds_of(5, 10, seed=8))


def test_in_fit():
  train = interleaved([stage(), stage()]).map(lambda image: (tf.cast(image, tf.float32), 0)).batch(4)
  model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)])
  model.compile(loss="sparse_categorical_crossentropy")
  assert told(lambda: model.fit(train, epochs=2, verbose=0)) == [shared_seeds.SHARED_SEED.format(number=2, seed=7)]


def test_intentionally_shared_seeds_cause_no_warning():
  source = D.from_tensor_slices(X)
  one = stage()
  for pipeline in (
    lambda: [stage(), stage(X[1:])],  # Training and validation, folds, or a program that is run again.
    lambda: [D.zip(stage(), stage(X[1:]))],  # Images and their targets.
    lambda: [interleaved([stage(source), stage(source)])],  # One source twice.
    lambda: [interleaved([one, one])],
    lambda: [
      interleaved([stage(source.shard(2, i)) for i in range(2)])
    ],  # A sample's numbers depend on its index in the whole source.
    lambda: [
      interleaved([stage(), stage(X, layers=(rtf.augment.random_flip, rtf.augment.random_transpose))])
    ],  # The functions differ.
    lambda: [
      interleaved([D.range(4).refurbish(lambda i: i, r=2, seed=7), D.range(5).refurbish(lambda i: i, r=2, seed=7)])
    ],
  ):  # The functions of the last pipeline draw nothing.
    assert told(lambda: [list(each) for each in pipeline()]) == []


def test_equal_shards_of_several_sources():
  train = interleaved([stage(D.from_tensor_slices(X).shard(2, i)) for i in (0, 0, 1)])
  assert told(lambda: iter(train)) == [shared_seeds.SHARED_SEED.format(number=2, seed=7)]


def test_merged_zips():
  pairs = [D.zip(stage(), stage(X[1:])) for _ in range(2)]
  assert told(lambda: iter(interleaved(pairs))) == [shared_seeds.SHARED_SEED.format(number=2, seed=7)]
