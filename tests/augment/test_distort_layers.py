"""The policies' operations as separate layers, orders of channels, and SSD's distortions: compared with Pillow and
torchvision, draws, errors."""

import itertools
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import ROOT, cases
from support.images import levels_apart, noise
from support.rival_distortions import array

RIVALS = json.loads((ROOT / "tests" / "support" / "rival_distortions.json").read_text(encoding="utf-8"))
IMAGE = array(RIVALS["image"])
SEED = [7, 0]
# For each layer: its arguments before p, one tuple per case. A pair is a range of values.
ARGUMENTS = {
  "random_autocontrast": [()],
  "random_equalize": [()],
  "random_invert": [()],
  "random_posterize": [(1,), (4,), (8,), ((2, 6),)],
  "random_solarize": [(0,), (100,), (256,)],
  "random_adjust_sharpness": [(0,), (1.0,), (2.5,), ((0, 3),)],
}
SSD = {"brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5), "hue": (-0.05, 0.05)}


ORDERS = list(itertools.permutations(range(3)))


def layers_of(p):
  return [
    *(getattr(augment, name)(*arguments, p=p) for name, several in ARGUMENTS.items() for arguments in several),
    augment.random_channel_permutation(),
  ]


class TestRivals:
  @pytest.mark.parametrize("case", RIVALS["distorted"], ids=lambda case: f"{case['name']} {case['arguments']}")
  def test_distortions(self, case):
    """For tensors, torchvision rounds autocontrast and sharpness differently from Pillow. `test_augment.py` compares
    with Pillow."""
    layer = getattr(augment, f"random_{case['name']}")(*case["arguments"], p=1)
    most = 1 if case["name"] in ("autocontrast", "adjust_sharpness") else 0
    for image, key in ((IMAGE, "colors"), (IMAGE[..., :1], "grey")):
      assert levels_apart(layer(image, SEED), array(case[key])) <= most

  @pytest.mark.parametrize("number", range(len(RIVALS["photometric"])))
  def test_photometric_distort(self, number):
    """Each step is within one level of torchvision's, but later steps enlarge the difference."""
    case = RIVALS["photometric"][number]
    given = case["parameters"]
    amounts = {name: given[f"{name}_factor"] for name in SSD}
    layer = augment.random_photometric_distort(
      **{name: (amount or 1 - (name == "hue"),) * 2 for name, amount in amounts.items()}, p=0.5
    )
    order = given["channel_permutation"]
    draws = [
      *(2**31 - 1 if amount is None else 0 for amount in amounts.values()),
      0,
      0,
      0,
      0,
      int(given["contrast_before"]),
      2**31 - 1 if order is None else 0,
      ORDERS.index(tuple(order or (0, 1, 2))),
    ]
    made = layer.pixels(IMAGE, np.int32(draws))
    apart = np.abs(made.numpy().astype(int) - array(case["colors"]))
    assert apart.max() <= 4 and apart.mean() < 0.7


class TestDistortions:
  def test_pixels_are_distorted_by_the_drawn_amount(self):
    for name, ends, chosen in (("posterize", (2, 6), math.floor), ("adjust_sharpness", (0, 3), float)):
      make, (low, high) = getattr(augment, f"random_{name}"), ends
      for share in (0, 0.25, 0.5, 0.875):
        amount = chosen(low + (high - low + (chosen is math.floor)) * share)
        made = make(ends, p=0.5).pixels(IMAGE, [2**30 - 1, int(share * 2**31)])
        np.testing.assert_array_equal(made, make(amount, p=1)(IMAGE, SEED))
      np.testing.assert_array_equal(make(ends, p=0.5).pixels(IMAGE, [2**30, 0]), IMAGE)

  def test_probabilities_and_amounts_follow_the_arguments(self):
    draws = augment.random_posterize((3, 6), p=0.3).draws(SEED, 20_000).numpy()
    assert abs((draws[:, 0] < 0.3 * 2**31).mean() - 0.3) < 0.01
    assert np.abs(np.bincount(draws[:, 1] * np.int64(4) >> 31) - 5000).max() < 300
    tenths = np.bincount(
      augment.random_adjust_sharpness((0, 3)).draws(SEED, 20_000).numpy()[:, 1].astype(np.int64) * 10 >> 31
    )
    assert tenths.size == 10 and np.abs(tenths - 2000).max() < 220
    several = noise(50, 20, 20, 3) // 2 + 60
    for layer, expected in ((each, expected) for p, expected in ((0, 0), (1, 50)) for each in layers_of(p)):
      is_none = layer.text.endswith(("bits=8", "threshold=256", "factor=1.0", "order=0,5"))
      assert is_none or (layer(several, SEED).numpy() != several).any((1, 2, 3)).sum() == expected, repr(layer)

  def test_repr_and_outcomes_describe_the_layers(self):
    assert repr(augment.random_posterize(4)) == "random_posterize(4, p=0.5)"
    assert repr(augment.random_adjust_sharpness((0.5, 2), 0.1)) == "random_adjust_sharpness((0.5, 2), p=0.1)"
    assert repr(augment.random_invert(1)) == "random_invert(p=1)"
    assert augment.random_posterize((2, 6), 1).outcomes == (5, 5) and augment.random_posterize(3).outcomes == (2, 2)
    assert augment.random_adjust_sharpness((0, 2), 1).outcomes == (math.inf, math.inf)
    for layer in (
      augment.random_posterize(8),
      augment.random_adjust_sharpness((1, 1)),
      augment.random_adjust_sharpness(1, p=1),
      augment.random_perspective(0),
    ):
      assert layer.outcomes == (1, 1)
    assert augment.random_equalize(0).outcomes == (1, 1) and augment.random_channel_permutation().outcomes == (6, 6)
    assert augment.random_photometric_distort().outcomes == (math.inf, math.inf)
    assert augment.random_photometric_distort(p=0).outcomes == (1, 1)

  def test_targets_stay(self):
    mask = noise(21, 29)
    for layer in [*layers_of(1), augment.random_grayscale(1), augment.color_jitter(0.4)]:
      fn = augment.compose([layer], targets={1: "mask", 2: "xyxy"})
      _, moved, boxes = fn(IMAGE, mask, tf.constant([[1.0, 2.0, 8.0, 9.0]]), seed=SEED)
      np.testing.assert_array_equal(moved, mask)
      assert boxes.numpy().tolist() == [[1, 2, 8, 9]]


class TestColors:
  def test_photometric_distort_is_its_steps(self):
    """The result equals the drawn steps applied one by one, with contrast second or last, and then a reordering of the
    channels. All amounts are multiples of 1 / 4096."""
    ranges = {"brightness": (0.25, 1.75), "contrast": (0.25, 3.25), "saturation": (0, 1.5), "hue": (-0.25, 0.5)}
    layer = augment.random_photometric_distort(**ranges, p=0.5)
    steps = [augment.color_jitter(**{name: (low + (high - low) * 0.75,) * 2}) for name, (low, high) in ranges.items()]
    for number, (is_second, *applied) in enumerate(itertools.product((1, 0), repeat=5)):
      expected = IMAGE
      for step in (0, 1, 2, 3) if is_second else (0, 2, 3, 1):
        expected = steps[step](expected, SEED) if applied[step] else expected
      draws = [*(2**30 - each for each in applied), *[3 * 2**29] * 4, is_second, 0, number % 6]
      np.testing.assert_array_equal(layer.pixels(IMAGE, draws), np.asarray(expected)[..., ORDERS[number % 6]])

  def test_draws_of_photometric_distort(self):
    np.testing.assert_array_equal(augment.random_photometric_distort(p=0)(IMAGE, SEED), IMAGE)
    draws = augment.random_photometric_distort().draws(SEED, 24_000).numpy()
    halves = draws[:, [0, 1, 2, 3, 9]] < 2**30
    assert np.abs(halves.mean(0) - 0.5).max() < 0.02 and np.abs(np.corrcoef(halves.T) - np.eye(5)).max() < 0.03
    assert abs(draws[:, 8].mean() - 0.5) < 0.02
    assert np.abs(np.bincount(draws[:, 10], minlength=6) - 4000).max() < 300

  def test_all_channel_orders_are_equally_likely(self):
    batch = np.tile(np.uint8([[[[10, 20, 30]] * 7] * 3]), [6000, 1, 1, 1])
    made = augment.random_channel_permutation()(batch, SEED).numpy()
    assert (made == made[:, :1, :1]).all()
    orders, counts = np.unique(made[:, 0, 0], axis=0, return_counts=True)
    assert orders.tolist() == [list(order) for order in itertools.permutations((10, 20, 30))]
    assert np.abs(counts - 1000).max() < 150


class TestBadInput:
  @pytest.mark.parametrize(
    "make, match, error",
    cases.refused(
      ValueError=[
        (
          lambda: augment.random_posterize(0),
          "bits of random_posterize must be a whole number from 1 to 8, got 0. Pass 4",
        ),
        (lambda: augment.random_posterize((6, 2)), r"smaller end first, got \(6, 2\). Swap the two"),
        (
          lambda: augment.random_adjust_sharpness(-1),
          "sharpness_factor of random_adjust_sharpness must be a number from 0 to 100",
        ),
        (lambda: augment.random_photometric_distort(hue=(-1, 0)), "hue of random_photometric_distort must be"),
      ],
      TypeError=[],
    ),
  )
  def test_arguments(self, make, error, match):
    with pytest.raises(error, match=match):
      make()

  def test_images(self):
    for layer in layers_of(1):
      with pytest.raises(
        ValueError, match=rf"image of {layer.__name__} must have 1 or 3 channels, got shape \(4, 4, 4\)"
      ):
        layer(noise(4, 4, 4), SEED)
      with pytest.raises(TypeError, match=f"image of {layer.__name__} must be uint8, got dtype float32"):
        layer(np.zeros([4, 4, 3], np.float32), SEED)
    with pytest.raises(
      ValueError, match=r"image of random_photometric_distort must have 3 channels, got shape \(4, 4, 1\)"
    ):
      augment.random_photometric_distort()(noise(4, 4, 1), SEED)

  def test_offload_says_that_they_stay_on_the_host(self):
    for layer in (augment.random_equalize(), augment.random_channel_permutation(), augment.gaussian_noise()):
      with pytest.raises(ValueError, match="it stays on the host. Put it into partial_fn or final_fn"):
        tf.data.Dataset.from_tensor_slices(noise(4, 8, 8, 3)).offload([layer], 2)
