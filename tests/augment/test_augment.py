"""RandAugment's layers, and the distortions of all policies, compared with Pillow."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases
from support.images import IMAGES, TELLING, assert_equal, by_pillow, make_seeds

UNSIGNED = "identity auto_contrast equalize color contrast brightness sharpness solarize posterize".split()
SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NUMBERS = 2 * len(UNSIGNED) + 2 * len(SIGNED)


def meaning(number, magnitude):
  """Returns the distortion and its parameter for a drawn `number`, as in the paper's reference implementation."""
  level = magnitude / 10
  if number < 2 * len(UNSIGNED):
    name = UNSIGNED[number % len(UNSIGNED)]
  else:
    negative, place = divmod(number - 2 * len(UNSIGNED), len(SIGNED))
    name, level = SIGNED[place], -level if negative else level
  return name, {
    **dict.fromkeys(("identity", "auto_contrast", "equalize")),
    **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 0.1 + 1.8 * level),
    "solarize": int(256 * level),
    "posterize": max(1, int(4 * level)),
    "rotate": 30 * level,
    **dict.fromkeys(("shear_x", "shear_y"), 0.3 * level),
    **dict.fromkeys(("translate_x", "translate_y"), 150 / 331 * level),
  }[name]


def pixels(layer, image):
  """Returns the layer's result for the image, for each drawn number."""
  return [layer.pixels(tf.constant(image), [number]).numpy() for number in range(NUMBERS)]


class TestDistortions:
  @pytest.mark.parametrize("magnitude", cases.some(np.arange(0, 10.5, 0.5), 4))
  def test_equal_pillow(self, magnitude):
    (layer,) = augment.rand_augment(1, magnitude)
    random = np.random.default_rng(0)
    images = IMAGES if cases.exhaustive or magnitude == 10 else {name: IMAGES[name] for name in ("odd noise", "2 x 5")}
    if cases.exhaustive:
      images = {**images, "500 x 333": random.integers(256, size=(333, 500, 3), dtype=np.uint8)}
    for name, image in images.items():
      for number, made in enumerate(pixels(layer, image)):
        distortion, parameter = meaning(number, magnitude)
        assert_equal(made, by_pillow(distortion, parameter, image), f"{distortion}({parameter}) of {name}")

  def test_inversion_and_black_fill_equal_pillow(self):
    """RandAugment does not have these operations, so they are tested in a policy of their own."""
    (layer,) = augment.deep_auto_augment([[("invert", None, 0.5), ("rotate", 9, 0.5)]])
    for draw, name, parameter in ((0, "invert", None), (2**30, "rotate", 15), (2**31 - 2, "rotate", -15)):
      expected = by_pillow(name, parameter, TELLING, **({"fill": (0, 0, 0)} if parameter else {}))
      assert_equal(layer.pixels(TELLING, [draw]).numpy(), expected, name)


@pytest.mark.parametrize(
  "layers",
  [
    augment.rand_augment(2),
    augment.auto_augment("cifar10"),
    augment.auto_augment("imagenet"),
    augment.deep_auto_augment("cifar10"),
    augment.deep_auto_augment("imagenet"),
  ],
  ids=range(5),
)
def test_batched_and_eager_results_equal_those_of_single_images(layers):
  ours, images = augment.compose(layers), np.stack([IMAGES["noise"]] * 12)
  batch = ours(images, seed=[7, 0]).numpy()
  for number, made in enumerate(batch):
    assert_equal(ours(images[number], seed=augment.seed_at([7, 0], number)).numpy(), made, number)
  assert len({made.tobytes() for made in batch}) > 5


class TestRandAugment:
  def test_draws_tensorflows_numbers(self):
    (layer,) = augment.rand_augment(1)
    for dtype in (np.int32, np.int64):
      for seed in np.array([[7, 0], [-1, 2**31 - 1], [-(2**31), 5]], dtype):
        expected = tf.raw_ops.StatelessRandomUniformInt(shape=tf.constant([], tf.int32), seed=seed, minval=0, maxval=28)
        assert layer.draws(seed).numpy().tolist() == [expected.numpy()]

  def test_has_as_many_layers_as_asked_for(self):
    assert [len(augment.rand_augment(number)) for number in (1, 2, 64)] == [1, 2, 64]


