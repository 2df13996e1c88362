"""Random brightness and contrast of floats, such as those of scans."""

from __future__ import annotations

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import is_real
from .layers import is_pair
from .native_layers import DrawingLayer

_MOST = 1_000_000


def random_intensity(scale: float | Sequence[float] = 0, shift: float | Sequence[float] = 0) -> Any:
  """Returns a layer that multiplies all values by one random number, and adds another one.

  >>> image = tf.constant([[[1.0], [2.0]]])
  >>> rtf.augment.random_intensity(scale=(3, 3), shift=(0.5, 0.5))(image, seed=[7, 0]).numpy().ravel().tolist()
  [3.5, 6.5]

  It is MONAI's `RandScaleIntensity` and `RandShiftIntensity` in one, for values of any range: `color_jitter` is for
  bytes. Both numbers are drawn uniformly, once for all slices of a volume.
  `random_apply([random_intensity(0.1)], p=0.5)` changes half of the volumes.

  Args:
    scale: a real number x from 0 to 1 for factors from 1 - x to 1 + x, or a range of factors, `(low, high)`, from 0 to
      1,000,000.
    shift: a real number x from 0 to 1,000,000 for summands from -x to x, or a range of them, `(low, high)`, in the
      image's units.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of float32 images. `normalize` makes
    these.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  scale = _checked_range("scale", scale, 1, 0, 1)
  shift = _checked_range("shift", shift, 0, -_MOST, _MOST)
  number = math.inf if scale[0] < scale[1] or shift[0] < shift[1] else 1
  return DrawingLayer(
    "random_intensity",
    f"scale={scale[0]!r},{scale[1]!r} shift={shift[0]!r},{shift[1]!r}",
    f"scale=({scale[0]:g}, {scale[1]:g}), shift=({shift[0]:g}, {shift[1]:g})",
    outcomes=(number, number),
  )


def _checked_range(name, value, middle, lowest, most):
  """Returns `value` as a range; a single number, at most `most`, means a range around `middle`."""
  low, high = (middle - value, middle + value) if is_real(value) else value if is_pair(value) else (1, 0)
  if not lowest <= low <= high <= _MOST or is_real(value) and not value <= most:
    raise (ValueError if is_real(value) or is_pair(value) else TypeError)(
      f"{name} of random_intensity must be a number from 0 to {most:,}, or two from {lowest:,} to {_MOST:,}, the "
      f"second not the smaller one, got {value!r}. Pass 0 for no change."
    )
  return float(low), float(high)
