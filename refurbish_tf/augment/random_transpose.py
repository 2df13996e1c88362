"""Swaps rows and columns."""

from __future__ import annotations

from typing import Any

from .native_layers import ChanceLayer


def random_transpose(p: float = 0.5) -> Any:
  """Returns a layer that swaps the rows and columns of the image with probability `p`.

  >>> image = tf.constant([[[1], [2], [3]], [[4], [5], [6]]], tf.uint8)
  >>> rtf.augment.random_transpose(p=1)(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[1, 4], [2, 5], [3, 6]]

  It is albumentations' `Transpose`. It mirrors the image at its diagonal, and moves whole pixels: all dtypes and
  numbers of channels are exact.

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. The image must be square unless `p` is 1 or
    0, because others would become images of two sizes. With `p=1` the result is as high as the image was wide.

  Raises:
    TypeError, ValueError: `p` is not a real number, or not from 0 to 1.
  """
  return ChanceLayer("random_transpose", p)
