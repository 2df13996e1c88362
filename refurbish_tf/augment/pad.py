"""Pixels around an image."""

from __future__ import annotations

from typing import Any, Literal, Sequence

from .final_layers import LARGEST_PADDING
from .layers import checked_fill, checked_whole
from .native_layers import NativeLayer

_MODES = ("constant", "edge", "reflect", "symmetric")


def pad(
  padding: int | Sequence[int],
  fill: int | Sequence[int] = 0,
  padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant",
) -> Any:
  """Returns a layer that adds pixels on each side of the image.

  >>> image = tf.constant([[[1], [2], [3]]], tf.uint8)
  >>> rtf.augment.pad((1, 0), fill=9)(image).numpy()[..., 0].tolist()
  [[9, 1, 2, 3, 9]]
  >>> rtf.augment.pad((2, 0, 0, 1), padding_mode="edge")(image).numpy()[..., 0].tolist()
  [[1, 1, 1, 2, 3], [1, 1, 1, 2, 3]]

  The arguments mean what they do for torchvision's `Pad`. Masks are padded like their image, with 0 for any `fill`.

  Args:
    padding: how many pixels are added, each a whole number from 0 to 16,383: one number for all sides,
      `(left and right, top and bottom)`, or `(left, top, right, bottom)`.
    fill: the value of new pixels with padding_mode="constant", a whole number from 0 to 255, or three of them, for the
      channels.
    padding_mode: "constant"; "edge", which repeats the outermost pixels; "reflect", which mirrors the image at the
      middle of its outermost pixels, and needs a padding below the side of the image; or "symmetric", which mirrors it
      at its edge, and needs one of at most that side.

  Returns:
    A function `layer(image)` of an image or a batch as for the layer that `random_crop` returns. It draws nothing. With
    another `fill` than 0 it takes uint8 images with at most four channels, or with three for three values.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range, or there is a `fill` with another
      `padding_mode`.
  """
  sides = list(padding) if isinstance(padding, (list, tuple)) else [padding]
  if len(sides) not in (1, 2, 4):
    raise ValueError(
      "padding of pad must be one number, (left and right, top and bottom), or (left, top, right, bottom), got "
      f"{padding!r}. Pass 4 for four pixels on each side."
    )
  left, top, right, bottom = [
    checked_whole("padding of pad", side, 0, LARGEST_PADDING, "Pass a number of pixels, such as 4.")
    for side in (sides * 4)[:4]
  ]
  if not isinstance(padding_mode, str) or padding_mode not in _MODES:
    raise ValueError(
      f"padding_mode of pad must be one of {', '.join(_MODES)}, got {padding_mode!r}. Leave it out for a single color."
    )
  values = checked_fill("fill of pad", fill)
  if any(values) and padding_mode != "constant":
    raise ValueError(
      f"fill of pad is for padding_mode='constant', got {fill!r} with {padding_mode!r}. Leave one of them out."
    )
  return NativeLayer(
    "pad",
    f"left={left} top={top} right={right} bottom={bottom} mode={padding_mode} fill={','.join(map(str, values))}",
    f"({left}, {top}, {right}, {bottom}), fill={fill!r}, padding_mode={padding_mode!r}",
  )
