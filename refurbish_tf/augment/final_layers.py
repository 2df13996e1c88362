"""Layers for a final augmentation. Each one, or several in a row, is a single C++ op.

The op draws int32 parameters from a seed and applies them to the image, in one pass over its bytes. The draws depend on
the seed alone. Each half is an op of its own, too, so that draws can be sent to where the pixels are.
"""
from __future__ import annotations

import math
import numbers
import operator
import re
from typing import Any, Literal, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import native
from .layers import checked_padding
from .layers import checked_range
from .layers import checked_seed

# The most layers of one op. Further layers go to another op.
MOST_LAYERS = 64
_LARGEST_SIDE = 2**31 - 1
_LARGEST_RESIZED = 65_535
_DTYPES = ("float32", "bfloat16", "float16")


def random_crop(padding: int, mode: Literal["zeros", "reflect"] = "zeros") -> Any:
  """Returns a layer that pads the image with `padding` pixels on each side and crops it back at a random place.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> augment.random_crop(padding=1)(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[0, 0], [0, 1]]

  Each of the (2 * padding + 1)² places is as likely as the others.

  Args:
    padding: a whole number of pixels, from 0 to 16,383. Lee et al. take 3.
    mode: the padding: "zeros", or "reflect" for the image mirrored at its outermost pixels, as in `numpy.pad`, which
      needs a padding smaller than both sides of the image.

  Returns:
    A function `layer(image, seed)` of an image, uint8 `[height, width, channels]`, or of a batch of them, `[batch, height,
    width, channels]`, with 1, 3 or 4 channels, its sides known while tracing or not, and a seed, int32 or int64 `[2]` as
    for `tf.random.stateless_uniform`. It returns the same shape and dtype, with equal results for equal images and
    seeds. Image b of a batch gets the seed `seed_at(seed, b)`. It raises `TypeError` for another dtype and `ValueError`
    for another shape.

    It can also run in two steps, even on two machines or devices: `layer.draws(seed, batch_size=None)` returns int32
    `[number]`, or `[batch_size, number]`, and `layer.pixels(image, draws)` the result.

  Raises:
    TypeError: `padding` is not a whole number.
    ValueError: `padding` is negative or above 16,383, or there is no such mode.

  Implements the random crop of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 4: many
  outcomes for little work, which suits the final augmentation.
  """
  padding = checked_padding(padding, "random_crop")
  if not isinstance(mode, str) or mode not in ("zeros", "reflect"):
    raise ValueError(
        f"mode of random_crop must be 'zeros' or 'reflect', got {mode!r}. Pass 'zeros' for the crop of the papers.")
  reflects = mode == "reflect"
  return _Drawing(
      "random_crop", f"padding={padding} reflect={reflects:d}", f"padding={padding}, mode={mode!r}",
      reflected=padding if reflects else 0)


def random_flip() -> Any:
  """Returns a layer that mirrors the image, left to right, with probability 1/2.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> image = tf.constant([[[1, 2, 3], [4, 5, 6]]], tf.uint8)
  >>> augment.random_flip()(image, seed=[1, 0]).numpy().tolist()
  [[[4, 5, 6], [1, 2, 3]]]

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Implements the random horizontal flip of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2
  and 4.
  """
  return _Drawing("random_flip")


def random_resized_crop(
    size: int | Sequence[int], scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3),
    antialias: bool = False) -> Any:
  """Returns a layer that resizes a random part of the image, of random area and aspect ratio, to a size.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> augment.random_resized_crop(224)(tf.zeros([348, 500, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([224, 224, 3])

  The share of the area and the logarithm of width / height are drawn uniformly, up to ten times, until a part fits into
  the image; then its place is drawn. If none fits, the layer takes the largest part in the middle whose aspect ratio is
  allowed. The part is resized as by `tf.image.resize(part, size, "bilinear", antialias=antialias)` and rounded to
  uint8.

  Args:
    size: a whole number of pixels from 1 to 65,535, or `(height, width)`.
    scale: the least and the largest share of the image's area, above 0 and at most 1.
    ratio: the least and the largest width / height, above 0.
    antialias: whether a part that shrinks is averaged over all of its pixels, not two in each direction.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, except that its result has that size.

  Raises:
    TypeError: an argument is of the wrong type.
    ValueError: an argument is out of range.

  Implements the crop of Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, section 6.
  """
  height, width = checked_size(size, "random_resized_crop")
  scale = checked_range("random_resized_crop", "scale", scale, 1)
  ratio = checked_range("random_resized_crop", "ratio", ratio, math.inf)
  _check_antialias(antialias, "random_resized_crop")
  texts = [f"{name}={low!r},{high!r}" for name, (low, high) in (("scale", scale), ("ratio", ratio))]
  return _Drawing(
      "random_resized_crop", f"height={height} width={width} {' '.join(texts)} antialias={antialias:d}",
      f"({height}, {width}), scale={scale}, ratio={ratio}, antialias={bool(antialias)}", resized=(height, width))


