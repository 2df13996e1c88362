"""Policies with torchvision's ranges: bit for bit torchvision's results for a Pillow image, for each possible draw."""

import itertools

import numpy as np
import pytest

from refurbish_tf import augment
from refurbish_tf.augment.policy_layer import torchvision_distortions
from support import cases, torchvision_policies
from support.images import noise
from test_trivial_augment import NAMES

THEIR_NAMES = {
  **{ours: theirs for theirs, ours in NAMES.items()},
  "truncate_x": "TranslateX",
  "truncate_y": "TranslateY",
  "invert": "Invert",
}
# A step of magnitude is 5 of 331 columns: a whole number of pixels in the first size, not in the second.
SIZES = (33, 331), (40, 50)


def outcomes(layer):
  """Yields the name and the parameter of a policy layer's operation for each number that the layer can draw."""
  told = dict(each.split("=") for each in layer.text.split(" ")[1:])
  names, parameters, edges = (told[name].split(",") for name in ("operations", "parameters", "edges"))
  for name, parameter, start, end in zip(names, parameters, [0, *edges], edges):
    yield from [(name, float(parameter))] * (int(end) - int(start))


# Results of torch.rand for the two directions. Translations to the left are positive here, negative in torchvision.
UP, DOWN = 0.75, 0.25


def direction(name, is_first):
  """Returns a list of the number that torch.rand returns for an operation's direction, empty if it has none."""
  is_move = name.startswith(("truncate", "move"))
  return [] if torchvision_distortions(1, 30).get(name, "moves")[1] is None else [UP if is_first != is_move else DOWN]


def compare(kinds):
  """Compares images with torchvision's results. `kinds`: pairs of an image and the job that torchvision runs."""
  images, jobs = zip(*kinds)
  for image, job, expected in zip(images, jobs, torchvision_policies.made(jobs), strict=True):
    np.testing.assert_array_equal(image, expected, err_msg=f"{job[0]} {job[2:]}")


@cases.slow
def test_rand_augment():
  kinds = []
  for magnitude, size in itertools.product(range(31), SIZES):
    (layer,) = augment.rand_augment(1, magnitude, ranges="torchvision")
    image = noise(*size, 3)
    names = [THEIR_NAMES[name] for name, _ in outcomes(layer)]
    assert sorted(names) == sorted(2 * list(set(NAMES)))
    for draw, (name, _) in enumerate(outcomes(layer)):
      drawn = direction(name, THEIR_NAMES[name] not in names[:draw])
      kinds.append(
        (layer.pixels(image, [draw]).numpy(), (("RandAugment", 1, magnitude), image, THEIR_NAMES[name], drawn, 0))
      )
  compare(kinds)


@cases.slow
def test_trivial_augment():
  (layer,) = augment.trivial_augment()
  image, kinds = noise(40, 50, 3), []
  for draw, (name, _) in enumerate(outcomes(layer)):
    cell = draw % 62
    drawn = direction(name, cell < 31)
    job = ("TrivialAugmentWide",), image, THEIR_NAMES[name], drawn, cell % 31 if drawn else cell // 2
    kinds.append((layer.pixels(image, [draw]).numpy(), job))
  compare(kinds)


@cases.slow
@pytest.mark.parametrize("policy", ["imagenet", "cifar10"])
def test_auto_augment(policy):
  """Checks each sub-policy with each of the 20 draws of its operations, which are as probable as in torchvision."""
  layers, image = augment.auto_augment(policy, ranges="torchvision"), noise(40, 50, 3)
  found, kinds = [list(outcomes(layer)) for layer in layers], []
  for number, cell in itertools.product(range(25), range(20)):
    draws, drawn = [20 * number + cell, 20 * number + 7 * cell % 20], []
    for draw, which in zip(draws, found):
      name = which[draw][0]
      # The operation is applied if this number is below its probability.
      drawn.append((draw % 20 + 0.5) / 20)
      if name != "identity":
        drawn += direction(name, which[draw] == which[20 * number])
    once = layers[0].pixels(image, draws[:1])
    job = ("AutoAugment", policy), image, None, drawn, number
    kinds.append((layers[1].pixels(once, draws[1:]).numpy(), job))
  compare(kinds)


def test_the_default_of_torchvision():
  """Needs no torchvision. Checks the parameters at magnitude 9, and that a translation is truncated to whole pixels in
  both directions."""
  found = torchvision_distortions(9, 30)
  expected = {
    "rotate": (9, -9),
    "shear_x": (0.09, -0.09),
    "truncate_x": (45 / 331, -45 / 331),
    "brightness": (1.27, 0.73),
    "sharpness": (1.27, 0.73),
    "solarize": (179, None),
    "posterize": (7, None),
    "equalize": (0, None),
  }
  for name, values in expected.items():
    assert found[name] == tuple(value if value is None else pytest.approx(value, rel=1e-6) for value in values)
  (layer,) = augment.rand_augment(1, ranges="torchvision")
  image, moves = noise(40, 50, 3), {}
  for draw, (name, parameter) in enumerate(outcomes(layer)):
    if name.startswith("truncate"):
      moves[name, parameter > 0] = layer.pixels(image, [draw]).numpy()
  np.testing.assert_array_equal(moves["truncate_x", True], np.pad(image[:, 6:], [(0, 0), (0, 6), (0, 0)]))
  np.testing.assert_array_equal(moves["truncate_x", False], np.pad(image[:, :-6], [(0, 0), (6, 0), (0, 0)]))
  np.testing.assert_array_equal(moves["truncate_y", True], np.pad(image[5:], [(0, 5), (0, 0), (0, 0)]))


@pytest.mark.parametrize("arguments, error", [((2, 9.5), TypeError), ((2, 31), ValueError), ((2, -1), ValueError)])
def test_magnitudes_that_torchvision_lacks(arguments, error):
  with pytest.raises(
    error, match='must be a whole number from 0 to 30.*With ranges="torchvision" the magnitude is out of 30'
  ):
    augment.rand_augment(*arguments, ranges="torchvision")


@pytest.mark.parametrize("function", [augment.rand_augment, lambda **ranges: augment.auto_augment("cifar10", **ranges)])
def test_other_ranges(function):
  with pytest.raises(ValueError, match="ranges of .*_augment must be one of 'paper', 'torchvision', got 'timm'"):
    function(ranges="timm")
