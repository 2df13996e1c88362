"""Several fixed crops of each validation image, over which predictions are averaged."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import checks
from .final_layers import checked_size
from .layers import checked_when_it_runs, of_known_rank, way_to_channels


def five_crop(size: int | Sequence[int]) -> Callable[[Any], tf.Tensor]:
  """Returns a function that makes five crops of a validation image: its corners and its middle.

  >>> rtf.augment.five_crop(24)(tf.zeros([32, 40, 3], tf.uint8)).shape
  TensorShape([5, 24, 24, 3])

  They are the crops of torchvision's `FiveCrop`, in its order: upper left, upper right, lower left, lower right, and
  middle. torchvision returns a tuple, this function one tensor. It is not a layer for `compose`, because it makes
  several images of one. Call it in `Dataset.map`, and average the model's predictions for the crops of an image:

  >>> model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(7)])
  >>> photos = tf.data.Dataset.from_tensors(tf.zeros([32, 40, 3])).repeat(8)
  >>> for crops in photos.map(rtf.augment.ten_crop(24)).batch(4):
  ...     predicted = model(tf.reshape(crops, [-1, 24, 24, 3]))
  ...     predicted = tf.reduce_mean(tf.reshape(predicted, [-1, 10, 7]), axis=1)
  >>> predicted.shape
  TensorShape([4, 7])

  Args:
    size: the size of the crops, a whole number of pixels from 1 to 65,535 for a square, or `(height, width)`.

  Returns:
    A function `fn(image)`. For an image of any dtype, `[height, width, channels]`, it returns `[5, height, width,
    channels]`, and for a batch `[batch, 5, height, width, channels]`. It raises `ValueError` for another shape or a
    smaller image, and `tf.errors.InvalidArgumentError` if the size is only known when it runs.

  Raises:
    TypeError, ValueError: `size` has the wrong type or is out of range.

  Krizhevsky et al., *ImageNet Classification with Deep Convolutional Neural Networks*, NeurIPS 2012, section 4.1,
  average over the crops of `ten_crop`.
  """
  return _Crops("five_crop", size)


def ten_crop(size: int | Sequence[int], vertical_flip: bool = False) -> Callable[[Any], tf.Tensor]:
  """Returns a function that makes the crops of `five_crop` from a validation image, and again from its mirror image.

  >>> rtf.augment.ten_crop((24, 20))(tf.zeros([4, 32, 40, 3], tf.uint8)).shape
  TensorShape([4, 10, 24, 20, 3])

  They are the crops of torchvision's `TenCrop`, in its order. `five_crop` has an example that averages over them.

  Args:
    size: as for `five_crop`.
    vertical_flip: whether to mirror top and bottom, instead of left and right.

  Returns:
    A function like the one that `five_crop` returns, for ten crops.

  Raises:
    TypeError, ValueError: as for `five_crop`, or `vertical_flip` is not a bool.
  """
  return _Crops("ten_crop", size, -3 if checks.checked_flag("vertical_flip of ten_crop", vertical_flip) else -2)


class _Crops:
  """It is a class, so that it can be pickled."""

  # `compose` refuses it.
  makes_many = True

  def __init__(self, name, size, flipped_axis=None):
    self.__name__, self._size, self._flipped_axis = name, checked_size(size, name), flipped_axis

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any, *rest: Any) -> tf.Tensor:
    if rest or isinstance(image, (dict, tuple)):
      raise TypeError(
        f"{self.__name__} must be called with an image alone, because no other component follows its crops, got "
        f"{1 + len(rest)} arguments, the first of them a {type(image).__name__}. Call it in a function: .map(lambda "
        'image, label: (crops(image), label)), or .map(lambda each: {**each, "image": crops(each["image"])}).'
      )
    image = of_known_rank(image)
    if image.shape.rank not in (3, 4):
      raise ValueError(
        f"image of {self.__name__} must be [height, width, channels] or, for a batch, [batch, height, width, "
        f"channels], got shape {image.shape}. {way_to_channels(image.shape)}"
      )
    (height, width), known, sides = self._size, image.shape[-3:-1], tf.shape(image)[-3:-1]
    told = f"image of {self.__name__} must be at least as large as its crops, {height} x {width}. Resize it first. Got"
    if any(side is not None and side < least for side, least in zip(known, self._size)):
      raise ValueError(f"{told} {known[0]} x {known[1]}.")
    image = checked_when_it_runs(image, tf.reduce_all(sides >= self._size), f"{told}:", sides)
    rest = tf.unstack(sides - self._size)
    # As in torchvision, half of the rest is rounded to even.
    middle = [side // 2 + side % 2 * (side // 2 % 2) for side in rest]
    mirrored = [] if self._flipped_axis is None else [tf.reverse(image, [self._flipped_axis])]
    made = tf.stack(
      [
        each[..., y : y + height, x : x + width, :]
        for each in [image, *mirrored]
        for y, x in ((0, 0), (0, rest[1]), (rest[0], 0), rest, middle)
      ],
      axis=-4,
    )
    made.set_shape([*image.shape[:-3], 5 + 5 * len(mirrored), height, width, image.shape[-1]])
    return made
