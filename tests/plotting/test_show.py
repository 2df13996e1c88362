"""rtf.show draws what the pipeline yields, sample by sample and epoch by epoch, and leaves the pipeline as it was."""

import io
import itertools
import re
import sys

from hypothesis import example, given, settings, strategies as st
import matplotlib.colors
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.augment.target_kinds import BOXES
from refurbish_tf.plotting import copies, figure as figures
from support import cases
from support.datasets import stats, stream

IMAGES = np.random.default_rng(7).integers(0, 256, [12, 16, 24, 3], np.uint8)
PARTIAL, FINAL = [rtf.augment.rand_augment()], [rtf.augment.random_crop(padding=2), rtf.augment.random_flip()]


def source(n=12):
  return tf.data.Dataset.from_tensor_slices((IMAGES[:n], np.arange(n)))


def drawn(figure):
  """By row and column the arrays of a figure's images, without axes that have none."""
  grid = {}
  for place in figure.axes:
    at = place.get_subplotspec()
    if place.images:
      grid.setdefault(at.rowspan.start, []).append([np.asarray(image.get_array()) for image in place.images])
  return [grid[row] for row in sorted(grid)]


def colours(figure):
  """By row and column the colour of the frame."""
  grid = {}
  for place in figure.axes:
    grid.setdefault(place.get_subplotspec().rowspan.start, []).append(
      matplotlib.colors.to_hex(place.spines["left"].get_edgecolor())
    )
  return [grid[row] for row in sorted(grid)]


def titles(figure):
  return [text.get_text() for place in figure.axes for text in place.texts]


# Samples and epochs
# ------------------------------------------------------------------------------------------------------


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
  """And those come first that the first epoch begins with."""
  n, prepared = n * shards, []

  def partial_fn(x, seed):
    return draw(tf.ensure_shape(tf.numpy_function(lambda x: prepared.append(int(x)) or x, [x], tf.int64), []), seed)

  def dataset():
    # Two int64 each, and a little room.
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
def test_what_is_drawn_is_what_is_yielded(dataset):
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
  """Rows are samples where `shuffle` would mix them; what `cache` keeps is the same in all epochs."""

  def change(image, label):
    # The time, as random numbers are the same in each epoch where an earlier test has set TensorFlow's seed.
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


# What is drawn
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "normalize",
  [
    rtf.augment.normalize(),
    rtf.augment.normalize(0.5, 0.5, "bfloat16"),
    rtf.augment.normalize([120.0, 110, 100], [60.0, 61, 62]),
  ],
)
def test_normalised_images_are_made_visible(normalize):
  train = source().refurbish(PARTIAL, [*FINAL, normalize], r=3, seed=7)
  few = {"num_samples": 2, "num_epochs": 2}
  plain = drawn(rtf.show(source().refurbish(PARTIAL, FINAL, r=3, seed=7), **few))
  for row, other in zip(drawn(rtf.show(train.batch(4), **few)), plain, strict=True):
    np.testing.assert_allclose([image for (image,) in row], [image for (image,) in other], atol=0.01)
  # Also after a function that puts them elsewhere. If one has changed them, all samples have one range.
  np.testing.assert_allclose(
    drawn(rtf.show(train.map(lambda image, label: {"image": image}), **few))[0][0][0], plain[0][0][0], atol=0.01
  )
  figure = rtf.show(train.map(lambda image, label: (9 * image, label)), **few)
  values = np.array([image for row in drawn(figure) for (image,) in row])
  assert (values.min(), values.max()) == (0, 1)


