"""Layers of colours, and `gaussian_blur`: torchvision's and Pillow's bytes, how often, and what they take."""
import itertools
import math

import numpy as np
from PIL import Image
import pytest

from refurbish_tf import augment
from support import cases
from support import color_reference as reference
from support import final_reference
from support.images import RIVAL_IMAGE as IMAGE, RIVALS, noise

SEED = [7, 0]
JITTER = {"brightness": (0.2, 1.8), "contrast": (0.2, 3.0), "saturation": (0, 1.5), "hue": (-0.3, 0.5)}


def levels_apart(made, expected):
  return np.abs(np.asarray(made, int) - np.reshape(expected, np.shape(made))).max()


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
    layer, one_channel = augment.random_grayscale(1), IMAGE[..., :1]
    np.testing.assert_array_equal(layer(IMAGE, SEED), Image.fromarray(IMAGE).convert("L").convert("RGB"))
    np.testing.assert_array_equal(layer(one_channel, SEED), one_channel)


def pairs():
  """Layers of several forms, with their references."""
  yield augment.color_jitter(**JITTER), reference.ColorJitter(**JITTER)
  yield augment.color_jitter(0.4, 0.4, 0.2, 0.1), reference.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1))
  yield augment.color_jitter(brightness=(2, 9), hue=0.5), reference.ColorJitter(brightness=(2, 9), hue=(-0.5, 0.5))
  yield augment.random_solarize(100, p=0.6), reference.Solarize(0.6, 100)
  yield augment.gaussian_blur(), reference.GaussianBlur()
  yield augment.gaussian_blur(9, (0.5, 4)), reference.GaussianBlur((0.5, 4), 9)
  yield augment.random_grayscale(0.5), final_reference.Grayscale(0.5)


def test_are_as_their_reference():
  for shape in cases.some([(1, 1, 3), (2, 1, 3), (1, 40, 3), (7, 17, 3), (40, 33, 3), (64, 70, 3)], 4):
    image = noise(*shape)
    for (layer, expected), number in itertools.product(pairs(), range(6)):
      seed = [number, 1]
      draws = expected.draws(seed)
      np.testing.assert_array_equal(layer.draws(seed), draws)
      # A blur of bytes is in fixed point.
      assert levels_apart(layer(image, seed), expected.pixels(image, draws)) <= (expected.name == "gaussian_blur"), repr(layer)


@pytest.mark.parametrize("dtype, channels", [(np.uint8, 1), (np.uint8, 4), (np.uint8, 13), (np.uint16, 5), (np.int16, 1), (np.float32, 3)])
def test_blur_of_any_pixels(dtype, channels):
  image = np.random.default_rng(7).normal(scale=100, size=[19, 23, channels])
  image = image.astype(dtype) if dtype != np.uint8 else noise(19, 23, channels)
  expected = reference.GaussianBlur()
  for seed in ([1, 1], [2, 1]):
    made = augment.gaussian_blur()(image, seed).numpy()
    assert made.dtype == dtype
    tolerance = 1 if dtype != np.float32 else 1e-3
    np.testing.assert_allclose(made.astype(float), expected.pixels(image, expected.draws(seed)).astype(float), atol=tolerance, rtol=1e-5)


def test_blur_wider_than_the_image_reflects_it_again_and_again():
  for shape in ((1, 1, 3), (2, 3, 3), (3, 1, 3), (5, 4, 3)):
    image = noise(*shape)
    made = augment.gaussian_blur(sigma=6)(image, SEED)
    assert levels_apart(made, np.rint(reference.blurred(image, 6, 18))) <= 1
  # What is everywhere alike stays so, to the bit: the weights add up to one.
  for sigma in (0.1, 0.8, 3, 40):
    assert (augment.gaussian_blur(sigma=sigma)(np.full([9, 50, 3], 251, np.uint8), SEED).numpy() == 251).all()


