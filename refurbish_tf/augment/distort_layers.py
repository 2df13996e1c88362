"""The operations of the policies as separate layers, each with a probability. They equal Pillow's, bit for bit."""

import math
from typing import Any, Sequence

from .layers import check_ordered, checked_real, checked_whole, ends_of
from .native_layers import ChanceLayer

_MOST_SHARPNESS = 100


def random_adjust_sharpness(sharpness_factor: float | Sequence[float], p: float = 0.5) -> Any:
  """Returns a layer that sharpens or softens the image with probability `p`.

  >>> image = tf.constant([[[10], [10], [10]], [[10], [140], [10]], [[10], [10], [10]]], tf.uint8)
  >>> rtf.augment.random_adjust_sharpness(0, p=1)(image, seed=[7, 0]).numpy()[1, :, 0].tolist()
  [10, 60, 10]

  Args:
    sharpness_factor: a real number from 0 to 100, or a range of them, `(low, high)`, from which it is drawn uniformly,
      in steps of 1 / 4096. 0 gives a smoothed image, 1 the same image, 2 one twice as sharp. torchvision has no range.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  It is torchvision's `RandomAdjustSharpness`, with the same bytes as for Pillow images: the outermost pixels stay.
  """
  what, advice = "sharpness_factor of random_adjust_sharpness", "Pass 2 for twice as sharp, or (0.5, 2)."
  low, high = (checked_real(what, value, 0, _MOST_SHARPNESS, advice) for value in ends_of(sharpness_factor))
  number = math.inf if low < high else int(low != 1)
  return _with_range("random_adjust_sharpness", "sharpness_factor", low, high, p, number)


def random_autocontrast(p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, stretches the values of each channel to the range 0 to 255.

  >>> image = tf.constant([[[50], [100], [150]]], tf.uint8)
  >>> rtf.augment.random_autocontrast(p=1)(image, seed=[7, 0]).numpy()[0, :, 0].tolist()
  [0, 127, 255]

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.

  It is torchvision's `RandomAutocontrast`, with the same bytes as Pillow's `ImageOps.autocontrast`.
  """
  return ChanceLayer("random_autocontrast", p)


def random_equalize(p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, equalizes the histogram of each channel.

  >>> image = tf.reshape(tf.repeat(tf.constant([100, 110, 120, 130], tf.uint8), 255), [20, 51, 1])
  >>> rtf.augment.random_equalize(p=1)(image, seed=[7, 0]).numpy().ravel()[::300].tolist()
  [0, 85, 170, 255]

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.

  It is torchvision's `RandomEqualize`, with the same bytes as Pillow's `ImageOps.equalize`, which leaves a channel with
  fewer than 256 pixels as it is.
  """
  return ChanceLayer("random_equalize", p)


def random_invert(p: float = 0.5) -> Any:
  """Returns a layer that inverts all values with probability `p`.

  >>> image = tf.constant([[[0], [100], [255]]], tf.uint8)
  >>> rtf.augment.random_invert(p=1)(image, seed=[7, 0]).numpy()[0, :, 0].tolist()
  [255, 155, 0]

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.

  It is torchvision's `RandomInvert`.
  """
  return ChanceLayer("random_invert", p)


def random_posterize(bits: int | Sequence[int], p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, keeps only the highest bits of each value.

  >>> image = tf.constant([[[5], [130], [255]]], tf.uint8)
  >>> rtf.augment.random_posterize(2, p=1)(image, seed=[7, 0]).numpy()[0, :, 0].tolist()
  [0, 128, 192]

  Args:
    bits: a whole number from 1 to 8, or a range of them, `(low, high)`, from which it is drawn uniformly, both ends
      included. torchvision has no range.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  It is torchvision's `RandomPosterize` and Pillow's `ImageOps.posterize`.
  """
  advice = "Pass 4 to keep 16 values, or (2, 6)."
  low, high = (checked_whole("bits of random_posterize", value, 1, 8, advice) for value in ends_of(bits))
  return _with_range("random_posterize", "bits", low, high, p, high - low + 1 if low < 8 else 0)


def _with_range(name, parameter, low, high, p, number):
  check_ordered(f"{parameter} of {name}", low, high)
  text, shown = (f"{low!r}", f"{low:g}") if low == high else (f"{low!r},{high!r}", f"({low:g}, {high:g})")
  return ChanceLayer(name, p, f"{parameter}={text}", shown, outcomes=(number, number))