def _auto_augment(image, seed):
  first, second = augment.auto_augment("cifar10")
  return second(first(image, seed), seed)


LAYERS = {
  "auto_augment_first": _auto_augment,
  "deep_auto_augment_1": augment.deep_auto_augment("cifar10")[0],
  "rand_augment": augment.rand_augment(1)[0],
}


@pytest.mark.parametrize("name", LAYERS)
class TestEveryLayer:
  def test_keeps_the_static_shape(self, name):
    for shape in cases.some([[32, 48, 3], [None, 48, 3], [None, None, 3], [32, None, 3]], 1):
      spec = (
        tf.function(LAYERS[name])
        .get_concrete_function(tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int32))
        .structured_outputs
      )
      assert spec.shape.as_list() == shape
      assert spec.dtype == tf.uint8

  @cases.each_value
  @pytest.mark.parametrize("decode", [tf.io.decode_png, tf.io.decode_image])
  def test_unknown_shapes_in_a_dataset(self, name, decode):
    # `decode_png` leaves the number of channels open, `decode_image` even the rank.
    images = [IMAGES[key] for key in ("odd noise", "gradient", "3 x 3", "1 x 9")] * 3
    encoded = tf.data.Dataset.from_tensor_slices([tf.io.encode_png(image).numpy() for image in images])
    seeds = tf.data.Dataset.from_tensor_slices(make_seeds(len(images)))
    dataset = tf.data.Dataset.zip(encoded.map(decode), seeds).map(LAYERS[name])
    assert dataset.element_spec.shape.as_list() == [None, None, 3]
    for image, seed, actual in zip(images, make_seeds(len(images)), dataset.as_numpy_iterator(), strict=True):
      assert_equal(actual, LAYERS[name](image, seed).numpy(), seed)

  def test_refuses_a_wrong_number_of_channels_at_run_time(self, name):
    encoded = tf.data.Dataset.from_tensors(tf.io.encode_png(np.zeros([4, 4, 2], np.uint8)))
    dataset = encoded.map(tf.io.decode_png).map(lambda image: LAYERS[name](image, [7, 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have 3 channels, got 2"):
      list(dataset)

  def test_refuses_sides_too_long_for_fixed_point_numbers(self, name):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="at most 32767"):
      LAYERS[name](tf.zeros([1, 32768, 3], tf.uint8), [7, 0])

  @pytest.mark.parametrize(
    "image, error, said",
    [
      (tf.zeros([4, 4, 3]), TypeError, "float32"),
      (tf.zeros([4, 4, 2], tf.uint8), ValueError, r"shape \(4, 4, 2\)"),
    ],
  )
  def test_refuses_an_image(self, name, image, error, said):
    with pytest.raises(error, match=f"image of {name} .*{said}"):
      LAYERS[name](image, [7, 0])
    dataset = tf.data.Dataset.from_tensors(image)
    with pytest.raises(error, match=f"image of {name} .*{said}"):
      dataset.map(lambda image: LAYERS[name](image, [7, 0]))


@pytest.mark.parametrize("number", [-1, 28, 2**31 - 1])
def test_pixels_refuse_draws_out_of_range(number):
  (layer,) = augment.rand_augment(1)
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"from 0 to 27, got {number}"):
    layer.pixels(TELLING, [number])


@pytest.mark.parametrize(
  "argument, value, error",
  [
    *(("magnitude", value, ValueError) for value in (-0.1, 10.5, float("nan"), float("inf"))),
    *(("magnitude", value, TypeError) for value in ("9", None, True, [9])),
    *(("num_ops", value, ValueError) for value in (0, -1, 65)),
    *(("num_ops", value, TypeError) for value in ("2", None, True, 2.0)),
  ],
)
def test_rand_augment_refuses(argument, value, error):
  with pytest.raises(error, match=f"^{argument} of rand_augment") as raised:
    augment.rand_augment(**{argument: value})
  assert repr(value) in str(raised.value)


@pytest.mark.parametrize("magnitude", [0, 10, 9.5, np.float32(9), np.int64(9)])
def test_rand_augment_takes_a_magnitude(magnitude):
  augment.rand_augment(np.int64(1), magnitude)
