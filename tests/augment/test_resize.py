"""`resize`: the pixels of `tf.image.resize`, and bad input; how `resize` and `decode` keep the aspect ratio."""

import io

import keras
import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support.images import noise

# Heights and widths before and after: larger, smaller, both, neither, one pixel, not a multiple of a vector.
TO_SIZES = [
  ((348, 348), (224, 224)),
  ((500, 333), (224, 150)),
  ((37, 53), (224, 131)),
  ((64, 48), (48, 64)),
  ((9, 17), (9, 17)),
  ((1, 1), (3, 5)),
  ((1, 40), (7, 1)),
  ((40, 1), (1, 7)),
  ((300, 200), (2, 3)),
  ((2000, 3), (1, 1)),
  ((5, 700), (6, 6)),
]


def _difference(one, other):
  return np.abs(np.asarray(one, int) - np.asarray(other, int)).max()


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size, to_size", TO_SIZES)
def test_is_within_one_level_of_tensorflow(size, to_size, antialias):
  for channels in cases.some([1, 4, 3], 1) if max(size) > 100 else [1, 3, 4]:
    image = noise(*size, channels)
    expected = tf.image.resize(image, to_size, antialias=antialias)
    made = augment.resize(to_size, antialias)(image)
    assert made.dtype == tf.uint8 and made.shape == [*to_size, channels]
    assert _difference(made, np.rint(expected)) <= 1


@pytest.mark.parametrize("side", range(1, 34))
def test_every_output_size_equals_tensorflow(side):
  """Vectors hold several pixels and two rows. The remainder is processed pixel by pixel."""
  image = noise(29, 31, 3)
  for size in ((side, 20), (20, side)):
    assert _difference(augment.resize(size)(image), np.rint(tf.image.resize(image, size, antialias=True))) <= 1


def test_antialiasing_is_on_by_default():
  """With antialiasing, white pixels away from the middle contribute to the mean. Without it they are ignored."""
  image = np.zeros([100, 100, 1], np.uint8)
  image[21:81:10, 21:81:10] = 255
  assert augment.resize((1, 1))(image).numpy() > 0
  assert augment.resize((1, 1), antialias=False)(image).numpy() == 0


def test_draws_nothing():
  layer = augment.resize((5, 6))
  assert layer.draws([7, 0]).shape == [0] and layer.draws([7, 0], 3).shape == [3, 0]
  image = noise(9, 9, 3)
  np.testing.assert_array_equal(layer.pixels(image, np.zeros([0], np.int32)), layer(image))
  # Later layers draw the same numbers as without `resize`, at the same positions.
  alone = augment.compose([tf.identity, augment.random_crop(padding=4)])
  behind = augment.compose([augment.resize((9, 9)), augment.random_crop(padding=4)])
  np.testing.assert_array_equal(alone(image, seed=[7, 0]), behind(image, seed=[7, 0]))


@pytest.mark.parametrize(
  "arguments, error, said",
  [
    ({"size": (3, 0)}, ValueError, r"size .*\(3, 0\)"),
    ({"size": 65_536}, ValueError, "size .*65536"),
  ],
)
def test_arguments(arguments, error, said):
  with pytest.raises(error, match=f"^{said.replace(' ', ' of resize ', 1)}"):
    augment.resize(**arguments)


# The aspect ratio. ----------------------------------------------------------------------------------------------------

SIZES = [(30, 40), (40, 30), (7, 50), (31, 31), (1, 9), (50, 23), (64, 33)]
TO = [(24, 24), (20, 33), (33, 20), (5, 64)]


