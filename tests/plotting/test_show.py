"""rtf.show draws what the pipeline yields, sample by sample and epoch by epoch, and leaves the pipeline as it was."""

import re
import sys

from hypothesis import example, given, settings, strategies as st
import matplotlib.colors
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.plotting import copies, figure as figures
from support import cases
from support.datasets import stats, stream

IMAGES = np.random.default_rng(7).integers(0, 256, [12, 16, 24, 3], np.uint8)
PARTIAL, FINAL = [rtf.augment.rand_augment()], [rtf.augment.random_crop(padding=2), rtf.augment.random_flip()]


def source(n=12):
  return tf.data.Dataset.from_tensor_slices((IMAGES[:n], np.arange(n)))


def drawn(figure):
  """Returns the arrays of a figure's images, by row and column, without axes that have no image."""
  grid = {}
  for place in figure.axes:
    at = place.get_subplotspec()
    if place.images:
      grid.setdefault(at.rowspan.start, []).append([np.asarray(image.get_array()) for image in place.images])
  return [grid[row] for row in sorted(grid)]


def colours(figure):
  """Returns the colours of the frames, by row and column."""
  grid = {}
  for place in figure.axes:
    grid.setdefault(place.get_subplotspec().rowspan.start, []).append(
      matplotlib.colors.to_hex(place.spines["left"].get_edgecolor())
    )
  return [grid[row] for row in sorted(grid)]


def titles(figure):
  return [text.get_text() for place in figure.axes for text in place.texts]


def draw(x, seed):
  return tf.concat([tf.reshape(x, [-1]), tf.random.stateless_uniform([1], seed, 0, 2**62, tf.int64)], axis=0)


@settings(max_examples=cases.examples(3), derandomize=True)
@given(
  n=st.integers(1, 12),
  r=st.sampled_from([1, 1.5, 2.7, 3]),
  seed=st.integers(-(2**63), 2**63 - 1),
  order_seed=st.one_of(st.none(), st.integers(0, 5)),
  capacity=st.one_of(st.none(), st.integers(1, 12)),
  eviction=st.sampled_from(["balanced", "balanced", "reference_count"]),
  shuffle=st.sampled_from(["cache_aware", "uniform"]),
  shards=st.sampled_from([1, 1, 2]),
  takes_seed=st.booleans(),
)
@example(
  n=12, r=2.7, seed=1, order_seed=3, capacity=7, eviction="balanced", shuffle="cache_aware", shards=1, takes_seed=True
)
@example(
  n=12, r=3, seed=-1, order_seed=None, capacity=None, eviction="balanced", shuffle="uniform", shards=2, takes_seed=True
)
@example(
  n=7,
  r=2.7,
  seed=2,
  order_seed=None,
  capacity=5,
  eviction="reference_count",
  shuffle="cache_aware",
  shards=1,
  takes_seed=False,
)
def test_samples_are_those_of_the_first_epochs(n, r, seed, order_seed, capacity, eviction, shuffle, shards, takes_seed):
  """Samples are shown in the order of the first epoch."""
  n, prepared = n * shards, []

  def partial_fn(x, seed):
    return draw(tf.ensure_shape(tf.numpy_function(lambda x: prepared.append(int(x)) or x, [x], tf.int64), []), seed)

  def dataset():
    # The store has room for `capacity` samples of two int64 each, and a little more.
    store = rtf.CacheStore(max_bytes=None if capacity is None else 16 * capacity + 9)
    return (
      tf.data.Dataset.range(100, 100 + n)
      .shard(shards, shards - 1)
      .refurbish(
        partial_fn,
        draw if takes_seed else None,
        r,
        store=store,
        seed=seed,
        order_seed=order_seed,
        eviction=eviction,
        shuffle=shuffle,
      )
    )

  found = copies.samples_of(dataset(), 5, 5)
  prepared.clear()
  whole = dataset()
  for number, (samples, fresh) in enumerate(zip(found.epochs, found.fresh)):
    prepared.clear()
    yielded = [each.tolist() for each in whole.as_numpy_iterator()]
    assert [each.numpy().tolist() for each in samples] == [
      next(each for each in yielded if each[0] == sample[0]) for sample in samples
    ]
    assert fresh == [sample[0] in prepared for sample in samples]
    if number == 0:
      assert [each.numpy().tolist() for each in samples] == yielded[:5]


