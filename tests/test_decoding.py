"""`decode_and_crop`: which part of a JPEG file is decoded, and what is refused."""
import collections
import math

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import native
from support import final_reference as reference
from support.images import make_seeds

augment = rtf.augment
# Height and width: common ones, one pixel, and some that no window of the ratios fits into.
SIZES = [(300, 400), (64, 48), (1, 1), (2, 3), (10, 200), (200, 10), (1, 77)]


def _file(height, width, channels=3):
  # Each pixel encodes its position, as far as JPEG keeps that.
  rows, columns = np.mgrid[:height, :width]
  image = np.stack([rows % 256, columns % 256, (rows + columns) % 256][:channels], axis=-1)
  # With a coarser grid for colours, those at the edges of a part depend on pixels beyond it.
  return tf.io.encode_jpeg(tf.constant(image, tf.uint8), quality=95, chroma_downsampling=False)


def _window(height, width, seed, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
  layers = augment.random_resized_crop(1, scale, ratio).described(-1)
  return native.ops().refurbish_tf_resized_crop_box(shape=[height, width, 3], seed=seed, layers=layers).numpy().tolist()


@pytest.mark.parametrize("scale, ratio", [
    ((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.5), (1, 1)), ((1, 1), (0.5, 2)), ((0.001, 0.002), (0.1, 10))])
def test_windows_are_those_of_the_reference(scale, ratio):
  attempts = collections.Counter()
  for height, width in SIZES:
    for seed in make_seeds(20):
      layer = reference.ResizedCrop(1, 1, scale, ratio)
      expected = list(layer.box(height, width, layer.draws(seed)))
      assert _window(height, width, seed, scale, ratio) == expected
      top, left, h, w = expected
      assert 0 <= top <= top + h <= height and 0 <= left <= left + w <= width and h > 0 and w > 0
      attempts[expected[2:] == [height, width]] += 1
  assert attempts[False]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("height, width", [(300, 400), (1, 1), (10, 200)])
def test_it_is_that_part_of_the_decoded_image(height, width, channels):
  file = _file(height, width, channels)
  decoded = tf.io.decode_jpeg(file, channels=3).numpy()
  layer = augment.decode_and_crop()
  for seed in make_seeds(10):
    top, left, h, w = _window(height, width, seed)
    part = layer(file, seed=seed).numpy()
    np.testing.assert_array_equal(part, decoded[top:top + h, left:left + w])


def test_the_crop_is_drawn_from_the_seed_alone():
  file, layer = _file(300, 400), augment.decode_and_crop()
  seeds = make_seeds(30)
  eager = [layer(file, seed=seed).numpy() for seed in seeds]
  in_graph = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: layer(file, seed=seed))
  assert in_graph.element_spec == tf.TensorSpec([None, None, 3], tf.uint8)
  for one, other in zip(eager, in_graph.as_numpy_iterator()):
    np.testing.assert_array_equal(one, other)
  assert len({part.tobytes() for part in eager}) == len(seeds)


@pytest.mark.parametrize("file", [
    tf.io.encode_png(tf.zeros([8, 8, 3], tf.uint8)).numpy(), b"", b"BM....", b"no image at all"], ids=range(4))
def test_no_jpeg(file):
  layer = augment.decode_and_crop()
  with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG.*decode_image"):
    layer(tf.constant(file), seed=[1, 2])
  in_graph = tf.data.Dataset.from_tensors(file).map(lambda file: layer(file, seed=[1, 2]))
  with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG.*decode_image"):
    next(iter(in_graph))


def test_a_damaged_jpeg():
  with pytest.raises(tf.errors.InvalidArgumentError):
    augment.decode_and_crop()(_file(30, 30).numpy()[:100], seed=[1, 2])


@pytest.mark.parametrize("file, error, match", [
    (tf.zeros([8, 8, 3], tf.uint8), TypeError, "uint8"),
    (tf.constant(["a", "b"]), ValueError, r"\(2,\)")])
def test_other_elements(file, error, match):
  with pytest.raises(error, match=match):
    augment.decode_and_crop()(file, seed=[1, 2])


@pytest.mark.parametrize("arguments, error", [
    ({"scale": 0.5}, TypeError), ({"scale": (0.5,)}, TypeError), ({"scale": (True, 1)}, TypeError),
    ({"ratio": "ab"}, TypeError), ({"scale": (0, 1)}, ValueError), ({"scale": (0.5, 1.5)}, ValueError),
    ({"scale": (0.9, 0.5)}, ValueError), ({"ratio": (0, 1)}, ValueError), ({"ratio": (1, math.inf)}, ValueError),
    ({"ratio": (math.nan, 1)}, ValueError)])
def test_arguments(arguments, error):
  name, = arguments
  with pytest.raises(error, match=f"^{name} of decode_and_crop "):
    augment.decode_and_crop(**arguments)
