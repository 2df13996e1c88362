"""`random_erasing`: which rectangle it erases, how often, and which arguments it accepts."""

import numpy as np
import pytest

from refurbish_tf import augment

# The warning says that small images with many channels are usually a mistake. Here they are intended.
pytestmark = pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
SEED = [7, 0]


def noise(dtype, *shape):
  return np.random.default_rng(sum(shape)).integers(1, 120, shape).astype(dtype)


@pytest.mark.parametrize(
  "dtype, channels, value",
  [
    (np.uint8, 3, 0),
    (np.uint8, 3, (9, 200, 31)),
    (np.uint8, 1, 255),
    (np.uint8, 4, 7),
    (np.float32, 13, 0),
    (np.int16, 2, 0),
  ],
  ids=str,
)
def test_only_the_rectangle_is_erased(dtype, channels, value):
  for shape in ((1, 1), (2, 9), (31, 24)):
    image, erased = noise(dtype, *shape, channels), 0
    for number in range(10):
      made = augment.random_erasing(0.8, (0.05, 0.6), (0.2, 2), value)(image, [number, 4]).numpy()
      inside = np.zeros(shape, bool)
      rows, columns = ((made != image).any((axis, 2)) for axis in (1, 0))
      inside[np.ix_(rows, columns)] = True
      np.testing.assert_array_equal(made, np.where(inside[..., np.newaxis], np.asarray(value, dtype), image))
      assert made.dtype == dtype and all(np.diff(np.flatnonzero(each)).max(initial=1) == 1 for each in (rows, columns))
      erased += inside.any()
    assert shape == (1, 1) or 0 < erased < 10


def test_rectangles_have_the_given_sizes_and_probability():
  images = np.ones([3000, 60, 80, 1], np.uint8)
  made = augment.random_erasing(p=0.4)(images, SEED).numpy()[..., 0] == 0
  erased = made.any((1, 2))
  assert abs(erased.mean() - 0.4) < 0.03
  heights, widths = made.any(2).sum(1)[erased], made.any(1).sum(1)[erased]
  areas, ratios = made.sum((1, 2))[erased], heights / widths
  np.testing.assert_array_equal(areas, heights * widths)
  shares = areas / 4800
  assert 0.015 < shares.min() < 0.025 and 0.32 < shares.max() < 0.345 and abs(shares.mean() - 0.175) < 0.015
  assert 0.27 < ratios.min() < 0.36 and 2.4 < ratios.max() < 3.7 and abs(np.log(ratios).mean()) < 0.1
  # The rectangles can be anywhere within the image.
  tops, lefts = made.any(2).argmax(1)[erased], made.any(1).argmax(1)[erased]
  for starts, sizes, side in ((tops, heights, 60), (lefts, widths, 80)):
    assert starts.min() == 0 and (starts + sizes).max() == side and abs((starts / (side - sizes)).mean() - 0.5) < 0.03


@pytest.mark.parametrize(
  "arguments, error, match",
  [
    ({"scale": (0, 1)}, ValueError, "scale of random_erasing must be two numbers above 0"),
    ({"scale": (0.5, 1.1)}, ValueError, "scale"),
    ({"value": -1}, ValueError, "value of random_erasing"),
    ({"value": (1, 2)}, ValueError, "one whole number, or three"),
  ],
  ids=str,
)
def test_refuses(arguments, error, match):
  with pytest.raises(error, match=match):
    augment.random_erasing(**arguments)