class TestDraws:

  def test_orders_and_amounts_of_jitter(self):
    draws = augment.color_jitter(0.4, hue=0.1).draws(SEED, 24_000).numpy()
    orders, counts = np.unique(draws[:, 0], return_counts=True)
    assert orders.tolist() == list(range(24)) and np.abs(counts - 1000).max() < 150
    assert sorted({tuple(reference.ColorJitter.order(number)) for number in range(24)}) == list(itertools.permutations(range(4)))
    tenths = np.apply_along_axis(np.bincount, 0, draws[:, 1:].astype(np.int64) * 10 >> 31)
    assert tenths.shape == (10, 4) and np.abs(tenths - 2400).max() < 250
    assert abs(np.corrcoef(draws[:, 1:].T) - np.eye(4)).max() < 0.03

  def test_how_often(self):
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
    assert augment.gaussian_blur().outcomes == (math.inf, math.inf) and augment.gaussian_blur(sigma=1).outcomes == (1, 1)
    assert augment.random_apply([augment.gaussian_blur()], p=0.5).outcomes == (math.inf, 4)


def test_whole_is_one_by_one():
  """Random sequences with blurs, whose bytes have no exact reference, and holes: as each layer by itself."""
  random = np.random.default_rng(3)
  choices = [augment.random_crop(padding=4), augment.random_flip(), augment.cutout(6), augment.gaussian_blur(5),
             augment.color_jitter(0.5, 0.5, 0.5, 0.2), augment.random_solarize(), augment.resize((17, 22)),
             augment.rand_augment(1)[0], augment.random_grayscale(0.3), augment.random_erasing(1, value=(5, 6, 7))]
  for number in range(cases.examples(30)):
    layers = [choices[k] for k in random.integers(len(choices), size=6)]
    image = made = noise(int(random.integers(1, 40)), int(random.integers(1, 40)), 3)
    for position, layer in enumerate(layers):
      made = layer(made, final_reference.seed_at([number, 2], position)) if layer.takes_seed else layer(made)
    np.testing.assert_array_equal(augment.compose(layers)(image, seed=[number, 2]), made, err_msg=repr(layers))


class TestBadInput:

  @pytest.mark.parametrize("arguments, error", [
      ({"brightness": -0.1}, ValueError), ({"contrast": (0.5, 0.4)}, ValueError), ({"saturation": (-1, 1)}, ValueError),
      ({"hue": 0.6}, ValueError), ({"hue": (-0.6, 0)}, ValueError), ({"hue": -0.1}, ValueError), ({"brightness": "1"}, TypeError),
      ({"brightness": True}, TypeError), ({"contrast": (1, 2, 3)}, TypeError), ({"brightness": float("nan")}, ValueError),
      ({"brightness": (1, math.inf)}, ValueError)], ids=str)
  def test_jitter(self, arguments, error):
    name, = arguments
    with pytest.raises(error, match=f"{name} of color_jitter must be a number from 0 to .*Pass 0 for no change"):
      augment.color_jitter(**arguments)

  @pytest.mark.parametrize("arguments, error, match", [
      ({"sigma": 0}, ValueError, "sigma of gaussian_blur must be"), ({"sigma": (2, 1)}, ValueError, "sigma of gaussian_blur must be"),
      ({"sigma": "1"}, TypeError, "sigma of gaussian_blur must be"), ({"sigma": 200}, ValueError, "at most 170 without a kernel_size"),
      ({"kernel_size": 4}, ValueError, "must be odd.*Pass 5"), ({"kernel_size": 2.5}, TypeError, "whole number from 1 to 1,023"),
      ({"kernel_size": 1025}, ValueError, "whole number from 1 to 1,023")], ids=str)
  def test_blur(self, arguments, error, match):
    with pytest.raises(error, match=match):
      augment.gaussian_blur(**arguments)

  def test_solarize(self):
    for threshold, error in ((-1, ValueError), (257, ValueError), (1.5, TypeError)):
      with pytest.raises(error, match="threshold of solarize must be a whole number from 0 to 256"):
        augment.random_solarize(threshold)

  @pytest.mark.parametrize("p, error", [
      (-0.1, ValueError), (1.1, ValueError), (math.nan, ValueError), ("0.1", TypeError), (True, TypeError)])
  def test_chance(self, p, error):
    for layer in (augment.random_grayscale, augment.random_solarize):
      with pytest.raises(error, match=f"p of {layer.__name__} must be a probability"):
        layer(p=p)