def fitting(height, width, shape):
  """The largest size within height and width that has the aspect ratio of `shape`, rounded down as in Keras."""
  return max(1, min(height, width * shape[0] // shape[1])), max(1, min(width, height * shape[1] // shape[0]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_the_shortest_side(size, known):
  """Compares with torchvision's `Resize(n)`: the other side is int(n * long / short)."""
  for shortest in (1, 16, 45):
    long = int(shortest * max(size) / min(size))
    expected = (shortest, long) if size[0] <= size[1] else (long, shortest)
    image = noise(*size, 3)
    layer = tf.function(augment.resize(shortest)).get_concrete_function(
      tf.TensorSpec(image.shape if known else [None] * 3, tf.uint8)
    )
    assert layer.structured_outputs.shape.as_list() == ([*expected, 3] if known else [None] * 3)
    np.testing.assert_array_equal(layer(tf.constant(image)), augment.resize(expected)(image))
  batch = noise(3, *size, 1)
  np.testing.assert_array_equal(augment.resize(16)(batch), [augment.resize(16)(image) for image in batch])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", TO)
def test_crop_to_aspect_ratio_keeps_the_middle(size, to):
  image = noise(*size, 3)
  height, width = fitting(*size, to)
  top, left = (size[0] - height) // 2, (size[1] - width) // 2
  made = augment.resize(to, crop_to_aspect_ratio=True)(image)
  np.testing.assert_array_equal(made, augment.resize(to)(image[top : top + height, left : left + width]))
  plain = augment.resize(to, antialias=False, crop_to_aspect_ratio=True)(image)
  theirs = keras.layers.Resizing(*to, crop_to_aspect_ratio=True)(image.astype(np.float32))
  assert np.abs(plain.numpy() - np.rint(theirs)).max() <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", TO)
def test_pad_to_aspect_ratio_adds_borders(size, to):
  image = noise(*size, 3) // 2
  height, width = fitting(*to, size)
  top, left = (to[0] - height) // 2, (to[1] - width) // 2
  for fill in (0, 200):
    expected = np.full([*to, 3], fill, np.uint8)
    expected[top : top + height, left : left + width] = augment.resize((height, width))(image)
    np.testing.assert_array_equal(augment.resize(to, pad_to_aspect_ratio=True, fill_value=fill)(image), expected)
  # Keras pads before it resizes. Its borders end within one pixel of ours, or two where a side was rounded down.
  theirs = (
    np.asarray(keras.layers.Resizing(*to, pad_to_aspect_ratio=True, fill_value=255)(np.zeros([*size, 1], np.float32)))[
      ..., 0
    ]
    < 128
  )
  if min(size) > 20 and min(to) > 5:
    for axis, begin, length in ((0, top, height), (1, left, width)):
      inside = np.flatnonzero(theirs.any(1 - axis))
      assert abs(inside[0] - begin) <= 2 and abs(inside[-1] + 1 - begin - length) <= 2


@pytest.mark.parametrize(
  "options", [{}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True, "fill_value": 9}]
)
@pytest.mark.parametrize("at", [1, 2])
def test_targets_follow_at_every_split(options, at):
  """The image has a dark square on a light background. Its mask, box and center must follow it."""
  for size, to in ((40, 60), (32, 32)), ((60, 40), (32, 48)), ((40, 60), 24):
    if isinstance(to, int) and options:
      continue
    image, mask = np.full([*size, 3], 200, np.uint8), np.zeros(size, np.uint8)
    y, x = size[0] // 2 - 5, size[1] // 2 - 7
    image[y : y + 12, x : x + 12], mask[y : y + 12, x : x + 12] = 10, 1
    targets = {"mask": "mask", "boxes": "xyxy", "points": "xy", "clip": None}
    element = {
      "image": image,
      "mask": mask,
      "boxes": np.float32([[x, y, x + 12, y + 12]]),
      "points": np.float32([[x + 5.5, y + 5.5]]),
      "clip": 3,
    }
    partial, final = augment.split(
      [augment.resize(to, **options), augment.random_flip(p=0), augment.random_crop()], at, targets
    )
    made = final(partial(element, seed=[7, 0]) if at > 1 else partial(element), seed=[7, 0])
    np.testing.assert_array_equal(made["mask"].numpy()[made["image"].numpy()[..., 0] == 10], 1)
    rows, columns = np.flatnonzero(made["mask"].numpy().any(1)), np.flatnonzero(made["mask"].numpy().any(0))
    box = np.float32([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    assert np.abs(made["boxes"].numpy()[0] - box).max() <= 1.5
    assert np.abs(made["points"].numpy()[0] - (box[:2] + box[2:] - 1) / 2).max() <= 1.5
    assert made["mask"].shape == made["image"].shape[:2]


@pytest.mark.parametrize(
  "size, options",
  [(20, {}), ((24, 24), {"crop_to_aspect_ratio": True}), ((24, 40), {"pad_to_aspect_ratio": True, "fill_value": 77})],
)
def test_decode_does_the_same(size, options):
  for shape in cases.some([(30, 41), (50, 20), (33, 33)], 2):
    image = noise(*shape, 3)
    for dtype in (tf.uint8, tf.uint16):
      given = tf.constant(image if dtype == tf.uint8 else 257 * image.astype(np.uint16))
      if dtype == tf.uint16:
        options = {**options, "fill_value": 0}
      file = tf.io.encode_png(given)
      box = np.float32([[2, 3, 18, 17]])
      expected = augment.compose([augment.resize(size, **options)], {1: "xyxy"})(given, box)
      layer = augment.compose([augment.decode(size, dtype=dtype, apply_exif_orientation=True, **options)], {1: "xyxy"})
      for made, wanted in zip(layer(file, box), expected):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("number", [1, 6, 7])
@pytest.mark.parametrize(
  "size, options",
  [(20, {}), ((33, 20), {"crop_to_aspect_ratio": True}), ((24, 40), {"pad_to_aspect_ratio": True, "fill_value": 77})],
)
def test_a_scaled_and_turned_jpeg_keeps_the_same_part(size, options, number):
  """The result shows the same part as that of the whole upright photograph, with borders in the same place."""
  exif, file = Image.Exif(), io.BytesIO()
  exif[0x112] = number
  ramps = np.mgrid[:401, :303] * 0.6
  Image.fromarray(np.stack([*ramps, ramps[0]], -1).astype(np.uint8)).save(
    file, "JPEG", quality=97, subsampling=0, exif=exif
  )
  whole = augment.decode(apply_exif_orientation=True)(file.getvalue())
  made, expected = augment.decode(size, **options)(file.getvalue()), augment.resize(size, **options)(whole)
  assert made.shape == expected.shape
  assert np.abs(made.numpy().astype(int) - expected.numpy()).max() <= 4


@pytest.mark.parametrize(
  "make, match, error",
  [
    *cases.refused(
      ValueError=[
        (
          lambda: augment.resize(8, crop_to_aspect_ratio=True),
          r"\(height, width\) with crop_to.*Pass \(8, 8\) for a square",
        ),
        (lambda: augment.resize((8, 8), crop_to_aspect_ratio=True, pad_to_aspect_ratio=True), "must not both be True"),
        (lambda: augment.resize((8, 8), fill_value=3), "needs pad_to_aspect_ratio=True, got 3"),
        (lambda: augment.resize((8, 8), pad_to_aspect_ratio=True, fill_value=256), "fill_value of resize .* 0 to 255"),
        (
          lambda: augment.decode(crop_to_aspect_ratio=True),
          r"size of decode must be \(height, width\).*Pass \(224, 224\)",
        ),
        (
          lambda: augment.decode((8, 8), pad_to_aspect_ratio=True, fill_value=9, dtype=tf.uint16),
          "fill_value of decode must be 0",
        ),
        (lambda: augment.random_apply([augment.resize(8)]), "must keep the size"),
        (lambda: augment.resize(100)(np.zeros([2, 2000, 1], np.uint8)), "at most 65535 .*got 2 x 2000 .*smaller size"),
      ],
      TypeError=[
        (lambda: augment.resize((8, 8), pad_to_aspect_ratio="yes"), "must be True or False, got 'yes'"),
        (
          lambda: augment.resize((8, 8), pad_to_aspect_ratio=True, fill_value=9)(np.zeros([4, 5, 3], np.float32)),
          "must be uint8",
        ),
      ],
    ),
    (
      lambda: augment.decode(100)(tf.io.encode_png(np.zeros([2, 2000, 1], np.uint8))),
      "at most 65535",
      tf.errors.InvalidArgumentError,
    ),
  ],
)
def test_refuses(make, error, match):
  with pytest.raises(error, match=match):
    make()