@pytest.mark.parametrize(
  "images",
  [
    IMAGES[..., :1],
    IMAGES[..., 0],
    IMAGES / np.float32(255),
    IMAGES.astype(np.float32),
    IMAGES.astype(np.uint16) * 257,
    IMAGES > 127,
    np.tile(IMAGES, 3),
    IMAGES.astype(np.int16) - 128,
    np.full_like(IMAGES, 7, np.float32),
    IMAGES[:, :1, :1],
    np.where(IMAGES < 9, np.nan, IMAGES / 255.0),
  ],
)
def test_kinds_of_images(images):
  """All of them are drawn within 0 to 1."""
  (cell, *_), *_ = drawn(rtf.show(tf.data.Dataset.from_tensor_slices(images), num_samples=1, num_epochs=1))
  assert cell[0].shape[:2] == images.shape[1:3] and 0 <= cell[0].min() <= cell[0].max() <= 1


def test_targets():
  """They are found where a function has put them."""
  masks = (IMAGES[..., 0] > 127).astype(np.int32)
  boxes, labels = (
    np.tile(np.float32([[2, 3, 12, 11], [0, 0, 0, 0], [-1, -1, -1, -1]]), [12, 1, 1]),
    np.tile([3, 1, 0], [12, 1]),
  )
  points = np.tile(np.float32([[12, 8, 1], [11, 7, 0]]), [12, 1, 1])
  train = tf.data.Dataset.from_tensor_slices(
    {"image": IMAGES, "mask": masks, "objects": {"bbox": boxes, "label": labels}, "points": points}
  ).refurbish(
    [rtf.augment.random_crop(12, padding=2)],
    [rtf.augment.normalize()],
    r=2,
    seed=7,
    targets={"mask": "mask", "objects": {"bbox": "xyxy"}, "points": "xy"},
  )
  moved = train.map(lambda each: (each["image"], each["mask"], each["objects"], each["points"])).batch(5)
  for dataset in (train, moved):
    figure = rtf.show(dataset, num_samples=2, num_epochs=2, class_names=list("abcdef"))
    yielded = {
      bytes(each["mask"]): each
      for each in copies.samples_of(train, 2, 1).epochs[0]
      for each in [tf.nest.map_structure(lambda value: value.numpy(), each)]
    }
    for place in figure.axes[::2]:
      image, overlay = (np.asarray(each.get_array()) for each in place.images)
      mask = next(each["mask"] for each in yielded.values() if np.array_equal(each["mask"] != 0, overlay[..., 3] > 0))
      sample = yielded[bytes(mask)]
      assert image.shape == (12, 12, 3)
      left, top, right, bottom = sample["objects"]["bbox"][0]
      (box,) = place.patches
      np.testing.assert_allclose(
        [box.get_x(), box.get_y(), box.get_width(), box.get_height()],
        np.array([left, top, right - left, bottom - top]) / 12,
        atol=1e-6,
      )
      assert [text.get_text() for text in place.texts if len(text.get_text()) == 1] == ["d"]
      seen = sample["points"][sample["points"][:, 2] != 0]
      np.testing.assert_allclose(
        [each.get_offsets()[0] for each in place.collections], (seen[:, :2] + 0.5) / 12, atol=1e-6
      )
      assert len(seen) == 1
  plain = rtf.show(moved.map(lambda image, mask, *_: (image, mask)), num_samples=1, num_epochs=1, targets={1: "mask"})
  assert [len(cell) for row in drawn(plain) for cell in row] == [2]


def test_samples_without_boxes():
  """Their place is not taken for that of something else that is empty, and padding is not drawn."""

  def few(index):
    return {
      "image": tf.gather(IMAGES, index),
      "boxes": tf.ones([index, 1]) * [[1.0, 2, 9, 8]],
      "labels": 7 * tf.ones([index], tf.int32),
    }

  # By this seed the first sample has none.
  train = (
    tf.data.Dataset.range(4).map(few).refurbish([rtf.augment.random_flip()], r=2, seed=5, targets={"boxes": "xyxy"})
  )
  dataset = train.map(lambda each: (each["labels"], each["image"], each["boxes"])).padded_batch(
    4, padding_values=(-1, None, -1.0)
  )
  places = rtf.show(dataset, num_epochs=1).axes
  assert sorted(len(place.patches) for place in places) == [0, 1, 2, 3]
  assert {text.get_text() for place in places for text in place.texts if text.get_text()} == {"7"}
  single = tf.data.Dataset.from_tensors((IMAGES[0], np.float32([1, 2, 9, 8]), 3))
  (place,) = rtf.show(single, num_epochs=1, targets={1: "xyxy"}).axes
  assert len(place.patches) == 1 and [text.get_text() for text in place.texts] == ["3"]


