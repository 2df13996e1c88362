"""Deep AutoAugment's layers: operations compared with Pillow, tables with the published ones."""

import collections
import math

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.augment import deep_auto_augment_policies as policies
from refurbish_tf.augment.deep_auto_augment import outcomes_of
from support import cases
from support.images import IMAGES, TELLING, assert_equal, by_pillow, make_seeds, mapped

BLACK = {"fill": (0, 0, 0)}
# The meaning of each magnitude from 0 to 12, computed by hand from the authors' implementation.
PARAMETERS = {
  **dict.fromkeys(("identity", "auto_contrast", "invert", "equalize")),
  **dict.fromkeys(("shear_x", "shear_y"), lambda m: (0.05 * m - 0.3, 0.3 - 0.05 * m)),
  **dict.fromkeys(("translate_x", "translate_y"), lambda m: (0.075 * m - 0.45, 0.45 - 0.075 * m)),
  "rotate": lambda m: (5 * m - 30, 30 - 5 * m),
  "solarize": lambda m: (256 * m / 12,),
  "posterize": lambda m: (4 + m // 3,),
  **dict.fromkeys(("contrast", "color", "brightness", "sharpness"), lambda m: (0.1 + 0.15 * m,)),
}
SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
RANDOM = ("random_flip", "random_crop_4", "random_cutout_16", "random_cutout_60", "random_resized_crop")


def _results(name, magnitude):
  """Pillow's results for `TELLING`, all equally likely."""
  if magnitude is None:
    return [by_pillow(name, None, TELLING).tobytes()]
  fill = BLACK if name in SIGNED else {}
  return [by_pillow(name, parameter, TELLING, **fill).tobytes() for parameter in PARAMETERS[name](magnitude)]


def _single(name):
  """A layer with only this operation, which has no magnitude."""
  return augment.deep_auto_augment([[(name, None, 1.0)]])[0]


def _published(table):
  """Returns `(name, magnitude, probability)` for each operation of a layer of a published policy."""
  for name, millionths in table.items():
    if isinstance(millionths, int):
      yield name, None, millionths / 1e6
    else:
      magnitudes = [m for m in range(13) if m != (12 if name in ("solarize", "posterize") else 6)]
      assert len(magnitudes) == len(millionths)
      for magnitude, probability in zip(magnitudes, millionths, strict=True):
        yield name, magnitude, probability / 1e6


class TestOperations:
  def test_equal_pillow_at_every_magnitude_with_both_signs(self):
    outcomes = [
      (name, magnitude)
      for name, parameters in PARAMETERS.items()
      for magnitude in (range(13) if parameters else [None])
    ]
    assert len(outcomes) == 4 + 11 * 13
    (layer,) = augment.deep_auto_augment([[(*outcome, 1 / len(outcomes)) for outcome in outcomes]])
    expected = collections.Counter()
    for outcome in outcomes:
      results = _results(*outcome)
      for result in results:
        expected[result] += 1 / len(outcomes) / len(results)
    drawn = collections.Counter(image.tobytes() for image in mapped(layer, TELLING, make_seeds(4000)))
    assert set(drawn) == set(expected)
    squares = sum((drawn[result] - 4000 * p) ** 2 / (4000 * p) for result, p in expected.items())
    assert squares < len(expected) + 4 * (2 * len(expected)) ** 0.5

  @pytest.mark.parametrize("size", cases.some([(224, 224), (120, 50), (50, 120), (40, 61)], 2))
  def test_resized_crop_is_pillows_of_the_drawn_box(self, size):
    height, width = size
    y, x = np.mgrid[:height, :width] / 9
    waves = np.stack([120 * np.sin(x + y / 3), 120 * np.cos(y), 60 * np.sin(x - y)], axis=2)
    image = (127 + waves).astype(np.uint8)
    layer = _single("random_resized_crop")
    fallbacks = 0
    for seed, actual in zip(make_seeds(60), mapped(layer, image, make_seeds(60)), strict=True):
      draws = tf.raw_ops.StatelessRandomUniform(shape=[4], seed=~seed).numpy()
      area = np.float32(height * width) * (np.float32(0.08) + np.float32(0.92) * draws[0])
      ratio = math.exp(math.log(3 / 4) + draws[1] * (math.log(4 / 3) - math.log(3 / 4)))
      assert 0.08 <= area / (height * width) <= 1 and 3 / 4 <= ratio <= 4 / 3
      part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
      if part_width <= width and part_height <= height:
        top, left = int(draws[2] * (height - part_height + 1)), int(draws[3] * (width - part_width + 1))
      else:
        fallbacks += 1
        part_width, part_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        top, left = (height - part_height) // 2, (width - part_width) // 2
      box = (left, top, left + part_width, top + part_height)
      expected = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC, box))
      # Pillow rounds and clips after each of the two directions, which shows only at steeper edges than these.
      assert np.abs(actual.astype(int) - expected).max() <= 2, (seed, box)
    assert 0 < fallbacks < 40

  def test_crops_and_cutouts_show_the_mean_color(self):
    """The places are drawn by TensorFlow from the inverted seed."""

    def drawn(seed, end):
      return tf.raw_ops.StatelessRandomUniformInt(shape=[2], seed=~seed, minval=0, maxval=end).numpy()

    color, (height, width, _) = np.uint8([125, 123, 114]), TELLING.shape
    padded = np.full([height + 8, width + 8, 3], color)
    padded[4:-4, 4:-4] = TELLING
    for seed in make_seeds(30):
      y, x = drawn(seed, 9)
      assert_equal(_single("random_crop_4")(TELLING, seed).numpy(), padded[y : y + height, x : x + width], seed)
      for side in (16, 60):
        rows, columns = (
          np.abs(np.arange(length) - at % length) <= side // 2
          for length, at in zip((height, width), drawn(seed, 2**31 - 1))
        )
        expected = np.where((rows[:, np.newaxis] & columns)[..., np.newaxis], color, TELLING)
        assert_equal(_single(f"random_cutout_{side}")(TELLING, seed).numpy(), expected, seed)
      assert_equal(_single("random_flip")(TELLING, seed).numpy(), augment.random_flip()(TELLING, ~seed).numpy(), seed)