def resize(size: int | Sequence[int], antialias: bool = True) -> Any:
  """Returns a layer that resizes the image.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> augment.resize((2, 1))(tf.constant([[[0], [20]], [[40], [60]]], tf.uint8)).numpy()[..., 0].tolist()
  [[10], [50]]

  It is `tf.image.resize(image, size, "bilinear", antialias=antialias)`, rounded to uint8, in fixed point: no value differs
  by more than 1.

  Args:
    size: a whole number of pixels from 1 to 65,535, or `(height, width)`.
    antialias: whether an image that shrinks is averaged over all of its pixels, not two in each direction.

  Returns:
    A function `layer(image)` of an image or a batch as for the one that `random_crop` returns, except that its result has
    that size. It takes no seed.

  Raises:
    TypeError: `size` is not a whole number, or two; `antialias` is not True or False.
    ValueError: `size` is out of range.
  """
  height, width = checked_size(size, "resize")
  _check_antialias(antialias, "resize")
  return _Seedless(
      "resize", f"height={height} width={width} antialias={antialias:d}",
      f"({height}, {width}), antialias={bool(antialias)}", resized=(height, width))


def cutout(size: int) -> Any:
  """Returns a layer that blackens a square of the image, centred at any of its pixels.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> augment.cutout(2)(tf.ones([3, 4, 1], tf.uint8), seed=[7, 0]).numpy()[..., 0].tolist()
  [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]

  Args:
    size: the side of the square, a whole number of pixels of at least 1. The paper takes 16 for CIFAR-10, 8 for CIFAR-100.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError: `size` is not a whole number.
    ValueError: `size` is below 1.

  Implements DeVries & Taylor, *Improved Regularization of Convolutional Neural Networks with Cutout*, 2017, section 3.
  """
  if isinstance(size, bool) or not isinstance(size, numbers.Integral):
    raise TypeError(
        f"size of cutout must be a whole number of pixels, at least 1, got {size!r}. Pass a Python integer, such as 16.")
  if not 1 <= size <= _LARGEST_SIDE:
    raise ValueError(
        f"size of cutout must be a whole number of pixels, at least 1, got {size!r}. Leave the layer out where nothing "
        "is to be cut out.")
  return _Drawing("cutout", f"side={size}", f"{size}")


def normalize(mean: float | Sequence[float], std: float | Sequence[float], dtype: Any = "float32") -> Any:
  """Returns a layer that normalises the image: `(image / 255 - mean) / std`.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> layer = augment.normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.5], dtype="bfloat16")
  >>> layer(tf.constant([[[0, 255, 51]]], tf.uint8))
  <tf.Tensor: shape=(1, 1, 3), dtype=bfloat16, numpy=array([[[-2, 2, -0.601562]]], dtype=bfloat16)>

  It is `image * scale + offset`, rounded to float32 after each of the two, with `scale = 1 / (255 * std)` and `offset =
  -mean / std` as float32; then rounded to `dtype`. It draws no numbers. Behind other layers of this module it is part
  of their pass over the image. It must be the last one, as the others take uint8.

  Args:
    mean: a real number, or one for each channel, of the images' values divided by 255.
    std: likewise, and above 0.
    dtype: "float32", "bfloat16" or "float16", or TensorFlow's names for them.

  Returns:
    A function `layer(image)` of an image or a batch as for the one that `random_crop` returns, which returns the same shape
    in `dtype`.

  Raises:
    TypeError: `mean` or `std` does not consist of real numbers.
    ValueError: `mean` is not finite, `std` is not finite and above 0, they are of different numbers of channels, or there
      is no such dtype.
  """
  name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", None))
  if name not in _DTYPES:
    raise ValueError(
        f"dtype of normalize must be one of {', '.join(_DTYPES)}, got {dtype!r}. Leave the layer out for uint8.")
  mean, std = checked_normalization(mean, std, "normalize")
  texts = [f"{key}={','.join(map(repr, values))}" for key, values in (("mean", mean), ("std", std))]
  return _Seedless(
      "normalize", f"dtype={name} {' '.join(texts)}", f"{mean}, {std}, {name!r}", channels=len(mean), dtype=name)