def test_a_stream_of_unknown_length_begins_with_its_first_samples():
  found = copies.samples_of(stream(1000).refurbish(draw, r=1000, seed=1), 3, 2)
  assert [int(each[0]) for each in found.epochs[0]] == [0, 1, 2]
  assert found.fresh == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_stage_is_as_before(tmp_path, on_disk):
  def dataset(name):
    store = rtf.CacheStore(tmp_path / name) if on_disk else None
    return source().refurbish(PARTIAL, FINAL, r=3, seed=7, store=store).batch(5)

  shown, other = dataset("a"), dataset("b")
  for _ in range(2):
    rtf.show(shown, num_samples=1, num_epochs=2)
    for (images, labels), (others, other_labels) in zip(shown, other, strict=True):
      np.testing.assert_array_equal(images, others)
      np.testing.assert_array_equal(labels, other_labels)
  assert [(epoch.fresh, epoch.cached, epoch.bytes) for epoch in stats(shown).epochs] == [
    (epoch.fresh, epoch.cached, epoch.bytes) for epoch in stats(other).epochs
  ]
  assert len(stats(shown).epochs) == 2


def test_variables_and_random_numbers_are_as_before():
  counter = tf.Variable(0)
  numbers = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True)

  def count(image, label):
    return image + tf.cast(counter.assign_add(1) * 0, tf.uint8), label

  train = tf.data.Dataset.zip(source().refurbish(count, r=2, seed=7), numbers).map(lambda sample, _: sample)
  rtf.show(train, num_samples=1, num_epochs=1)
  assert int(counter) == 0
  again = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True)
  assert list(numbers.take(3).as_numpy_iterator()) == list(again.take(3).as_numpy_iterator())


@pytest.mark.parametrize(
  "dataset",
  [
    lambda stage: stage,
    lambda stage: stage.batch(5),
    lambda stage: stage.batch(4, drop_remainder=True).prefetch(2).repeat(9),
    lambda stage: stage.map(lambda image, label: {"label": label, "image": image}).batch(3),
    lambda stage: (
      stage.batch(2).shuffle(9).map(lambda image, label: (tf.ensure_shape(image, [None, 16, 24, 3]), label))
    ),
    lambda stage: stage.padded_batch(5),
    lambda stage: stage.ragged_batch(5),
  ],
)
def test_shown_images_equal_the_yielded_ones(dataset):
  stage = source().refurbish(PARTIAL, FINAL, r=3, seed=7)
  figure = rtf.show(dataset(stage), num_samples=3, num_epochs=3, class_names=[f"name {k}" for k in range(12)])
  labels = [int(title.removeprefix("name ")) for title in titles(figure)]
  for epoch in range(3):
    yielded = {int(label): image for image, label in stage.as_numpy_iterator()}
    for row, label in enumerate(labels):
      np.testing.assert_allclose(drawn(figure)[row][epoch][0], yielded[label] / 255, atol=1e-6)
  found = copies.samples_of(stage, 3, 3).fresh
  assert (
    colours(figure) == [[figures.FRESH if each else figures.CACHED for each in row] for row in zip(*found)]
    and len(labels) == 3
  )
  assert [place.get_xlabel() for place in figure.axes[-3:]] == ["epoch 0", "epoch 1", "epoch 2"]


@pytest.mark.parametrize("keep", [lambda batches: batches, lambda batches: batches.cache()])
def test_fewer_samples_than_asked_for_in_a_last_batch(keep):
  figure = rtf.show(keep(source(3).refurbish(PARTIAL, FINAL, r=3, seed=7).batch(2)), num_samples=4, num_epochs=2)
  assert len(drawn(figure)) == 3


