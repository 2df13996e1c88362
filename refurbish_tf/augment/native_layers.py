"""What all native layers have in common: several in a row are a single C++ op.

The op draws int32 numbers from a seed and applies them to the image, in as few passes over its bytes as give the same
values. The draws depend on the seed alone. Each half is an op of its own, too, so that draws can be sent to where the
pixels are.
"""
from __future__ import annotations

import collections
import re
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import native
from .layers import checked_seed, way_to_channels, way_to_uint8

# The most layers of one op. Further layers go to another op.
MOST_LAYERS = 64
# TensorFlow's cache of kernels only compares the ends of strings of 80 or more characters, and would confuse layers.
_LONGEST_PIECE = 79


class HalfAugmented(collections.namedtuple("HalfAugmented", ["image", "sub_policy"])):
  """The output of AutoAugment's first layer and the input of its second: the image, and the drawn sub-policy (int32).

  `Dataset.map` unpacks plain tuples into arguments, but not this one, so it passes through a dataset in one piece.
  """
  __slots__ = ()


class NativeLayer:
  """A layer that `compose` joins with adjacent ones into one op. This one takes no seed."""

  takes_seed = False
  # AutoAugment's second layer takes over what the first hands on: texts that must be the same.
  hands_on: str | None = None
  takes_over: str | None = None

  # `kind` and `arguments` are the layer for the ops. The others are effects on images: the padding if it reflects, the
  # new size, the number of channels of a normalisation if not any, whether images must be of three colors, the dtype of
  # the result.
  def __init__(self, name, arguments="", shown="", *, kind=None, reflected=0, resized=None, channels=1, colors_only=False,
               dtype="uint8"):
    self.__name__ = name
    self._text = f"{kind or name} position={{}} {arguments}".rstrip()
    self._shown = shown
    self.reflected = reflected
    self.resized = resized
    self.channels = channels
    self.colors_only = colors_only
    self.dtype = dtype
    self._chain = LayerChain([(self, -1)])
    self.draws = self._chain.draws
    self.pixels = self._chain.pixels

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any) -> tf.Tensor:
    return self._chain(image)

  def __repr__(self):
    return f"{self.__name__}({self._shown})"

  @property
  def text(self):
    """What the layer does, without the position that derives its seed."""
    return self._text.replace(" position={}", "")

  def described(self, position):
    """The layer as an attribute of the ops, in pieces. `position` derives its seed, unless it is -1."""
    pieces = [""]
    for word in re.split("(?= |,)", self._text.format(position)):
      if len(pieces[-1]) + len(word) > _LONGEST_PIECE:
        pieces.append(word.lstrip())
      else:
        pieces[-1] += word
    return pieces


class DrawingLayer(NativeLayer):
  """A random layer."""

  takes_seed = True

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image: Any, seed: Any) -> tf.Tensor:
    return self._chain(image, seed)


