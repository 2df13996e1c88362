"""The augmentation layers: distortions compared with Pillow, draws by frequency."""
import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.augment import distortions
from refurbish_tf.augment import layers
from support import cases
from support.images import IMAGES, PILLOW, TELLING, assert_equal, by_pillow, chi_square, make_seeds, mapped

FACTORS = (0.0, 0.1, 0.37, 0.55, 0.82, 1.0, 1.0001, 1.36, 1.72, 1.9, 7.0)
SLOPES = (0.0, 0.03, 0.135, 0.27, -0.27, 0.3, -0.3, 1.0, -2.5)
FRACTIONS = (0.0, 0.01, -0.01, 0.4078, -0.4078, 0.4532, -0.4532, 1.0, -1.0, 3.0, -3.0)
PARAMETERS = {
    "identity": (None,),
    "auto_contrast": (None,),
    "equalize": (None,),
    "invert": (None,),
    "rotate": (0, 3, -3.3, 15, 27, -27, 30, -30, 45, 90, -90, 123.4, 180, 270, 360),
    "solarize": (0, 1, 100, 128, 230, 255, 256),
    "color": FACTORS,
    "posterize": (1, 2, 3, 4, 5, 6, 7, 8),
    "contrast": FACTORS,
    "brightness": FACTORS,
    "sharpness": FACTORS,
    "shear_x": SLOPES,
    "shear_y": SLOPES,
    "translate_x": FRACTIONS,
    "translate_y": FRACTIONS,
}
SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
# The distortions and their parameters at RandAugment's magnitude 9, computed by hand from the table in the paper's
# reference implementation, which does not invert.
AT_NINE = {
    "identity": (None,), "auto_contrast": (None,), "equalize": (None,), "invert": (None,),
    "rotate": (27, -27),
    "solarize": (230,),
    "color": (1.72,),
    "posterize": (3,),
    "contrast": (1.72,), "brightness": (1.72,), "sharpness": (1.72,),
    "shear_x": (0.27, -0.27), "shear_y": (0.27, -0.27),
    "translate_x": (0.9 * 150 / 331, -0.9 * 150 / 331), "translate_y": (0.9 * 150 / 331, -0.9 * 150 / 331),
}


def _distorted(name, parameter):
  distortion = getattr(distortions, name)
  return distortion if parameter is None else lambda image: distortion(image, parameter)


