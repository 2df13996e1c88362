"""Batches of a stage: how far `prefetch` reads ahead, and how dropped remainders and early stops affect the epoch."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine
from support import cases
from support.datasets import stats, with_options

N = 23
IMAGES = np.random.default_rng(1).integers(0, 256, [N, 12, 12, 3], np.uint8)


STAGES = {
  "refurbish": lambda images: images.refurbish([rtf.augment.random_flip()], r=1),
  "batch": lambda images: images.refurbish([rtf.augment.random_flip()], r=1).batch(4),
  "options": lambda images: with_options(images.refurbish([rtf.augment.random_flip()], r=1)),
  "echo": lambda images: images.echo(2),
  "adaptive echo": lambda images: with_options(images, deterministic=False).echo(rtf.AUTOTUNE),
  "offload": lambda images: images.offload([rtf.augment.random_flip()], 4),
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_prefetch_reads_few_elements_ahead(stage):
  """The autotuner is off, so nothing else would bound the buffer that TensorFlow doubles after each pause."""
  dataset = stage(tf.data.Dataset.from_tensor_slices(IMAGES))
  assert not dataset.options().autotune.enabled
  for asked, size in ((tf.data.AUTOTUNE, 2), (None, 2), (7, 7)):
    assert dataset.prefetch(asked)._buffer_size.numpy() == size
  with_autotuner = tf.data.Options()
  with_autotuner.autotune.enabled = True
  source = tf.data.Dataset.from_tensor_slices(IMAGES).with_options(with_autotuner)
  assert stage(source).prefetch(tf.data.AUTOTUNE)._buffer_size.numpy() == tf.data.AUTOTUNE


def settled(count):
  """Returns the count when it has stopped rising."""
  before = None
  while count() != before:
    before = count()
    time.sleep(0.1)
  return before


PREFETCHED = {
  "map": lambda stage, counted: stage.map(counted),
  "batch, map": lambda stage, counted: stage.batch(2).map(counted),
  "padded batch": lambda stage, counted: stage.map(counted).padded_batch(2, [100]),
  "repeat": lambda stage, counted: stage.batch(2).map(counted).repeat(),
  "beside it": lambda stage, counted: tf.data.Dataset.zip(
    stage.repeat(),
    tf.data.Dataset.range(9).repeat().map(lambda i: counted(tf.zeros([100], tf.uint8))).prefetch(tf.data.AUTOTUNE),
  ),
}


@pytest.mark.parametrize(
  "pipeline", [pytest.param("map"), *(pytest.param(name, marks=cases.slow) for name in list(PREFETCHED)[1:])]
)
@pytest.mark.parametrize("options", [False, True])
def test_prefetch_in_other_places_stays_within_its_memory_limit(monkeypatch, pipeline, options):
  """TensorFlow doubles its buffer after each pause."""
  produced = []

  def counted(element):
    return tf.ensure_shape(tf.numpy_function(lambda x: (produced.append(1), x)[1], [element], tf.uint8), element.shape)

  monkeypatch.setattr(machine, "room_for_reading_ahead", lambda: 1700)
  stage = tf.data.Dataset.range(10_000).refurbish(lambda i: tf.zeros([100], tf.uint8), r=1, seed=1)
  dataset = PREFETCHED[pipeline](with_options(stage, deterministic=True) if options else stage, counted).prefetch(
    tf.data.AUTOTUNE
  )
  iterator = iter(dataset)
  ahead = taken = 0
  for _ in range(7):
    ahead = max(ahead, settled(lambda: len(produced)) - taken)
    for _ in range(80):
      next(iterator)
      taken += 2 if pipeline == "padded batch" else 1
  # The buffer of `prefetch`, and the element in progress; a padded batch has two samples.
  assert 2 <= ahead <= 16 + 2


def test_a_memory_limit_set_by_the_user_is_kept():
  ours = tf.data.Dataset.range(9).refurbish(lambda i: i, seed=1)
  assert 0 < ours.options().autotune.ram_budget <= 2**29
  for options in ({"ram_budget": 7}, {"enabled": True}):
    given = with_options(tf.data.Dataset.range(9), "autotune", **options)
    assert given.refurbish(lambda i: i, seed=1).options().autotune.ram_budget == options.get("ram_budget")


def varying(n, **how):
  """Samples of varying size under a limit: reuse begins once the stage has seen all samples."""
  return tf.data.Dataset.range(n).refurbish(
    lambda i: tf.fill([i % 3 + 5], i),
    lambda x: tf.ensure_shape(x[:4], [4]),
    r=3,
    seed=7,
    store=rtf.CacheStore(max_bytes=1 << 20),
    **how,
  )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_dropped_remainder_ends_the_epoch(deterministic, known):
  """Keras knows the number of batches and requests no further one."""
  stage = varying(400 + 3, deterministic=deterministic)
  batches = stage.batch(8, drop_remainder=True)
  if not known:
    list(batches)
  for _ in range(5):
    assert len(list(itertools.islice(batches, len(batches)))) == 50
  epochs = stats(batches).epochs[0 if known else 1 :]
  assert [epoch.fresh + epoch.cached for epoch in epochs] == [403] * 5
  assert all(130 <= epoch.fresh <= 140 for epoch in epochs[1:])


def test_an_error_in_a_dropped_remainder_is_raised():
  def partial_fn(i):
    with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(9, tf.int64))]):
      return tf.fill([4], i)

  batches = tf.data.Dataset.range(10).refurbish(partial_fn, r=3, seed=7).batch(4, drop_remainder=True)
  found = []
  for _ in range(12):
    found.append("")
    iterator = iter(batches)
    while not found[-1].endswith("."):
      try:
        found[-1] += "." if next(iterator, None) is None else "b"
      except tf.errors.InvalidArgumentError:
        found[-1] += "e"
  assert all(each.count("e") == 1 for each in found) and "bbe." in found


@pytest.mark.parametrize(
  "leave", [lambda stage: tf.data.Dataset.batch(stage, 4, drop_remainder=True), lambda stage: stage.take(9)]
)
def test_epochs_left_early_lead_to_reuse(leave):
  stage = varying(11)
  left = leave(stage)
  for _ in range(16):
    list(itertools.islice(left, len(left)))
  epochs = stats(stage).epochs
  assert epochs[0].cached == 0 and all(epoch.cached > 0 for epoch in epochs[-4:])