def test_plain_pipelines():
  """A row is one sample, although `shuffle` would mix them. Samples that `cache` keeps are the same in all epochs."""

  def change(image, label):
    # Uses the time, because random numbers repeat in each epoch if an earlier test has set TensorFlow's seed.
    return image + tf.cast(tf.cast(1e6 * tf.timestamp(), tf.int64) % 251, tf.uint8), label

  train = source().shuffle(12).map(change).batch(5).prefetch(1)
  found = copies.samples_of(train, 7, 3)
  assert [[int(label) for _, label in samples] for samples in found.epochs] == [list(range(7))] * 3
  assert found.fresh == [[True] * 7] * 3
  assert not all(np.array_equal(first, second) for (first, _), (second, _) in zip(*found.epochs[:2]))
  figure = rtf.show(source().map(change).cache().shuffle(12).batch(5).repeat(), num_samples=6, num_epochs=2)
  assert all(np.array_equal(first, second) for first, second in drawn(figure))
  assert colours(figure) == [[figures.FRESH, figures.CACHED]] * 6
  assert len(drawn(rtf.show(source(2), num_samples=3))) == 2


def test_mixed_labels_have_their_own_titles():
  train = source(4).refurbish(PARTIAL, FINAL, r=2, seed=7).batch(4).map(rtf.augment.mixup(1.0, num_classes=12))
  figure = rtf.show(train, num_epochs=2, class_names=list("abcdefghijkl"))
  mixed = [place.get_title() for place in figure.axes if "+" in place.get_title()]
  assert len(mixed) > 3 and all(re.fullmatch(r"[a-d] \d+% \+ [a-d] \d+%", title) for title in mixed)


def test_operations_that_change_the_number_of_samples_are_refused():
  train = source().refurbish(PARTIAL, r=2).batch(2).map(lambda image, label: (image[:1], label[:1]))
  with pytest.raises(ValueError, match="changes their number"):
    rtf.show(train)
  with pytest.raises(ValueError, match="changes their number"):
    rtf.show(tf.data.Dataset.zip(source().refurbish(PARTIAL, r=2), source(2)).map(lambda sample, _: sample))


def test_into_a_figure():
  figure = matplotlib.figure.Figure()
  _, part = figure.subfigures(2, 1)
  assert rtf.show(source(), num_samples=1, figure=part) is part and part.axes == figure.axes and len(part.axes) == 4


def test_without_matplotlib(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  monkeypatch.setitem(sys.modules, "matplotlib.patches", None)
  with pytest.raises(ImportError, match=r"pip install 'refurbish_tf\[show\]'"):
    rtf.show(source())


@pytest.mark.parametrize(
  "arguments, error, message",
  [
    (lambda: ([1, 2], IMAGES[0]), TypeError, "layers of compose"),
    (lambda: ([], IMAGES[0]), ValueError, r"at least one layer.*got \[\]"),
    (lambda: (rtf.augment.random_flip(), IMAGES[0]), TypeError, r"got random_flip.*\[layer\]"),
    (lambda: (rtf.augment.compose(FINAL), IMAGES[0]), TypeError, r"Put a layer into a list"),
    (lambda: (source(), 4), TypeError, "num_samples by its name"),
    (lambda: (tf.data.Dataset.range(3),), ValueError, r"must yield images.*int64\[\]"),
    (lambda: (source().refurbish(PARTIAL).offload([rtf.augment.random_flip()], 2),), ValueError, "offload.*before it"),
    (lambda: (source().refurbish(PARTIAL).filter(lambda *_: True),), ValueError, "through filter"),
    (lambda: (tf.data.Dataset.zip(source().refurbish(PARTIAL), source().cache()),), ValueError, "side by side in zip"),
    (
      lambda: (
        tf.data.Dataset.from_tensors({"image": IMAGES[0], "mask": IMAGES[0, ..., 0]})
        .refurbish(FINAL, targets={"mask": "mask"})
        .map(lambda each: each["image"]),
      ),
      ValueError,
      "no component 'mask'",
    ),
  ],
)
def test_elements_that_cannot_be_drawn_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    rtf.show(*arguments())


@pytest.mark.parametrize(
  "options, error",
  [
    ({"num_samples": 0}, ValueError),
    ({"num_epochs": 2**31}, ValueError),
    ({"targets": {1: "x"}}, ValueError),
    ({"targets": {5: "mask"}}, ValueError),
  ],
)
def test_bad_options(options, error):
  with pytest.raises(error):
    rtf.show(source(), **options)