class TestDistortions:

  @pytest.mark.parametrize("name", PILLOW)
  def test_equals_pillow(self, name):
    """Each parameter with one image, some with all images."""
    for image_name, image in IMAGES.items():
      for parameter in PARAMETERS[name] if cases.exhaustive or image_name == "odd noise" else AT_NINE[name]:
        actual = _distorted(name, parameter)(tf.constant(image)).numpy()
        assert_equal(actual, by_pillow(name, parameter, image), f"{name}({parameter}) of {image_name}")

  @pytest.mark.parametrize("height, width", cases.some([(33, None), (None, 47), (None, None)], 1))
  def test_equals_pillow_with_unknown_sides_in_a_dataset(self, height, width):
    """tf.data rewrites a function's graph before running it, and may then reject what is valid elsewhere."""
    spec = tf.TensorSpec([height, width, 3], tf.uint8)
    images = {name: image for name, image in IMAGES.items() if spec.shape.is_compatible_with(image.shape)}
    made = [(name, parameter) for name, parameters in AT_NINE.items() for parameter in parameters]
    dataset = tf.data.Dataset.from_generator(lambda: iter(images.values()), output_signature=spec).map(
        lambda image: tuple(_distorted(*each)(image) for each in made))
    for (image_name, image), results in zip(images.items(), dataset.as_numpy_iterator(), strict=True):
      for (name, parameter), actual in zip(made, results):
        assert_equal(actual, by_pillow(name, parameter, image), f"{name}({parameter}) of {image_name}")

  @cases.each_value
  @pytest.mark.parametrize("shape", [(33, 47), (None, None)])
  @pytest.mark.parametrize("name", [name for name, parameters in PARAMETERS.items() if None not in parameters])
  def test_equals_pillow_with_a_parameter_not_known_while_tracing(self, name, shape):
    image = IMAGES["odd noise"]
    spec = tf.TensorSpec([*shape, 3], tf.uint8), tf.TensorSpec([], tf.float64)
    function = tf.function(getattr(distortions, name), spec, autograph=False)
    for parameter in PARAMETERS[name]:
      actual = function(tf.constant(image), tf.constant(parameter, tf.float64)).numpy()
      assert_equal(actual, by_pillow(name, parameter, image), f"{name}({parameter})")

  @pytest.mark.parametrize("name", SIGNED)
  def test_fills_with_another_value(self, name):
    for parameter in PARAMETERS[name]:
      actual = getattr(distortions, name)(tf.constant(IMAGES["odd noise"]), parameter, fill=7).numpy()
      assert_equal(actual, by_pillow(name, parameter, IMAGES["odd noise"], fill=(7, 7, 7)), f"{name}({parameter})")

  def test_auto_contrast_of_every_value_in_many_ranges(self):
    # Where 255 * (value - darkest) / (brightest - darkest) is whole, Pillow's float64 may still fall below it.
    random = np.random.RandomState(0)
    below = 0
    for _ in range(80):
      darkest, brightest = np.sort(random.randint(0, 256, (2, 3)), axis=0)
      image = np.clip(np.arange(256)[:, np.newaxis], darkest, brightest).astype(np.uint8)[np.newaxis]
      expected = by_pillow("auto_contrast", None, image)
      assert_equal(distortions.auto_contrast(tf.constant(image)).numpy(), expected, f"{darkest} to {brightest}")
      whole = 255 * (image.astype(int) - darkest) // np.maximum(brightest - darkest, 1)
      below += np.count_nonzero((expected < whole) & (brightest > darkest))
    assert below  # Otherwise the images do not test the hard case.

  def test_all_are_compared_with_pillow(self):
    assert set(PILLOW) == {
        name for name, value in vars(distortions).items() if getattr(value, "__module__", "") == distortions.__name__
        and not name.startswith("_")}


def _outcomes():
  """The results that the layer of magnitude 9 can have for `TELLING`: bytes -> (distortion, parameter)."""
  return {
      by_pillow(name, parameter, TELLING).tobytes(): (name, parameter)
      for name, parameters in AT_NINE.items() for parameter in parameters if name != "invert"}


@functools.lru_cache
def _images():
  """The results of the layer of magnitude 9 for `TELLING` and each of 1400 seeds."""
  return mapped(augment.rand_augment_layer(9), TELLING, make_seeds(1400))


def _drawn():
  outcomes = _outcomes()
  return [outcomes[image.tobytes()] for image in _images()]


