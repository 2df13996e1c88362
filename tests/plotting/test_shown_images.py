"""rtf.show draws images of all kinds, with their targets, labels and titles."""

import io
import itertools

import matplotlib.colors
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.augment.target_kinds import BOXES
from refurbish_tf.plotting import copies
from test_show import FINAL, IMAGES, PARTIAL, drawn, source, titles

Dataset = tf.data.Dataset


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
  # This also works after a function that moves the images to another component. If a function has changed the images,
  # all samples share one range.
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
  """All images are drawn with values from 0 to 1."""
  (cell, *_), *_ = drawn(rtf.show(Dataset.from_tensor_slices(images), num_samples=1, num_epochs=1))
  assert cell[0].shape[:2] == images.shape[1:3] and 0 <= cell[0].min() <= cell[0].max() <= 1


def test_targets():
  """Targets are found in the component into which a function has put them."""
  masks = (IMAGES[..., 0] > 127).astype(np.int32)
  boxes, labels = (
    np.tile(np.float32([[2, 3, 12, 11], [0, 0, 0, 0], [-1, -1, -1, -1]]), [12, 1, 1]),
    np.tile([3, 1, 0], [12, 1]),
  )
  points = np.tile(np.float32([[12, 8, 1], [11, 7, 0]]), [12, 1, 1])
  train = Dataset.from_tensor_slices(
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
  """The component of empty boxes is not confused with another empty one, and padding is not drawn."""

  def few(index):
    return {
      "image": tf.gather(IMAGES, index),
      "boxes": tf.ones([index, 1]) * [[1.0, 2, 9, 8]],
      "labels": 7 * tf.ones([index], tf.int32),
    }

  # With this seed, the first sample has no box.
  train = Dataset.range(4).map(few).refurbish([rtf.augment.random_flip()], r=2, seed=5, targets={"boxes": "xyxy"})
  dataset = train.map(lambda each: (each["labels"], each["image"], each["boxes"])).padded_batch(
    4, padding_values=(-1, None, -1.0)
  )
  places = rtf.show(dataset, num_epochs=1).axes
  assert sorted(len(place.patches) for place in places) == [0, 1, 2, 3]
  assert {text.get_text() for place in places for text in place.texts if text.get_text()} == {"7"}
  single = Dataset.from_tensors((IMAGES[0], np.float32([1, 2, 9, 8]), 3))
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
    Dataset.from_tensors((IMAGES[0], np.float32([row]))), num_samples=1, num_epochs=1, targets={1: kind}
  )
  (box,) = figure.axes[0].patches
  np.testing.assert_allclose(
    [box.get_x(), box.get_y(), box.get_width(), box.get_height()], np.array([4, 2, 8, 6]) / 16, atol=1e-5
  )


def test_clips_views_and_files(tmp_path):
  clips = Dataset.from_tensors((IMAGES, tf.cast(IMAGES[..., 0] > 127, tf.int32), 3)).refurbish(
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
  """Second images are shown separately, whatever their size, place and channels, and not drawn over the first one."""
  high = np.arange(12 * 32 * 48 * 5, dtype=np.float32).reshape(12, 32, 48, 5) / (12 * 32 * 48 * 5)
  train = Dataset.from_tensor_slices({"high": high, "image": IMAGES / np.float32(255)}).refurbish(
    [rtf.augment.random_crop(8)], [rtf.augment.random_flip(p=1)], r=2, seed=7, targets={"high": "image"}
  )
  yielded = copies.samples_of(train, 1, 1).epochs[0][0]
  for dataset in (train, train.map(lambda each: (each["high"], each["image"])).batch(3)):
    (place,) = rtf.show(dataset, num_samples=1, num_epochs=1).axes
    first, second = place.images
    np.testing.assert_allclose(first.get_array(), yielded["image"], atol=1e-6)
    np.testing.assert_allclose(second.get_array(), yielded["high"][..., :3], atol=1e-6)
    assert second.get_array().shape == (16, 16, 3) and first.get_extent()[1] < second.get_extent()[0]
  files = Dataset.from_tensors((tf.io.encode_png(IMAGES[0]), high[0]))
  assert [each.shape for each in drawn(rtf.show(files, num_epochs=1, targets={1: "image"}))[0][0]] == [
    (16, 24, 3),
    (32, 48, 3),
  ]
  clip = Dataset.from_tensors((IMAGES, IMAGES[:, ::-1]))
  ((cell,),) = drawn(rtf.show(clip, num_samples=1, num_epochs=1, targets={1: "image"}))
  assert [np.allclose(cell[len(cell) // 2 + k], cell[k][::-1]) for k in range(len(cell) // 2)] == [True] * 12


@pytest.mark.parametrize("kind", ["flow", "vectors", "disparity"])
def test_flow_and_disparity(kind):
  """Longer vectors are more opaque, and unknown or zero ones are transparent. The hue is the direction of a flow."""
  value = np.zeros([16, 24, 1 if kind == "disparity" else 2], np.float32)
  value[0, :4] = [[4], [4], [2], [2]] if kind == "disparity" else [[4, 0], [0, 4], [-2, 0], [0, -2]]
  value[1] = np.nan
  ((cell,),) = drawn(rtf.show(Dataset.from_tensors((IMAGES[0], value)), num_samples=1, num_epochs=1, targets={1: kind}))
  colours = cell[1]
  np.testing.assert_allclose(colours[0, :4, 3], [0.7, 0.7, 0.35, 0.35], atol=1e-6)
  assert not colours[1:, :, 3].any() and np.isfinite(colours).all()
  if kind != "disparity":
    hues = matplotlib.colors.rgb_to_hsv(colours[0, :4, :3])[:, 0]
    np.testing.assert_allclose(hues, [0, 0.25, 0.5, 0.75], atol=0.02)


def test_boxes_and_points_keep_their_colours():
  """Each row of boxes or points keeps its colour even if earlier rows are gone."""
  boxes, points = np.float32([[1, 2, 9, 8], [4, 3, 12, 9], [2, 2, 9, 9]]), np.float32([[3, 4, 1], [9, 8, 1], [5, 5, 1]])
  found = []
  for gone in (0, 1):
    given = (IMAGES[0], boxes * (np.arange(3) >= gone)[:, None], points * [[1, 1, row >= gone] for row in range(3)])
    (place,) = rtf.show(Dataset.from_tensors(given), num_epochs=1, targets={1: "xyxy", 2: "xy"}).axes
    found.append(
      [[each.get_edgecolor() for each in place.patches], [tuple(each.get_facecolor()[0]) for each in place.collections]]
    )
  (boxes, points), rest = found
  assert rest == [boxes[1:], points[1:]] and len({*boxes}) == len({*points}) == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_images_without_values(value):
  image = np.full([16, 24, 3], value, np.float32)
  figure = rtf.show(Dataset.from_tensors(image), num_epochs=1)
  figure.savefig(io.BytesIO())
  assert np.ptp(drawn(figure)[0][0][0]) == 0


@pytest.mark.parametrize("kind", BOXES)
def test_padding_is_not_drawn(kind):
  (place,) = rtf.show(
    Dataset.from_tensors((IMAGES[0], -np.ones([2, 4], np.float32))), num_epochs=1, targets={1: kind}
  ).axes
  assert not place.patches


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


def test_labels_are_not_parsed_as_formulas():
  labels = tf.constant(["5 $", "$\\frac{$", "a_b$c"])
  dataset = Dataset.from_tensor_slices((IMAGES[:3], labels, tf.constant([[[0.1, 0.1, 0.9, 0.9]]] * 3), labels[:, None]))
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
