"""`trivial_augment`: the space of torchvision's TrivialAugmentWide, and its distortions."""

import collections
import re

import numpy as np
import pytest

from refurbish_tf import augment
from refurbish_tf.augment.trivial_augment import _distortions
from support.images import RIVALS, by_pillow

NAMES = {
  each["name"]: re.sub("(?<=[a-z])(?=[A-Z])", "_", each["name"]).lower().replace("translate", "move")
  for each in RIVALS["wide"]
}


def test_the_space_is_torchvisions():
  found = _distortions()
  assert set(found) == set(NAMES.values())
  for each in RIVALS["wide"]:
    name, values = NAMES[each["name"]], each["magnitudes"]
    if values is None:
      assert found[name] == [0.0]
      continue
    if name.startswith("move"):
      values = [int(value) for value in values]
    if name == "solarize":
      values = [np.ceil(255 * np.float64(value)) for value in values]
    if each["signed"]:
      start = 1 if name in ("brightness", "color", "contrast", "sharpness") else 0
      values = [start + sign * value for sign in (1, -1) for value in values]
    np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_distortions_and_their_strengths_are_equally_likely():
  (layer,) = augment.trivial_augment()
  draws = layer.draws([7, 0], 43_400).numpy()
  assert draws.shape == (43_400, 1) and draws.min() == 0 and draws.max() == 867
  counts = np.bincount(draws[:, 0] // 62)
  assert counts.shape == (14,) and np.abs(counts - 3100).max() < 250
  arguments = dict(each.split("=") for each in layer.text.split(" ")[1:])
  edges, names = [int(edge) for edge in arguments["edges"].split(",")], arguments["operations"].split(",")
  shares = collections.Counter()
  for name, start, end in zip(names, [0, *edges], edges):
    shares[name] += end - start
  assert set(shares.values()) == {62}
  number, effective = layer.outcomes
  # Identity, auto-contrast and equalize each have one outcome, as likely as all strengths of another operation.
  assert 500 < number < 630 and 50 < effective < 70


@pytest.mark.parametrize("name", sorted(set(NAMES.values()) - {"identity"}))
def test_distortions_are_pillows(name):
  """Translations are in pixels, and uncovered pixels are black."""
  (layer,) = augment.trivial_augment()
  position = list(_distortions()).index(name)
  parameters = _distortions()[name]
  image = np.random.default_rng(3).integers(0, 256, [40, 50, 3], np.uint8)
  for k in range(0, len(parameters), 7):
    made = layer.pixels(image, np.int32([position * 62 + k * 62 // len(parameters)])).numpy()
    parameter = parameters[k]
    if name.startswith("move"):
      expected = np.zeros_like(image)
      y, x = (parameter, 0) if name == "move_y" else (0, parameter)
      expected[max(0, -y) : 40 - max(0, y), max(0, -x) : 50 - max(0, x)] = image[
        max(0, y) : 40 + min(0, y), max(0, x) : 50 + min(0, x)
      ]
    else:
      black = {"fill": (0, 0, 0)} if name in ("rotate", "shear_x", "shear_y") else {}
      expected = by_pillow(name, int(parameter) if name == "posterize" else parameter, image, **black)
    np.testing.assert_array_equal(made, expected, err_msg=f"{name} {parameter}")


def test_masks_follow():
  layers = augment.trivial_augment()
  image = np.random.default_rng(3).integers(1, 256, [20, 30, 1], np.uint8)
  fn = augment.compose(layers, {1: "mask"})
  moved = 0
  for number in range(30):
    made, mask = fn(np.repeat(image, 3, -1), image[..., 0], seed=[number, 0])
    if not np.array_equal(mask, image[..., 0]):
      np.testing.assert_array_equal(made[..., 0], mask)
      moved += 1
  assert moved > 5