class TestPublishedPolicies:
  @pytest.mark.parametrize("name, table, count", [("cifar10", policies.CIFAR, 6), ("imagenet", policies.IMAGENET, 5)])
  def test_layers_have_all_outcomes_that_were_searched(self, name, table, count):
    assert len(table) == count == len(augment.deep_auto_augment(name))
    for layer, drawn in zip(table, outcomes_of(name), strict=True):
      outcomes = list(_published(layer))
      assert {
        (operation, magnitude): pytest.approx(probability, abs=1e-5) for operation, magnitude, probability in drawn
      } == {(operation, magnitude): probability for operation, magnitude, probability in outcomes if probability}
      assert len(outcomes) == 139 and len(layer) == 18
      assert sum(probability for _, _, probability in outcomes) == pytest.approx(1, abs=1e-5)
      assert all(len(layer[operation]) == 12 for operation, of in PARAMETERS.items() if of)
      assert set(layer) - set(PARAMETERS) < set(RANDOM)

  @pytest.mark.parametrize(
    "table, likeliest",
    [
      # The distribution of operations that the paper shows in a figure.
      (
        policies.CIFAR,
        "translate_x 0.1642, random_cutout_16 0.9177, random_crop_4 0.8975, random_flip 0.7309, color 0.5778, "
        "identity 0.9653",
      ),
      (
        policies.IMAGENET,
        "random_resized_crop 0.1987, random_resized_crop 0.7426, random_flip 0.2996, sharpness 0.2560, "
        "random_flip 0.2692",
      ),
    ],
  )
  def test_likeliest_operation_of_each_layer(self, table, likeliest):
    found = []
    for layer in table:
      sums = {name: np.sum(millionths) / 1e6 for name, millionths in layer.items()}
      name = max(sums, key=sums.get)
      found.append(f"{name} {sums[name]:.4f}")
    assert ", ".join(found) == likeliest


class TestPolicyOfOnesOwn:
  def test_may_have_any_number_of_layers(self):
    layers = augment.deep_auto_augment([[("invert", None, 1.0)]] * 7)
    image = IMAGES["noise"]
    assert_equal(augment.compose(layers)(image, seed=[7, 0]).numpy(), 255 - image, "seven inversions")

  @pytest.mark.parametrize(
    "policy, error, said",
    [
      ("svhn", ValueError, r"\['cifar10', 'imagenet'\].*'svhn'"),
      ([], ValueError, "at least one"),
      ([[]], ValueError, r"layer 0, .* got \[\]"),
      ([[("invert", 1.0)]], ValueError, r"got \('invert', 1.0\)\. .*magnitude"),
      ([[("blur", None, 1.0)]], ValueError, "operations .*'auto_contrast'.* got 'blur'"),
      ([[("invert", 3, 1.0)]], ValueError, r"got \('invert', 3, 1.0\)\. .*no magnitude"),
      ([[("rotate", None, 1.0)]], ValueError, "magnitude of rotate"),
      ([[("invert", None, 0.0), ("identity", None, 1.0)]], ValueError, "probabilities above 0"),
      ([[("invert", None, 0.5), ("identity", None, 0.4)]], ValueError, "probabilities .*0.9"),
    ],
  )
  def test_refuses_a_policy(self, policy, error, said):
    with pytest.raises(error, match=f"^policy of deep_auto_augment.* {said}"):
      augment.deep_auto_augment(policy)
