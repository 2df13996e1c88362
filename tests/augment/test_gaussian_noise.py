"""`gaussian_noise`: its distribution, its independence of split, batch and place, and which arguments it accepts."""

import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support.images import noise

SEED = [7, 0]


def normal(x):
  return 0.5 * math.erfc(-x / math.sqrt(2))


def test_is_normal_with_the_given_mean_and_deviation():
  image = np.full([200, 200, 3], 0.5, np.float32)
  made = augment.gaussian_noise(0.1, 0.25, clip=False)(image, SEED).numpy()
  z = np.sort((made.ravel().astype(np.float64) - 0.6) / 0.25)
  below = np.array([normal(x) for x in z[::100]])
  # For this many values, Kolmogorov's distance exceeds the limit only once in a million trials.
  assert np.abs(below - np.arange(0, z.size, 100) / z.size).max() < 2.7 / math.sqrt(z.size)
  assert abs(z.mean()) < 5 / math.sqrt(z.size) and abs(z.std() - 1) < 0.01
  # The noise of neighbouring values, and of other images, is independent.
  others = augment.gaussian_noise(0, 1, clip=False)(np.zeros([4, 200, 200, 3], np.float32), SEED).numpy()
  assert np.abs(np.corrcoef(others.reshape(4, -1)) - np.eye(4)).max() < 0.02
  for other in (
    others[0, 1:, :, 0] * others[0, :-1, :, 0],
    others[0, :, 1:] * others[0, :, :-1],
    others[0, ..., 1:] * others[0, ..., :-1],
  ):
    assert abs(other.mean()) < 0.02


def test_noise_on_uint8_is_rounded_and_clipped():
  grey = augment.gaussian_noise(sigma=0.1)(np.full([128, 128, 3], 128, np.uint8), SEED).numpy().astype(float)
  assert abs(grey.mean() - 128) < 0.6 and abs(grey.std() - math.sqrt(25.5**2 + 1 / 12)) < 0.4
  assert (
    abs((augment.gaussian_noise(sigma=0.1)(np.zeros([128, 128, 3], np.uint8), SEED).numpy() == 0).mean() - 0.5) < 0.02
  )
  assert (augment.gaussian_noise(0.1, 0)(np.full([2, 2, 1], 100, np.uint8), SEED).numpy() == 126).all()
  assert (augment.gaussian_noise(-9, 0)(np.full([2, 2, 1], 100, np.uint8), SEED).numpy() == 0).all()


def test_draws():
  draws = augment.gaussian_noise(sigma=(0, 1)).draws(SEED, 20_000).numpy()
  tenths = np.apply_along_axis(np.bincount, 0, draws.astype(np.int64) * 10 >> 31)
  assert tenths.shape == (10, 3) and np.abs(tenths - 2000).max() < 230
  assert abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.03
  assert augment.gaussian_noise().outcomes == (math.inf, math.inf) and augment.gaussian_noise(0.1, 0).outcomes == (1, 1)
  assert repr(augment.gaussian_noise()) == "gaussian_noise(mean=0, sigma=0.1)"
  assert repr(augment.gaussian_noise(0.5, (0, 2), False)) == "gaussian_noise(mean=0.5, sigma=(0, 2), clip=False)"


def test_is_the_same_in_batches_at_every_split_and_in_stages():
  layers = [
    augment.random_crop(padding=4),
    augment.gaussian_noise(),
    augment.random_flip(),
    augment.random_apply([augment.gaussian_noise(0, 0.02)], 0.5),
    augment.random_solarize(),
    augment.gaussian_noise(0.1, (0, 0.1)),
    augment.normalize(),
    augment.gaussian_noise(clip=False),
  ]
  photographs, seeds = noise(6, 13, 17, 3), np.random.default_rng(7).integers(-(2**31), 2**31, [6, 2])
  for image, seed, at in zip(photographs, seeds, (1, 2, 3, 5, 6, 7)):
    first, second = augment.split(layers, at)
    np.testing.assert_array_equal(second(first(image, seed=seed), seed=seed), augment.compose(layers)(image, seed=seed))
  batch = augment.compose(layers, clips=False)(photographs, seed=SEED)
  alone = [augment.compose(layers)(image, seed=augment.seed_at(SEED, b)) for b, image in enumerate(photographs)]
  np.testing.assert_array_equal(batch, alone)
  source = tf.data.Dataset.from_tensor_slices(photographs)
  epochs = [
    [
      element.tobytes()
      for element in source.refurbish(layers[:2], layers[2:], r=2, seed=7, num_parallel_calls=calls).as_numpy_iterator()
    ]
    for calls in (1, 4)
  ]
  assert epochs[0] == epochs[1] and len(set(epochs[0])) == 6


class TestBadInput:
  @pytest.mark.parametrize(
    "arguments, error, match",
    [
      ({"sigma": -0.1}, ValueError, "sigma of gaussian_noise must be a number from 0 to 1,000,000, got -0.1"),
      ({"sigma": (0.2, 0.1)}, ValueError, r"smaller end first, got \(0.2, 0.1\)"),
      ({"mean": math.inf}, ValueError, "mean of gaussian_noise must be a number from -1,000,000 to 1,000,000"),
    ],
    ids=str,
  )
  def test_arguments(self, arguments, error, match):
    with pytest.raises(error, match=match):
      augment.gaussian_noise(**arguments)

  def test_images(self):
    with pytest.raises(TypeError, match="must be uint8 or float32, got dtype uint16. Convert"):
      augment.gaussian_noise()(noise(4, 4, 3).astype(np.uint16), SEED)
    with pytest.raises(
      ValueError, match="beyond 0 to 255 for clip=False, got .*uint8. Leave out clip=False, or convert it to float32"
    ):
      augment.gaussian_noise(clip=False)(noise(4, 4, 3), SEED)
    with pytest.raises(
      ValueError, match="got the result of normalize. Put the layer before normalize, or pass clip=False"
    ):
      augment.compose([augment.normalize(), augment.gaussian_noise()])(noise(4, 4, 3), seed=SEED)

  def test_floats_in_other_units_are_an_error_when_it_runs(self):
    """Floats up to 255, or normalized in another function, raise an error. NaN stays NaN."""
    image = np.float32(noise(4, 4, 3))
    match = (
      "gaussian_noise must have values from 0 to 1, to which it is clipped; the image has values such as 2.*clip=False"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      augment.gaussian_noise()(image, SEED)
    source = tf.data.Dataset.from_tensors(image)
    for stage in (source.refurbish([augment.gaussian_noise()]), source.refurbish([augment.gaussian_noise()]).batch(1)):
      with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        list(stage)
    first, second = augment.split([augment.normalize(), augment.gaussian_noise()], 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="such as -[12].*Put the layer before normalize"):
      second(first(noise(40, 40, 3)), seed=SEED)
    assert augment.random_apply([augment.gaussian_noise(clip=False)], 1)(image, SEED).shape == (4, 4, 3)
    image = np.full([4, 4, 3], np.nan, np.float32)
    assert np.isnan(augment.gaussian_noise()(image, SEED)).all()