def checked_normalization(mean, std, whose):
  """Returns two lists of floats of equal length: one number for all channels, or one for each."""
  checked = []
  for name, values in (("mean", mean), ("std", std)):
    channels = np.atleast_1d(values).tolist() if isinstance(values, (np.ndarray, np.number)) else values
    channels = channels if isinstance(channels, (list, tuple)) else [channels]
    if not channels or not all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in channels):
      raise TypeError(
          f"{name} of {whose} must be a real number, or a list of one for each channel, got {values!r}. Pass Python "
          "numbers, such as 0.5.")
    try:
      checked.append(np.asarray(channels, np.float64))
    except OverflowError:
      raise ValueError(f"{name} of {whose} must be finite, got {values!r}. Pass values divided by 255.") from None
  mean, std = checked
  if not np.isfinite(mean).all():
    raise ValueError(
        f"mean of {whose} must be finite, the mean of values divided by 255, got {mean.tolist()}. Look for NaN in what "
        "it was computed of.")
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    usable = np.isfinite(std) & (std > 0) & np.isfinite(np.float32(1 / (255 * std)))
  if not usable.all():
    raise ValueError(
        f"std of {whose} must be above 0, finite, and not as small as 1e-40, of values divided by 255, got "
        f"{std.tolist()}. Pass 1 for a channel that is not to be scaled.")
  for name, values in (("mean", mean), ("std", std)):
    if len(values) not in (1, 3, 4):
      raise ValueError(
          f"{name} of {whose} must have 1, 3 or 4 channels, as images have, got {len(values)}. Pass one number for all "
          "channels, or one for each.")
  if 1 not in (len(mean), len(std)) and len(mean) != len(std):
    raise ValueError(
        f"mean and std of {whose} must have equal numbers of channels, got {len(mean)} and {len(std)}. Pass one number "
        "for all channels, or one for each.")
  mean, std = np.broadcast_arrays(mean, std)
  with np.errstate(over="ignore"):
    if not np.isfinite(np.float32(-mean / std)).all():
      raise ValueError(
          f"mean / std of {whose} must be within float32, got mean={mean.tolist()} and std={std.tolist()}. Divide both "
          "by 255 if they are of values up to 255.")
  return mean.tolist(), std.tolist()


class FinalLayer:
  """A layer that `compose` joins with adjacent ones into one op."""

  # Effects on images: the padding if it reflects, the new size, the number of channels if not 1, the dtype of the
  # result.
  def __init__(self, name, arguments="", shown="", *, reflected=0, resized=None, channels=1, dtype="uint8"):
    self.__name__ = name
    self._arguments = arguments
    self._shown = shown
    self.reflected = reflected
    self.resized = resized
    self.channels = channels
    self.dtype = dtype
    self._run = Run([(self, -1)])
    self.draws = self._run.draws
    self.pixels = self._run.pixels

  def __repr__(self):
    return f"{self.__name__}({self._shown})"

  def described(self, position):
    """The layer as an attribute of the ops. `position` derives its seed, unless it is -1."""
    text = f"{self.__name__} position={position} {self._arguments}".rstrip()
    # In pieces, because TensorFlow's cache of kernels only compares the ends of strings of 80 or more characters, and
    # would confuse layers.
    return re.split(" |(?=,)", text)


class _Drawing(FinalLayer):
  """A random layer. See the function that returns it."""

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any, seed: Any) -> tf.Tensor:
    return self._run(image, seed)


class _Seedless(FinalLayer):
  """A layer that takes no seed. See the function that returns it."""

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any) -> tf.Tensor:
    return self._run(image)


