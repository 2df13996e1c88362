"""Layers of colours, and `gaussian_blur`: compared with torchvision and Pillow, how often they act, and which arguments
they accept."""

import functools
import itertools
import math

import numpy as np
from PIL import Image
import pytest

from refurbish_tf import augment
from support import cases
from support.images import RIVAL_IMAGE as IMAGE, RIVALS, levels_apart, noise

SEED = [7, 0]
# Amounts are rounded to multiples of 1 / 4096. Quarters of these ranges are such multiples.
JITTER = {"brightness": (0.25, 1.75), "contrast": (0.25, 3.25), "saturation": (0, 1.5), "hue": (-0.25, 0.5)}


class TestRivals:
  @pytest.mark.parametrize("case", RIVALS["adjusted"], ids=lambda case: f"{case['name']} {case['amount']}")
  def test_jitter(self, case):
    made = augment.color_jitter(**{case["name"]: (case["amount"],) * 2})(IMAGE, SEED)
    assert levels_apart(made, case["torchvision"]) <= 1
    if "pillow" in case:
      assert levels_apart(made, case["pillow"]) == 0

  @pytest.mark.parametrize("case", RIVALS["solarized"], ids=lambda case: str(case["threshold"]))
  def test_solarize(self, case):
    made = augment.random_solarize(case["threshold"], p=1)(IMAGE, SEED)
    assert levels_apart(made, case["torchvision"]) == levels_apart(made, case["pillow"]) == 0

  @pytest.mark.parametrize("case", RIVALS["blurred"], ids=lambda case: f"{case['sigma']} {case['kernel']}")
  def test_blur(self, case):
    made = augment.gaussian_blur(case["kernel"], case["sigma"])(IMAGE, SEED)
    assert levels_apart(made, case["torchvision"]) <= 1
    if case["kernel"] > 6 * case["sigma"]:
      assert levels_apart(augment.gaussian_blur(sigma=case["sigma"])(IMAGE, SEED), case["torchvision"]) <= 1

  def test_grey(self):
    layer = augment.random_grayscale(1)
    np.testing.assert_array_equal(layer(IMAGE[..., :1], SEED), IMAGE[..., :1])
    for image in (IMAGE, noise(1, 1, 3), noise(7, 17, 3), noise(40, 33, 3)):
      np.testing.assert_array_equal(layer(image, SEED), Image.fromarray(image).convert("L").convert("RGB"))


def blurred(image, sigma, radius):
  """Blurs in double precision, without rounding. The image is reflected at its borders, several times if necessary."""
  weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
  for _ in range(2):
    padded = np.pad(np.float64(image), [(radius, radius), (0, 0), (0, 0)], "reflect")
    points = np.lib.stride_tricks.sliding_window_view(padded, len(weights), 0)
    image = (points @ (weights / weights.sum())).swapaxes(0, 1)
  return image


@pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
@pytest.mark.parametrize(
  "dtype, channels",
  [(np.uint8, 1), (np.uint8, 3), (np.uint8, 4), (np.uint8, 13), (np.uint16, 5), (np.int16, 1), (np.float32, 3)],
)
def test_blur_of_any_pixels(dtype, channels):
  for size, number in itertools.product(cases.some([(1, 1), (2, 3), (3, 1), (1, 40), (19, 23), (64, 70)], 4), range(3)):
    image = noise(*size, channels)
    if dtype != np.uint8:
      image = np.random.default_rng(7).normal(scale=100, size=image.shape).astype(dtype)
    draws = augment.gaussian_blur().draws([number, 1])
    sigma = 0.1 + 1.9 * draws.numpy()[0] / 2**31
    # The second kernel is far wider than some of the images, which are then reflected several times.
    for layer, radius in ((augment.gaussian_blur(), math.ceil(3 * sigma)), (augment.gaussian_blur(37), 18)):
      made = layer.pixels(image, draws).numpy()
      assert made.dtype == dtype
      expected = blurred(image, sigma, radius)
      np.testing.assert_allclose(made, expected, atol=1 if dtype != np.float32 else 1e-3, rtol=1e-5)


