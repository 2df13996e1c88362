"""Noise."""

from __future__ import annotations

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import checked_flag
from .layers import check_ordered, checked_real, ends_of
from .native_layers import DrawingLayer

_MOST = 1_000_000


def gaussian_noise(mean: float = 0.0, sigma: float | Sequence[float] = 0.1, clip: bool = True) -> Any:
  """Returns a layer that adds Gaussian noise to each value of the image.

  >>> image = tf.fill([32, 32, 3], tf.constant(100, tf.uint8))
  >>> noisy = rtf.augment.gaussian_noise(sigma=0.1)(image, seed=[7, 0])
  >>> noisy.dtype.name, round(float(tf.math.reduce_std(tf.cast(noisy, tf.float32))) / 255, 2)
  ('uint8', 0.1)

  It is torchvision's `GaussianNoise`. `mean` and `sigma` are in units of the values 0 to 1, that is, of 255 for uint8,
  which is rounded to the nearest. The noise is a function of the seed and the place of a value: the same bytes on every
  processor, and the same in all frames of a clip. Its distribution function is within 0.00011 of a normal one, and no
  noise is beyond 5.3 times sigma. `random_apply([gaussian_noise()], p=0.5)` adds it to half of the images.

  Args:
    mean: a real number from -1,000,000 to 1,000,000.
    sigma: the standard deviation, a real number from 0 to 1,000,000, or a range of them, `(low, high)`, from which it
      is drawn uniformly for each image. torchvision has no range.
    clip: whether results are cut to 0 to 1, or to 0 to 255. uint8 always is. False is for floats in other units, such
      as those that `normalize` makes.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 or float32 images, with 1 to
    64 channels. If floats that are to be clipped are below -0.75 or above 16, it raises an error: they are in other
    units.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  mean = checked_real("mean of gaussian_noise", mean, -_MOST, _MOST, "Leave it out for 0.")
  advice = "Pass 0.1 for a tenth of the range, or (0, 0.2)."
  low, high = (checked_real("sigma of gaussian_noise", value, 0, _MOST, advice) for value in ends_of(sigma))
  check_ordered("sigma of gaussian_noise", low, high)
  clip = checked_flag("clip of gaussian_noise", clip, "Leave it out to cut values to their range.")
  number = math.inf if high > 0 else 1
  shown = f"{low:g}" if low == high else f"({low:g}, {high:g})"
  return DrawingLayer(
    "gaussian_noise",
    f"mean={mean!r} sigma={low!r},{high!r} clip={int(clip)}",
    f"mean={mean:g}, sigma={shown}{'' if clip else ', clip=False'}",
    outcomes=(number, number),
  )
