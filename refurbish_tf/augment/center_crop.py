"""The middle of an image."""

from __future__ import annotations

from typing import Any, Sequence

from .final_layers import checked_size
from .native_layers import NativeLayer


def center_crop(size: int | Sequence[int]) -> Any:
  """Returns a layer that keeps the middle of the image.

  >>> rtf.augment.center_crop(224)(tf.zeros([256, 341, 3], tf.uint8)).shape
  TensorShape([224, 224, 3])
  >>> rtf.augment.center_crop((1, 4))(tf.constant([[[1], [2]]], tf.uint8)).numpy()[..., 0].tolist()
  [[0, 1, 2, 0]]

  It keeps the same pixels as torchvision's `CenterCrop`. An image that is smaller gets zeros on both sides. Validation
  images are usually prepared with `resize(256)` and `center_crop(224)`. Keras' `CenterCrop` resizes smaller images.

  Args:
    size: the size of the crop, a whole number of pixels from 1 to 65,535 for a square, or `(height, width)`.

  Returns:
    A function `layer(image)` of an image or a batch as for the layer that `random_crop` returns. It draws nothing. Its
    result has that size.

  Raises:
    TypeError, ValueError: `size` has the wrong type or is out of range.
  """
  height, width = checked_size(size, "center_crop")
  return NativeLayer("center_crop", f"height={height} width={width}", f"({height}, {width})")