class LayerChain:
  """Layers in a row, as one op, or as two: draws and pixels."""

  def __init__(self, layers, whose=None):
    """`layers`: pairs of a layer and the position that derives its seed, or -1."""
    self._layers = [layer for layer, _ in layers]
    self.texts = [piece for layer, position in layers for piece in layer.described(position)]
    self._whose = whose or self._layers[0].__name__
    self._dtype = tf.as_dtype(self._layers[-1].dtype)
    self._takes_seed = any(layer.takes_seed for layer in self._layers)
    # Whether the sub-policy comes from, or goes to, another chain.
    self._takes_over, self._hands_on = self._layers[0].takes_over, self._layers[-1].hands_on

  @tf.autograph.experimental.do_not_convert
  def __call__(self, image, seed=None):
    if self._takes_over or self._hands_on:
      return self.with_masks(image, {}, seed)[0]
    image = self._checked_image(_of_known_rank(image))
    if not self._takes_seed:
      return self._made(image, tf.zeros([0], tf.int32))
    seed = checked_seed(seed, self._whose)
    return native.ops().refurbish_tf_image_layers(images=image, seed=seed, layers=self.texts, T=self._dtype)

  @tf.autograph.experimental.do_not_convert
  def with_masks(self, image, masks, seed=None):
    """Returns the image and a dict of its masks, which the same draws move."""
    sub_policy = None
    if self._takes_over:
      if not isinstance(image, HalfAugmented):
        raise TypeError(
            f"image of {self._whose} must be what the first layer of {self._takes_over} returned, got a "
            f"{type(image).__name__}. Keep the two layers together, with nothing between them.")
      image, sub_policy = image
    image = self._checked_image(_of_known_rank(image))
    batch_size = tf.shape(image)[0] if image.shape.rank == 4 else None
    draws = self._draws(seed if self._takes_seed else [0, 0], batch_size)
    if sub_policy is not None:
      draws = tf.concat([draws[..., :1] + sub_policy[..., tf.newaxis] * self._layers[0].group, draws[..., 1:]], -1)
    moved = {
        name: native.ops().refurbish_tf_image_mask(
            masks=mask, draws=draws, image_shape=tf.shape(image), layers=self.texts) for name, mask in masks.items()}
    image = self.pixels(image, draws)
    return HalfAugmented(image, draws[..., -1] // self._layers[-1].group) if self._hands_on else image, moved

  @property
  def is_whole(self):
    """Whether what it draws depends on the seed alone, and what it makes is an image."""
    return not self._takes_over and not self._hands_on

  @tf.autograph.experimental.do_not_convert
  def draws(self, seed: Any, batch_size: Any = None) -> tf.Tensor:
    """Returns the draws for a seed, int32 `[number]`, or `[batch_size, number]` for the images of a batch."""
    if self._takes_over:
      raise ValueError(
          f"draws of {self._whose} go on from those of the first layer of {self._takes_over}. Compose both layers, and "
          "take the draws of that.")
    return self._draws(seed, batch_size)

  def _draws(self, seed, batch_size):
    seed = checked_seed(seed, self._whose)
    sizes = [] if batch_size is None else [_checked_batch_size(batch_size, self._whose)]
    return native.ops().refurbish_tf_image_draws(seed=seed, batch_size=sizes, layers=self.texts)

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
    return native.ops().refurbish_tf_image_pixels(images=image, draws=draws, layers=self.texts, T=self._dtype)

  def _checked_image(self, image):
    image = tf.convert_to_tensor(image)
    if image.dtype != tf.uint8:
      raise TypeError(
          f"image of {self._whose} must be uint8, got dtype {image.dtype.name}. {way_to_uint8(image.dtype)}")
    shape = image.shape
    if shape.rank is None:
      return image
    colors_only = any(layer.colors_only for layer in self._layers)
    if shape.rank not in (3, 4) or shape[-1] not in ((None, 3) if colors_only else (None, 1, 3, 4)) or 0 in shape[-3:-1]:
      raise ValueError(
          f"image of {self._whose} must be [height, width, channels] or, for a batch, [batch, height, width, channels], with at "
          f"least one pixel and {'3' if colors_only else '1, 3 or 4'} channels, got shape {shape}. "
          f"{way_to_channels(shape, colors_only)}")
    if colors_only:
      image = tf.ensure_shape(image, [*shape[:-1], 3])
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


def _of_known_rank(image):
  """The image as a tensor. If its rank is unknown, it is not taken for a batch."""
  image = tf.convert_to_tensor(image)
  return tf.ensure_shape(image, [None] * 3) if image.shape.rank is None else image


def _checked_batch_size(batch_size, whose):
  size = tf.convert_to_tensor(batch_size)
  if not size.dtype.is_integer:
    raise TypeError(f"batch_size of {whose} must be a whole number, got {batch_size!r}.")
  value = tf.get_static_value(size)
  if size.shape.rank not in (0, None) or value is not None and value < 0:
    raise ValueError(f"batch_size of {whose} must be one whole number of at least 0, got {batch_size!r}.")
  return tf.cast(size, tf.int64)