class Run:
  """Layers in a row, as one op, or as two: draws and pixels."""

  def __init__(self, layers, whose=None):
    """`layers`: pairs of a layer and the position that derives its seed, or -1."""
    self._layers = [layer for layer, _ in layers]
    self._texts = [piece for layer, position in layers for piece in layer.described(position)]
    self._whose = whose or self._layers[0].__name__
    self._dtype = tf.as_dtype(self._layers[-1].dtype)
    self._takes_seed = any(isinstance(layer, _Drawing) for layer in self._layers)

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image, seed=None):
    image = self._checked_image(image)
    if image.shape.rank is None:
      image = tf.ensure_shape(image, [None] * 3)  # An unknown rank is not taken for a batch.
    if not self._takes_seed:
      return self._made(image, tf.zeros([0], tf.int32))
    seed = checked_seed(seed, self._whose)
    return native.ops().refurbish_tf_image_layers(images=image, seed=seed, layers=self._texts, T=self._dtype)

  @tf.autograph.experimental.do_not_convert
  def draws(self, seed: Any, batch_size: Any = None) -> tf.Tensor:
    """Returns the draws for a seed, int32 `[number]`, or `[batch_size, number]` for the images of a batch."""
    seed = checked_seed(seed, self._whose)
    sizes = [] if batch_size is None else [_checked_batch_size(batch_size, self._whose)]
    return native.ops().refurbish_tf_image_draws(seed=seed, batch_size=sizes, layers=self._texts)

  @tf.autograph.experimental.do_not_convert
  def pixels(self, image: Any, draws: Any) -> tf.Tensor:
    """Applies the draws to an image, or to each image of a batch."""
    image, draws = self._checked_image(image), tf.convert_to_tensor(draws)
    rank = None if image.shape.rank is None else image.shape.rank - 2
    if draws.dtype != tf.int32:
      raise TypeError(f"draws of {self._whose} must be the int32 that draws returns, got dtype {draws.dtype.name}.")
    if self._takes_seed and None not in (rank, draws.shape.rank) and draws.shape.rank != rank:
      raise ValueError(
          f"draws of {self._whose} must be [batch_size, number] for a batch, [number] for an image, got shape "
          f"{draws.shape} for images of shape {image.shape}. Pass what draws returns.")
    return self._made(image, draws)

  def _made(self, image, draws):
    return native.ops().refurbish_tf_image_pixels(images=image, draws=draws, layers=self._texts, T=self._dtype)

  def _checked_image(self, image):
    image = tf.convert_to_tensor(image)
    if image.dtype != tf.uint8:
      raise TypeError(
          f"image of {self._whose} must be uint8, got dtype {image.dtype.name}. Put the layer before any conversion to "
          "float, or convert with tf.cast(image, tf.uint8).")
    shape = image.shape
    if shape.rank is None:
      return image
    if shape.rank not in (3, 4) or shape[-1] not in (None, 1, 3, 4) or 0 in shape[-3:-1]:
      raise ValueError(
          f"image of {self._whose} must be [height, width, channels] or, for a batch, [batch, height, width, "
          f"channels], with at least one pixel and 1, 3 or 4 channels, got shape {shape}. Decode images with "
          "channels=3.")
    size = shape[-3:-1]
    for layer in self._layers:
      if any(side is not None and layer.reflected >= side for side in size):
        raise ValueError(
            f"padding of {layer.__name__} with mode='reflect' must be smaller than both sides of the image, got "
            f"padding={layer.reflected} for {size[0]} x {size[1]} pixels. Pass a smaller one, or mode='zeros'.")
      size = layer.resized or size
      if layer.channels not in (1, shape[-1]) and shape[-1] is not None:
        raise ValueError(
            f"mean and std of {self._whose} must have the channels of the images, {shape[-1]}, got {layer.channels}. "
            "Pass one number for all channels, or one for each.")
    return image


def _checked_batch_size(batch_size, whose):
  size = tf.convert_to_tensor(batch_size)
  if not size.dtype.is_integer:
    raise TypeError(f"batch_size of {whose} must be a whole number, got {batch_size!r}.")
  value = tf.get_static_value(size)
  if size.shape.rank not in (0, None) or value is not None and value < 0:
    raise ValueError(f"batch_size of {whose} must be one whole number of at least 0, got {batch_size!r}.")
  return tf.cast(size, tf.int64)


def _check_antialias(antialias, whose):
  if not isinstance(antialias, (bool, np.bool_)):
    raise TypeError(
        f"antialias of {whose} must be True or False, got {antialias!r}. Pass True for the smoother, slower way to make "
        "images smaller.")


def checked_size(size, whose):
  """Returns `(height, width)`; raises unless `size` is that, or a whole number for both."""
  size = size.tolist() if isinstance(size, np.ndarray) else size
  sides = size if isinstance(size, (list, tuple)) else (size, size)
  if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, numbers.Integral) for side in sides):
    raise TypeError(
        f"size of {whose} must be a whole number of pixels, or (height, width), got {size!r}. Pass 224, or (192, 256).")
  if not all(1 <= side <= _LARGEST_RESIZED for side in sides):
    raise ValueError(
        f"size of {whose} must be from 1 to {_LARGEST_RESIZED:,} pixels, got {size!r}. Pass 224, or (192, 256).")
  return tuple(map(operator.index, sides))
