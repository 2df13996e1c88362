"""Random chains of layers of all kinds: one op gives the same results as one op per layer, at every split, with
targets."""

import functools

import numpy as np
import pytest

from refurbish_tf import augment
from support import cases
from support.moved_pixels import followers, noise

KINDS = {1: "mask", 2: "bilinear", 3: "rel_xyxy", 4: "xy"}
# All these layers keep a square image square.
LAYERS = [
  augment.random_crop(padding=4),
  augment.random_flip(),
  augment.cutout(6),
  augment.time_mask(9),
  augment.time_shift(rollover=False),
  augment.random_solarize(),
  augment.gaussian_blur(5),
  augment.resize((17, 17)),
  augment.center_crop(16),
  augment.center_crop((20, 20)),
  augment.pad((1, 2, 3, 2), padding_mode="edge"),
  augment.pad(3, 77),
  augment.pad((2, 0, 1, 3), padding_mode="reflect"),
  augment.pad(4, padding_mode="symmetric"),
  augment.random_transpose(1),
  augment.random_rotation(50),
  augment.random_perspective(p=1),
  augment.random_elastic(30, 3),
  augment.random_affine(30),
  augment.random_grayscale(0.5),
  augment.gaussian_noise(sigma=0.05),
  augment.random_autocontrast(0.8),
  augment.random_equalize(0.8),
  augment.random_invert(0.8),
  augment.random_posterize((2, 6), 0.8),
  augment.random_adjust_sharpness((0, 3), 0.8),
  augment.random_channel_permutation(),
]
COLORS = [
  *augment.rand_augment(1),
  augment.random_photometric_distort(),
  augment.color_jitter(0.5, 0.5, 0.5, 0.2),
  augment.random_erasing(1, value=(5, 6, 7)),
]
SQUARES = [augment.random_rotate90(), augment.random_transpose()]


def seeded(function, layers, number):
  return functools.partial(function, seed=[number, 2]) if any(layer.takes_seed for layer in layers) else function


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("is_square", [False, True])
def test_a_chain_equals_its_layers_applied_one_by_one(channels, is_square):
  random = np.random.default_rng(3)
  choices = [*LAYERS, *COLORS * (channels == 3), *(2 * SQUARES if is_square else [augment.resize((17, 22))])]
  for number in range(cases.examples(28)):
    is_tiny = number % 3 == 0 and not is_square
    allowed = [layer for layer in choices if not is_tiny or layer.__name__ not in ("random_perspective", "pad")]
    layers = [allowed[k] for k in random.integers(len(allowed), size=6)]
    layers.insert(0, augment.center_crop(int(random.integers(6, 30))) if is_square else augment.random_flip())
    size = random.integers(*((1, 5) if is_tiny else (6, 40)), 2).tolist()
    element = (
      noise(np.uint8, *size, channels),
      noise(np.uint8, *size),
      noise(np.float32, *size),
      np.float32([[0.2, 0.3, 0.6, 0.7]]),
      np.float32([[2, 3, 1]]),
    )
    expected = seeded(augment.compose(layers, KINDS), layers, number)(*element)
    one_by_one = element
    for position, layer in enumerate(layers):
      draws = layer.draws(augment.seed_at([number, 2], position))
      image, *targets = one_by_one
      one_by_one = layer.pixels(image, draws), *followers(layer, draws, image, *zip(KINDS.values(), targets))
    for found, value in zip(expected, one_by_one, strict=True):
      np.testing.assert_array_equal(found, value, err_msg=repr(layers))
    for at in range(1, len(layers)):
      partial, final = augment.split(layers, at, KINDS)
      made = seeded(final, layers[at:], number)(*seeded(partial, layers[:at], number)(*element))
      for found, value in zip(made, expected, strict=True):
        np.testing.assert_array_equal(found, value, err_msg=f"{layers}, split at {at}")
