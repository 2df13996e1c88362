"""Quarter turns."""

from __future__ import annotations

from typing import Any

from .native_layers import DrawingLayer


def random_rotate90() -> Any:
  """Returns a layer that turns the image by 0, 90, 180 or 270 degrees, each equally likely.

  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_rotate90()(image, seed=[2, 0]).numpy()[..., 0].tolist()
  [[2, 4], [1, 3]]

  It is albumentations' `RandomRotate90(p=1)`, for images without a preferred direction, such as those of satellites and
  microscopes. It moves whole pixels: all dtypes and numbers of channels are exact. With `random_flip` it draws from all
  eight orientations of a square.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. The image must be square: a quarter turn of
    any other would make images of two sizes. Put `random_crop(size)` or `center_crop(size)` before it.
  """
  return DrawingLayer("random_rotate90", outcomes=(4, 4))
