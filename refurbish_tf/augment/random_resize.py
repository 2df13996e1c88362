"""Resizing to a random size."""

from __future__ import annotations

from typing import Any

from .final_layers import LARGEST_RESIZED, checked_antialias
from .layers import checked_whole
from .native_layers import DrawingLayer


def random_resize(min_size: int, max_size: int, antialias: bool = True) -> Any:
  """Returns a layer that resizes the image, so that its shortest side has a random number of pixels.

  >>> layer = rtf.augment.random_resize(480, 801)
  >>> layer(tf.zeros([300, 400, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([512, 682, 3])

  The arguments mean what they do for torchvision's `RandomResize`: all lengths from `min_size` to below `max_size` are
  equally likely. The longest side is rounded down. The image is resized as by `resize(size, antialias)`. Images get
  different sizes: put a layer after it that makes all of one, such as `random_crop(size, pad_if_needed=True)`, before
  they are batched.

  Args:
    min_size: the least length of the shortest side, a whole number of pixels from 1 to 65,535.
    max_size: the upper bound, exclusive, a whole number above `min_size`.
    antialias: whether an image that shrinks is averaged over all of its pixels, not two in each direction.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  antialias = checked_antialias(antialias, "random_resize")
  advice = "Pass a number of pixels, such as 480."
  low = checked_whole("min_size of random_resize", min_size, 1, LARGEST_RESIZED, advice)
  advice = "Pass one above min_size, as max_size is not drawn itself."
  high = checked_whole("max_size of random_resize", max_size, low + 1, LARGEST_RESIZED + 1, advice)
  text, number = f"short={low} number={high - low} antialias={antialias:d}", high - low
  return DrawingLayer("random_resize", text, f"{low}, {high}, antialias={antialias}", outcomes=(number, number))