class TestRandAugmentLayer:

  def test_takes_each_distortion_equally_often_at_its_magnitude(self):
    assert len(_outcomes()) == 9 + 5 * 2
    names = collections.Counter(name for name, _ in _drawn())
    assert len(names) == 14
    assert chi_square(list(names.values())) < 34.5  # 13 degrees of freedom, p = 0.001

  def test_takes_each_sign_equally_often(self):
    drawn = collections.Counter(_drawn())
    for name in SIGNED:
      positive, negative = (drawn[name, parameter] for parameter in AT_NINE[name])
      assert abs(positive - negative) < 4 * (positive + negative) ** 0.5, name

  @pytest.mark.parametrize("magnitude, name, parameter", [
      (0, "rotate", 0), (10, "rotate", 30), (5, "shear_x", 0.15), (10, "shear_y", 0.3), (10, "translate_x", 150 / 331),
      (10, "translate_y", 150 / 331), (0, "color", 0.1), (10, "color", 1.9), (5, "brightness", 1.0),
      (2.5, "contrast", 0.55), (7.5, "sharpness", 1.45),
      (0, "solarize", 0), (5, "solarize", 128), (10, "solarize", 256),
      (0, "posterize", 1), (2, "posterize", 1), (5, "posterize", 2), (7.5, "posterize", 3), (10, "posterize", 4)])
  def test_magnitude(self, magnitude, name, parameter):
    image = IMAGES["large noise"]  # Large enough to tell fractions of a side apart.
    choices, _ = layers._choices(magnitude / 10)  # pylint: disable=protected-access
    results = [choice(tf.constant(image)).numpy() for choice in choices if _name(choice) == name]
    assert len(results) == 2
    assert_equal(results[0], by_pillow(name, parameter, image), name)
    opposite = -parameter if name in SIGNED else parameter
    assert_equal(results[1], by_pillow(name, opposite, image), f"{name} of the other sign")

  def test_only_the_chosen_distortion_runs(self, monkeypatch):
    drawn = [name for name, _ in _drawn()[:60]]
    assert 1 <= drawn.count("equalize") < 20
    for name in set(PILLOW) - {"equalize"}:
      monkeypatch.setattr(distortions, name, _failing)
    monkeypatch.setattr(layers, "_choices", layers._choices.__wrapped__)  # pylint: disable=protected-access
    layer = augment.rand_augment_layer(9)
    run = tf.function(lambda seed: layer(tf.constant(TELLING), seed), autograph=False)
    for name, seed in zip(drawn, tf.constant(make_seeds(60))):
      if name == "equalize":
        assert_equal(run(seed).numpy(), by_pillow(name, None, TELLING), name)
      else:
        with pytest.raises(tf.errors.InvalidArgumentError):
          run(seed)

  def test_result_depends_on_the_seed_alone(self):
    tf.random.set_seed(2)
    again = mapped(augment.rand_augment_layer(9.0), TELLING, np.concatenate([
        make_seeds(100)[::-1], make_seeds(100, salt=1)]).astype(np.int64))
    np.testing.assert_array_equal(again[:100], _images()[99::-1])
    assert (again[100:] != _images()[:100]).any(axis=(1, 2, 3)).mean() > 0.8

  def test_eager_result_is_that_of_the_graph(self):
    layer = augment.rand_augment_layer(9)
    assert len({image.tobytes() for image in _images()[:80]}) == len(_outcomes())
    for seed, expected in zip(make_seeds(80), _images()):
      assert_equal(layer(TELLING, seed).numpy(), expected, seed)

  def test_is_stateless_for_a_checkpoint(self, tmp_path):
    def dataset(function):
      options = tf.data.Options()
      options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
      return tf.data.Dataset.from_tensor_slices(make_seeds(9)).map(function).with_options(options)

    layer = augment.rand_augment_layer(9)
    drawn = dataset(lambda seed: layer(TELLING, seed))
    iterator = iter(drawn)
    for _ in range(4):
      next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
    iterator = iter(drawn)
    tf.train.Checkpoint(iterator=iterator).read(path)
    np.testing.assert_array_equal(list(iterator), list(drawn)[4:])


def _name(choice):
  return getattr(choice, "func", choice).__name__


def _failing(image, **parameters):
  del parameters
  return tf.gather(image, [2**20])


def _auto_augment(image, seed):
  first, second = augment.auto_augment_layers("cifar10")
  return second(first(image, seed), seed)


LAYERS = {
    "auto_augment_layers": _auto_augment,
    "deep_auto_augment_layers": augment.deep_auto_augment_layers("cifar10")[0],
    "rand_augment_layer": augment.rand_augment_layer(9),
}