@pytest.mark.parametrize(
  "kind, row",
  [
    ("xyxy", [4, 2, 12, 8]),
    ("yxyx", [2, 4, 8, 12]),
    ("center_yxhw", [5, 8, 6, 8]),
    ("rel_xywh", [1 / 6, 1 / 8, 1 / 3, 3 / 8]),
  ],
)
def test_formats_of_boxes(kind, row):
  figure = rtf.show(
    tf.data.Dataset.from_tensors((IMAGES[0], np.float32([row]))), num_samples=1, num_epochs=1, targets={1: kind}
  )
  (box,) = figure.axes[0].patches
  np.testing.assert_allclose(
    [box.get_x(), box.get_y(), box.get_width(), box.get_height()], np.array([4, 2, 8, 6]) / 16, atol=1e-5
  )


def test_clips_views_and_files(tmp_path):
  clips = tf.data.Dataset.from_tensors((IMAGES, tf.cast(IMAGES[..., 0] > 127, tf.int32), 3)).refurbish(
    PARTIAL, FINAL, r=2, seed=7, targets={1: "mask"}
  )
  (cells,) = drawn(rtf.show(clips))
  # Three frames, each with its mask.
  assert [len(cell) for cell in cells] == [6] * 4
  views = source().map(lambda image, label: ((image, tf.reverse(image, [0])), label))
  ((cell,),) = drawn(rtf.show(views, num_samples=1, num_epochs=1))
  np.testing.assert_array_equal(cell[0][::-1], cell[1])
  for name in ("cats/1.png", "dogs/2.png"):
    (tmp_path / name).parent.mkdir()
    tf.io.write_file(str(tmp_path / name), tf.io.encode_png(IMAGES[0]))
  figure = rtf.show(rtf.sources.image_folder(tmp_path), num_epochs=1)
  assert titles(figure) == ["cats", "dogs"]
  np.testing.assert_allclose(drawn(figure)[0][0][0], IMAGES[0] / 255, atol=1e-6)


