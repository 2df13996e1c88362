"""Turns, moves, scales and shears."""

from __future__ import annotations

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import is_real
from .layers import is_pair
from .native_layers import DrawingLayer

_STEEPEST = 80


def random_affine(
  degrees: float | Sequence[float],
  translate: Sequence[float] | None = None,
  scale: Sequence[float] | None = None,
  shear: float | Sequence[float] | None = None,
) -> Any:
  """Returns a layer that turns the image by a random angle, and moves, scales and shears it.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_affine(degrees=(90, 90))(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[3, 1], [4, 2]]
  >>> rtf.augment.random_affine(15, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)(image, seed=[7, 0]).shape
  TensorShape([2, 2, 1])

  The arguments mean what they do for torchvision's `RandomAffine`. Each amount is drawn uniformly. The image keeps its
  size, and its middle stays in the middle, but for the translation. Each pixel is the nearest one, as torchvision has
  it by default, in the arithmetic of Pillow; what comes from outside is 0. Masks, boxes and key points follow.

  Args:
    degrees: a range `(low, high)` of angles, clockwise, from -360 to 360; or a number `d`, for that from `-d` to `d`. 0
      does not turn.
    translate: by how much the image moves at most, to the right or the left and up or down, in parts of its width and
      height, from 0 to 1. It moves by whole pixels.
    scale: a range of factors, from 0.01 to 100. 2 shows a part of the image twice as large.
    shear: a range of angles in degrees, from -80 to 80, by which vertical edges are slanted; or a number, as for
      `degrees`; or four numbers, the second two for horizontal edges.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 images with three channels or
    one, with sides of at most 32,767 pixels.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  right = down = 0
  if translate is not None:
    right, down = checked_amounts("translate", translate, 0, 1, _PAIR, ordered=False)
  ranges = {
    "degrees": checked_amounts("degrees", around_zero(degrees), -360, 360, ANGLES),
    "translate_x": (-right, right),
    "translate_y": (-down, down),
    "scale": (1.0, 1.0),
    **dict.fromkeys(("shear_x", "shear_y"), (0.0, 0.0)),
  }
  if scale is not None:
    ranges["scale"] = checked_amounts("scale", scale, 0.01, 100, "two numbers, the second not the smaller one,")
  if shear is not None:
    is_four = isinstance(shear, (list, tuple)) and len(shear) == 4
    for name, angles in zip(("shear_x", "shear_y"), (shear[:2], shear[2:]) if is_four else [around_zero(shear)]):
      ranges[name] = checked_amounts("shear", angles, -_STEEPEST, _STEEPEST, ANGLES)
  number = math.inf if any(high > low for low, high in ranges.values()) else 1
  given = {"translate": translate, "scale": scale, "shear": shear}
  shown = ", ".join([f"{degrees}", *(f"{name}={value}" for name, value in given.items() if value is not None)])
  text = " ".join(f"{name}={low!r},{high!r}" for name, (low, high) in ranges.items())
  return DrawingLayer("random_affine", text, shown, outcomes=(number, number))


ANGLES = "a number of at least 0, or two, the second not the smaller one,"
_PAIR = "two numbers, of the width and of the height,"


def around_zero(value):
  return (-value, value) if is_real(value) else value


def checked_amounts(name, values, lowest, highest, form, *, ordered=True, whose="random_affine"):
  """Returns two floats; raises unless they are in their range."""
  within = is_pair(values) and all(lowest <= value <= highest for value in values)
  if not within or ordered and values[0] > values[1]:
    way = "Pass 0 for no turn." if name == "degrees" else "Leave it out for no change."
    raise (ValueError if is_pair(values) else TypeError)(
      f"{name} of {whose} must be {form} from {lowest} to {highest}, got {values!r}. {way}"
    )
  return float(values[0]), float(values[1])