@pytest.mark.parametrize("name", LAYERS)
class TestEveryLayer:
  """Except the native layers: see test_final_layers_bad_input.py."""

  def test_keeps_the_static_shape(self, name):
    for shape in cases.some([[32, 48, 3], [None, 48, 3], [None, None, 3], [32, None, 3]], 1):
      spec = tf.function(LAYERS[name]).get_concrete_function(
          tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int32)).structured_outputs
      assert spec.shape.as_list() == shape
      assert spec.dtype == tf.uint8

  @cases.each_value
  @pytest.mark.parametrize("decode", [tf.io.decode_png, tf.io.decode_image])
  def test_unknown_shapes_in_a_dataset(self, name, decode):
    # One leaves the number of channels open, the other even the rank.
    images = [IMAGES[key] for key in ("odd noise", "gradient", "3 x 3", "1 x 9")] * 3
    encoded = tf.data.Dataset.from_tensor_slices([tf.io.encode_png(image).numpy() for image in images])
    seeds = tf.data.Dataset.from_tensor_slices(make_seeds(len(images)))
    dataset = tf.data.Dataset.zip(encoded.map(decode), seeds).map(LAYERS[name])
    assert dataset.element_spec.shape.as_list() == [None, None, 3]
    for image, seed, actual in zip(images, make_seeds(len(images)), dataset.as_numpy_iterator()):
      assert_equal(actual, LAYERS[name](image, seed).numpy(), seed)

  def test_refuses_a_number_of_channels_that_shows_late(self, name):
    encoded = tf.data.Dataset.from_tensors(tf.io.encode_png(np.zeros([4, 4, 2], np.uint8)))
    dataset = encoded.map(tf.io.decode_png).map(lambda image: LAYERS[name](image, [7, 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
      list(dataset)

  @pytest.mark.parametrize("image, error, said", [
      (tf.zeros([4, 4, 3]), TypeError, "float32"),
      (tf.zeros([4, 4, 3], tf.int32), TypeError, "int32"),
      (tf.zeros([4, 4], tf.uint8), ValueError, r"shape \(4, 4\)"),
      (tf.zeros([4, 4, 2], tf.uint8), ValueError, r"shape \(4, 4, 2\)"),
      (tf.zeros([4, 4, 1], tf.uint8), ValueError, r"shape \(4, 4, 1\)"),
      (tf.zeros([2, 4, 4, 3], tf.uint8), ValueError, r"shape \(2, 4, 4, 3\).*before batch")])
  def test_refuses_an_image(self, name, image, error, said):
    with pytest.raises(error, match=f"image of {name} .*{said}"):
      LAYERS[name](image, [7, 0])
    dataset = tf.data.Dataset.from_tensors(image)
    with pytest.raises(error, match=f"image of {name} .*{said}"):
      dataset.map(lambda image: LAYERS[name](image, [7, 0]))

  @pytest.mark.parametrize("seed, error, said", [
      (7, ValueError, r"shape \(\)"),
      ([1, 2, 3], ValueError, r"shape \(3,\)"),
      ([0.5, 1.5], TypeError, "float32")])
  def test_refuses_a_seed(self, name, seed, error, said):
    with pytest.raises(error, match=f"seed of {name} .*{said}"):
      LAYERS[name](np.zeros([4, 4, 3], np.uint8), seed)


@pytest.mark.parametrize("magnitude, error", [
    (-0.1, ValueError), (10.5, ValueError), (float("nan"), ValueError), (float("inf"), ValueError),
    ("9", TypeError), (None, TypeError), (True, TypeError), ([9], TypeError)])
def test_rand_augment_layer_refuses_a_magnitude(magnitude, error):
  with pytest.raises(error, match="^magnitude of rand_augment_layer") as raised:
    augment.rand_augment_layer(magnitude)
  assert repr(magnitude) in str(raised.value)


@pytest.mark.parametrize("magnitude", [0, 10, 9.5, np.float32(9), np.int64(9)])
def test_rand_augment_layer_takes_a_magnitude(magnitude):
  augment.rand_augment_layer(magnitude)
