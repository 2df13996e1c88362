"""`resize`: the pixels of `tf.image.resize`, for images and batches, and what it refuses."""
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support import final_reference as reference
from support.images import noise

# Height and width, before and after: larger, smaller, both, neither; one pixel; sides that end within a vector.
SIZES = [
    ((348, 348), (224, 224)), ((500, 333), (224, 150)), ((37, 53), (224, 131)), ((64, 48), (48, 64)), ((9, 17), (9, 17)),
    ((1, 1), (3, 5)), ((1, 40), (7, 1)), ((40, 1), (1, 7)), ((300, 200), (2, 3)), ((2000, 3), (1, 1)), ((5, 700), (6, 6))]


def _difference(one, other):
  return np.abs(np.asarray(one, int) - np.asarray(other, int)).max()


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size, to_size", SIZES)
def test_is_within_one_level_of_tensorflow(size, to_size, antialias):
  for channels in cases.some([1, 4, 3], 1) if max(size) > 100 else [1, 3, 4]:
    image = noise(*size, channels)
    expected = tf.image.resize(image, to_size, antialias=antialias)
    made = augment.resize(to_size, antialias)(image)
    assert made.dtype == tf.uint8 and made.shape == [*to_size, channels]
    assert _difference(made, np.rint(expected)) <= 1


@pytest.mark.parametrize("side", range(1, 34))
def test_of_every_size(side):
  """Vectors hold several pixels and two rows; what is left at the end is done one by one."""
  image = noise(29, 31, 3)
  for size in ((side, 20), (20, side)):
    assert _difference(augment.resize(size)(image), reference.Resize(*size).pixels(image, [])) <= 1


def test_averages_by_default_unless_told():
  """White pixels that are not in the middle are part of the mean, or not seen at all."""
  image = np.zeros([100, 100, 1], np.uint8)
  image[21:81:10, 21:81:10] = 255
  assert augment.resize((1, 1))(image).numpy() > 0
  assert augment.resize((1, 1), antialias=False)(image).numpy() == 0


def test_draws_nothing():
  layer = augment.resize((5, 6))
  assert layer.draws([7, 0]).shape == [0] and layer.draws([7, 0], 3).shape == [3, 0]
  image = noise(9, 9, 3)
  np.testing.assert_array_equal(layer.pixels(image, np.zeros([0], np.int32)), layer(image))
  # Layers after it draw what they draw without it, at the same positions.
  alone = augment.compose([tf.identity, augment.random_crop(padding=4)])
  behind = augment.compose([augment.resize((9, 9)), augment.random_crop(padding=4)])
  np.testing.assert_array_equal(alone(image, seed=[7, 0]), behind(image, seed=[7, 0]))


@pytest.mark.parametrize("arguments, error, said", [
    ({"size": 0}, ValueError, "size .* 0"), ({"size": (3, 0)}, ValueError, r"size .*\(3, 0\)"),
    ({"size": 65_536}, ValueError, "size .*65536"), ({"size": 2.0}, TypeError, "size .*2.0"),
    ({"size": (1, 2, 3)}, TypeError, "size "), ({"size": True}, TypeError, "size "), ({"size": None}, TypeError, "size "),
    ({"size": 8, "antialias": 1}, TypeError, "antialias .*1"), ({"size": 8, "antialias": "no"}, TypeError, "antialias ")])
def test_arguments(arguments, error, said):
  with pytest.raises(error, match=f"^{said.replace(' ', ' of resize ', 1)}"):
    augment.resize(**arguments)


def test_repr():
  assert repr(augment.resize((224, 224))) == "resize((224, 224), antialias=True)"
