"""SSD's colour changes."""

from __future__ import annotations

import math
from typing import Any, Sequence

from .color_layers import checked_amounts
from .layers import checked_probability
from .native_layers import DrawingLayer


def random_photometric_distort(
  brightness: Sequence[float] = (0.875, 1.125),
  contrast: Sequence[float] = (0.5, 1.5),
  saturation: Sequence[float] = (0.5, 1.5),
  hue: Sequence[float] = (-0.05, 0.05),
  p: float = 0.5,
) -> Any:
  """Returns a layer that changes brightness, contrast, saturation, hue and channel order, each with probability `p`.

  >>> image = tf.constant([[[200, 100, 50], [10, 20, 30]]], tf.uint8)
  >>> rtf.augment.random_photometric_distort()(image, seed=[7, 0]).shape
  TensorShape([1, 2, 3])

  It is torchvision's `RandomPhotometricDistort`: each of the five is drawn independently. Contrast comes directly after
  brightness or after the hue, with equal probability; the channels come last. Amounts are as for `color_jitter`,
  uniform in steps of 1 / 4096.

  Args:
    brightness, contrast, saturation: a range of factors, `(low, high)`, from 0 to 100, or a number as for
      `color_jitter`.
    hue: a range of turns, `(low, high)`, from -0.5 to 0.5, or a number.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 images with three channels.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.

  Implements the photometric distortions of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, as Howard,
  *Some Improvements on Deep Convolutional Neural Network Based Image Classification*, 2013, describes them.
  """
  p = checked_probability("random_photometric_distort", p, "Leave it out for a half.")
  given = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
  ranges = {name: checked_amounts("random_photometric_distort", name, value) for name, value in given.items()}
  texts = " ".join(f"{name}={low!r},{high!r}" for name, (low, high) in ranges.items())
  shown = ", ".join(f"{name}=({low:g}, {high:g})" for name, (low, high) in ranges.items())
  number = math.inf if p > 0 and any(low < high for low, high in ranges.values()) else None if p > 0 else 1
  return DrawingLayer(
    "random_photometric_distort",
    f"{texts} below={round(p * 2**31)}",
    f"{shown}, p={p:g}",
    outcomes=None if number is None else (number, number),
  )
