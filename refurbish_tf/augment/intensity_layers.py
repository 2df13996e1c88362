"""Layers that change the values of pixels by random numbers: noise, and the brightness and contrast of scans."""

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import checked_flag
from .layers import check_ordered, checked_around, checked_real, ends_of
from .native_layers import DrawingLayer

_MOST = 1_000_000


def gaussian_noise(mean: float = 0.0, sigma: float | Sequence[float] = 0.1, clip: bool = True) -> Any:
  """Returns a layer that adds Gaussian noise to each value of the image.

  >>> image = tf.fill([32, 32, 3], tf.constant(100, tf.uint8))
  >>> noisy = rtf.augment.gaussian_noise(sigma=0.1)(image, seed=[7, 0])
  >>> noisy.dtype.name, round(float(tf.math.reduce_std(tf.cast(noisy, tf.float32))) / 255, 2)
  ('uint8', 0.1)

  It is torchvision's `GaussianNoise`. `mean` and `sigma` are fractions of the range of values, 1 for floats and 255 for
  uint8, which is rounded to the nearest. The noise is a function of the seed and the position of a value: the same
  bytes on every machine, and the same in all frames of a clip. Its distribution function is within 0.00011 of a normal
  one, and no noise exceeds 5.3 times sigma. `random_apply([gaussian_noise()], p=0.5)` adds it to half of the images.

  Args:
    mean: a real number from -1,000,000 to 1,000,000.
    sigma: the standard deviation, a real number from 0 to 1,000,000, or a range of them, `(low, high)`, from which it
      is drawn uniformly for each image. torchvision has no range.
    clip: whether to clip results to 0 to 1, or to 0 to 255. uint8 is always clipped. False is for floats in other
      units, such as the result of `normalize`.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 or float32 images, with 1 to
    64 channels. Floats to be clipped that are below -0.75 or above 16 are in other units, and raise an error.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  mean = checked_real("mean of gaussian_noise", mean, -_MOST, _MOST, "Leave it out for 0.")
  advice = "Pass 0.1 for a tenth of the range, or (0, 0.2)."
  low, high = (checked_real("sigma of gaussian_noise", value, 0, _MOST, advice) for value in ends_of(sigma))
  check_ordered("sigma of gaussian_noise", low, high)
  clip = checked_flag("clip of gaussian_noise", clip, "Leave it out to clip values to their range.")
  number = math.inf if high > 0 else 1
  shown = f"{low:g}" if low == high else f"({low:g}, {high:g})"
  return DrawingLayer(
    "gaussian_noise",
    f"mean={mean!r} sigma={low!r},{high!r} clip={int(clip)}",
    f"mean={mean:g}, sigma={shown}{'' if clip else ', clip=False'}",
    outcomes=(number, number),
  )


def random_intensity(scale: float | Sequence[float] = 0, shift: float | Sequence[float] = 0) -> Any:
  """Returns a layer that multiplies all values by a random number, and adds another one.

  >>> image = tf.constant([[[1.0], [2.0]]])
  >>> rtf.augment.random_intensity(scale=(3, 3), shift=(0.5, 0.5))(image, seed=[7, 0]).numpy().ravel().tolist()
  [3.5, 6.5]

  It combines MONAI's `RandScaleIntensity` and `RandShiftIntensity`, for values of any range, while `color_jitter` is
  for bytes. Both numbers are drawn uniformly, once for all slices of a volume. `random_apply([random_intensity(0.1)],
  p=0.5)` changes half of the volumes.

  Args:
    scale: a real number x from 0 to 1 for factors from 1 - x to 1 + x, or a range `(low, high)`, from 0 to 1,000,000.
    shift: a real number x, 0 to 1,000,000, for shifts from -x to x, or a range `(low, high)`, in the image's units.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for float32 images, such as `normalize` returns.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  scale = checked_around("scale of random_intensity", scale, 1, 0, _MOST, 1)
  shift = checked_around("shift of random_intensity", shift, 0, -_MOST, _MOST, _MOST)
  number = math.inf if scale[0] < scale[1] or shift[0] < shift[1] else 1
  return DrawingLayer(
    "random_intensity",
    f"scale={scale[0]!r},{scale[1]!r} shift={shift[0]!r},{shift[1]!r}",
    f"scale=({scale[0]:g}, {scale[1]:g}), shift=({shift[0]:g}, {shift[1]:g})",
    outcomes=(number, number),
  )