def test_blur_leaves_constant_images_unchanged():
  """Every bit stays the same, because the weights add up to one."""
  for sigma in (0.1, 0.8, 3, 40):
    assert (augment.gaussian_blur(sigma=sigma)(np.full([9, 50, 3], 251, np.uint8), SEED).numpy() == 251).all()


def test_jitter_applies_its_steps_in_the_drawn_order():
  image = noise(17, 23, 3)
  for share in (0, 0.25, 0.5, 0.75):
    steps = [augment.color_jitter(**{name: (low + (high - low) * share,) * 2}) for name, (low, high) in JITTER.items()]
    orders = [
      functools.reduce(lambda made, step: step(made, SEED), order, image) for order in itertools.permutations(steps)
    ]
    made = [augment.color_jitter(**JITTER).pixels(image, [order, *[int(share * 2**31)] * 4]) for order in range(24)]
    found, expected = ({each.numpy().tobytes() for each in several} for several in (made, orders))
    assert found == expected
  assert len(found) == 24


class TestDraws:
  def test_orders_and_amounts_of_jitter(self):
    draws = augment.color_jitter(0.4, hue=0.1).draws(SEED, 24_000).numpy()
    orders, counts = np.unique(draws[:, 0], return_counts=True)
    assert orders.tolist() == list(range(24)) and np.abs(counts - 1000).max() < 150
    tenths = np.apply_along_axis(np.bincount, 0, draws[:, 1:].astype(np.int64) * 10 >> 31)
    assert tenths.shape == (10, 4) and np.abs(tenths - 2400).max() < 250
    assert abs(np.corrcoef(draws[:, 1:].T) - np.eye(4)).max() < 0.03

  def test_layers_apply_with_probability_p(self):
    images = noise(50, 6, 7, 3)
    for layer in (augment.random_grayscale, augment.random_solarize):
      draws = layer(p=0.3).draws(SEED, 20_000).numpy()
      assert abs((draws[:, 0] < 0.3 * 2**31).mean() - 0.3) < 0.01
      for p, expected in ((0, 0), (1, 50)):
        assert (layer(p=p)(images, SEED).numpy() != images).any((1, 2, 3)).sum() == expected

  def test_the_number_of_outcomes(self):
    assert augment.color_jitter(0.4).outcomes == (math.inf, math.inf)
    assert augment.color_jitter((2, 2), (3, 3)).outcomes == (2, 2) and augment.color_jitter().outcomes == (1, 1)
    assert augment.random_solarize(p=0.5).outcomes == (2, 2) and augment.random_solarize(p=1).outcomes == (1, 1)
    assert augment.gaussian_blur().outcomes == (math.inf, math.inf)
    assert augment.gaussian_blur(sigma=1).outcomes == (1, 1)
    assert augment.random_apply([augment.gaussian_blur()], p=0.5).outcomes == (math.inf, 4)


class TestBadInput:
  @pytest.mark.parametrize(
    "arguments, error",
    [
      ({"brightness": -0.1}, ValueError),
      ({"contrast": (0.5, 0.4)}, ValueError),
      ({"hue": 0.6}, ValueError),
      ({"brightness": (1, math.inf)}, ValueError),
    ],
    ids=str,
  )
  def test_jitter(self, arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=f"{name} of color_jitter must be a number from 0 to .*Pass 0 for no change"):
      augment.color_jitter(**arguments)

  @pytest.mark.parametrize(
    "arguments, error, match",
    [
      ({"sigma": (2, 1)}, ValueError, "sigma of gaussian_blur must be"),
      ({"sigma": 200}, ValueError, "at most 170 without a kernel_size"),
      ({"kernel_size": 4}, ValueError, "must be odd.*Pass 5"),
      ({"kernel_size": 1025}, ValueError, "whole number from 1 to 1,023"),
    ],
    ids=str,
  )
  def test_blur(self, arguments, error, match):
    with pytest.raises(error, match=match):
      augment.gaussian_blur(**arguments)

  def test_solarize(self):
    for threshold, error in ((-1, ValueError), (257, ValueError), (1.5, TypeError)):
      with pytest.raises(error, match="threshold of solarize must be a whole number from 0 to 256"):
        augment.random_solarize(threshold)
