"""Rotations."""

from __future__ import annotations

import math
from typing import Any, Sequence

from .native_layers import DrawingLayer
from .random_affine import ANGLES, around_zero, checked_amounts


def random_rotation(degrees: float | Sequence[float]) -> Any:
  """Returns a layer that turns the image about its middle, counterclockwise by a random angle.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_rotation((90, 90))(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[2, 4], [1, 3]]

  It is torchvision's `RandomRotation(degrees)`. The angle is drawn uniformly, and the image keeps its size. Each pixel
  is the nearest one, as torchvision has it by default, in the arithmetic of Pillow; what comes from outside is 0. The
  angles of `random_affine` are clockwise, as torchvision has them there. Masks, boxes and key points follow.

  Args:
    degrees: a range `(low, high)` of angles, counterclockwise, from -360 to 360; or a number `d`, for that from `-d` to
      `d`.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 images with three channels or
    one, with sides of at most 32,767 pixels.

  Raises:
    TypeError, ValueError: `degrees` is of the wrong type, or out of range.
  """
  low, high = checked_amounts("degrees", around_zero(degrees), -360, 360, ANGLES, whose="random_rotation")
  number = math.inf if high > low else 1
  return DrawingLayer("random_rotation", f"degrees={low!r},{high!r}", f"{degrees}", outcomes=(number, number))