def test_second_images():
  """They are images of their own, whatever their size, place and channels, and are not drawn over the first one."""
  high = np.arange(12 * 32 * 48 * 5, dtype=np.float32).reshape(12, 32, 48, 5) / (12 * 32 * 48 * 5)
  train = tf.data.Dataset.from_tensor_slices({"high": high, "image": IMAGES / np.float32(255)}).refurbish(
    [rtf.augment.random_crop(8)], [rtf.augment.random_flip(p=1)], r=2, seed=7, targets={"high": "image"}
  )
  yielded = copies.samples_of(train, 1, 1).epochs[0][0]
  for dataset in (train, train.map(lambda each: (each["high"], each["image"])).batch(3)):
    (place,) = rtf.show(dataset, num_samples=1, num_epochs=1).axes
    first, second = place.images
    np.testing.assert_allclose(first.get_array(), yielded["image"], atol=1e-6)
    np.testing.assert_allclose(second.get_array(), yielded["high"][..., :3], atol=1e-6)
    assert second.get_array().shape == (16, 16, 3) and first.get_extent()[1] < second.get_extent()[0]
  files = tf.data.Dataset.from_tensors((tf.io.encode_png(IMAGES[0]), high[0]))
  assert [each.shape for each in drawn(rtf.show(files, num_epochs=1, targets={1: "image"}))[0][0]] == [
    (16, 24, 3),
    (32, 48, 3),
  ]
  clip = tf.data.Dataset.from_tensors((IMAGES, IMAGES[:, ::-1]))
  ((cell,),) = drawn(rtf.show(clip, num_samples=1, num_epochs=1, targets={1: "image"}))
  assert [np.allclose(cell[len(cell) // 2 + k], cell[k][::-1]) for k in range(len(cell) // 2)] == [True] * 12


@pytest.mark.parametrize("kind", ["flow", "vectors", "disparity"])
def test_flow_and_disparity(kind):
  """What is longer is more opaque, what is unknown or 0 is transparent; the hue is the direction of a flow."""
  value = np.zeros([16, 24, 1 if kind == "disparity" else 2], np.float32)
  value[0, :4] = [[4], [4], [2], [2]] if kind == "disparity" else [[4, 0], [0, 4], [-2, 0], [0, -2]]
  value[1] = np.nan
  ((cell,),) = drawn(
    rtf.show(tf.data.Dataset.from_tensors((IMAGES[0], value)), num_samples=1, num_epochs=1, targets={1: kind})
  )
  colours = cell[1]
  np.testing.assert_allclose(colours[0, :4, 3], [0.7, 0.7, 0.35, 0.35], atol=1e-6)
  assert not colours[1:, :, 3].any() and np.isfinite(colours).all()
  if kind != "disparity":
    hues = matplotlib.colors.rgb_to_hsv(colours[0, :4, :3])[:, 0]
    np.testing.assert_allclose(hues, [0, 0.25, 0.5, 0.75], atol=0.02)


def test_boxes_and_points_keep_their_colours():
  """Also when those before them are gone."""
  boxes, points = np.float32([[1, 2, 9, 8], [4, 3, 12, 9], [2, 2, 9, 9]]), np.float32([[3, 4, 1], [9, 8, 1], [5, 5, 1]])
  found = []
  for gone in (0, 1):
    given = (IMAGES[0], boxes * (np.arange(3) >= gone)[:, None], points * [[1, 1, row >= gone] for row in range(3)])
    (place,) = rtf.show(tf.data.Dataset.from_tensors(given), num_epochs=1, targets={1: "xyxy", 2: "xy"}).axes
    found.append(
      [[each.get_edgecolor() for each in place.patches], [tuple(each.get_facecolor()[0]) for each in place.collections]]
    )
  (boxes, points), rest = found
  assert rest == [boxes[1:], points[1:]] and len({*boxes}) == len({*points}) == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_images_without_values(value):
  image = np.full([16, 24, 3], value, np.float32)
  figure = rtf.show(tf.data.Dataset.from_tensors(image), num_epochs=1)
  figure.savefig(io.BytesIO())
  assert np.ptp(drawn(figure)[0][0][0]) == 0


@pytest.mark.parametrize("kind", BOXES)
def test_padding_is_not_drawn(kind):
  (place,) = rtf.show(
    tf.data.Dataset.from_tensors((IMAGES[0], -np.ones([2, 4], np.float32))), num_epochs=1, targets={1: kind}
  ).axes
  assert not place.patches


def test_what_changes_the_number_of_samples():
  train = source().refurbish(PARTIAL, r=2).batch(2).map(lambda image, label: (image[:1], label[:1]))
  with pytest.raises(ValueError, match="changes their number"):
    rtf.show(train)
  with pytest.raises(ValueError, match="changes their number"):
    rtf.show(tf.data.Dataset.zip(source().refurbish(PARTIAL, r=2), source(2)).map(lambda sample, _: sample))


def test_layers():
  layers = [
    rtf.augment.random_flip(),
    rtf.augment.normalize(),
    rtf.augment.rand_augment(2),
    *rtf.augment.auto_augment("cifar10"),
    tf.image.flip_up_down,
  ]
  figure = rtf.show(layers, IMAGES[0], num_epochs=3)
  assert titles(figure) == [
    "random_flip()",
    repr(layers[1]),
    ", ".join(map(repr, layers[2])),
    ", ".join(map(repr, layers[3:5])),
    "flip_up_down",
  ]
  rows = drawn(figure)
  # A layer that draws nothing has one outcome.
  assert [len(row) for row in rows] == [3, 1, 3, 3, 1]
  np.testing.assert_allclose(
    [image for (image,) in rows[0]],
    [rtf.augment.compose(layers[:1])(IMAGES[0], seed=[number, 0]) / 255 for number in range(3)],
    atol=1e-6,
  )
  file = tf.io.encode_png(IMAGES[0])
  rows = drawn(rtf.show([rtf.augment.decode_random_resized_crop(8), rtf.augment.random_flip()], file))
  assert [row[0][0].shape for row in rows] == [(8, 8, 3), (16, 24, 3)]

  # Titles are above the tallest image of their row.
  def lengthen(image, seed):
    return tf.pad(image, [[0, tf.random.stateless_uniform([], seed, 0, 40, tf.int32)], [0, 0], [0, 0]])

  figure = rtf.show([rtf.augment.random_flip(), lengthen], IMAGES[0], num_epochs=6)
  figure.savefig(io.BytesIO())
  tops = [place.get_window_extent().y1 for place in figure.axes[6:]]
  (title,) = figure.axes[6].texts
  assert tops[0] + 10 < max(tops) < title.get_window_extent().y0
  masked = drawn(rtf.show([rtf.augment.random_flip()], (IMAGES[0], IMAGES[0, ..., 0]), targets={1: "mask"}))
  assert len(masked[0][0]) == 2


def test_labels_are_no_formulas():
  labels = tf.constant(["5 $", "$\\frac{$", "a_b$c"])
  dataset = tf.data.Dataset.from_tensor_slices(
    (IMAGES[:3], labels, tf.constant([[[0.1, 0.1, 0.9, 0.9]]] * 3), labels[:, None])
  )
  figure = rtf.show(dataset, num_samples=3, num_epochs=1, targets={2: "rel_xyxy"})
  figure.savefig(io.BytesIO())
  assert set(titles(figure)) == {"5 $", "$\\frac{$", "a_b$c"}


def test_texts_of_many_epochs_do_not_overlap():
  train = source(4).refurbish(PARTIAL, FINAL, r=2, seed=7).batch(4).map(rtf.augment.mixup(1.0, num_classes=12))
  figure = rtf.show(train, num_samples=1, num_epochs=30, class_names=["a long name"] * 12)
  figure.savefig(io.BytesIO())
  line = [place for place in figure.axes if place.images]
  for texts in ([place.xaxis.label for place in line], [place.title for place in line]):
    assert len(texts) == 30 and all(text.get_text() for text in texts)
    ends = [text.get_window_extent() for text in texts]
    assert all(one.x1 <= other.x0 for one, other in itertools.pairwise(ends))


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
    (lambda: ([rtf.augment.random_flip()],), TypeError, "image must be given"),
    (lambda: ([], IMAGES[0]), ValueError, r"at least one layer.*got \[\]"),
    (lambda: (rtf.augment.random_flip(), IMAGES[0]), TypeError, r"got random_flip.*\[layer\]"),
    (lambda: (rtf.augment.compose(FINAL), IMAGES[0]), TypeError, r"Put a layer into a list"),
    (lambda: (source(), 4), TypeError, "num_samples by its name"),
    (lambda: (7,), TypeError, "must be a tf.data.Dataset"),
    (lambda: (tf.data.Dataset.range(3),), ValueError, r"must yield images.*int64\[\]"),
    (lambda: (source().take(0),), ValueError, "got none"),
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
def test_what_cannot_be_drawn(arguments, error, message):
  with pytest.raises(error, match=message):
    rtf.show(*arguments())


@pytest.mark.parametrize(
  "options, error",
  [
    ({"num_samples": 0}, ValueError),
    ({"num_epochs": 1.5}, TypeError),
    ({"class_names": "ab"}, TypeError),
    ({"targets": {1: "x"}}, ValueError),
    ({"targets": {5: "mask"}}, ValueError),
  ],
)
def test_bad_options(options, error):
  with pytest.raises(error):
    rtf.show(source(), **options)
