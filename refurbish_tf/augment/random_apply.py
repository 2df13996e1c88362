"""Layers of which all are applied, or none."""
from __future__ import annotations

import math
from typing import Any, Sequence

import tensorflow as tf

from . import composition
from .native_layers import MOST_LAYERS, ChanceLayer, NativeLayer, facts_of, pieces


def random_apply(layers: Sequence[Any], p: float = 0.5) -> Any:
  """Returns a layer that applies other layers, in order, with probability `p`, or leaves the image as it is.

  >>> jitter = rtf.augment.color_jitter(0.8, 0.8, 0.8, 0.2)
  >>> layer = rtf.augment.random_apply([jitter], p=0.8)
  >>> layer
  random_apply([color_jitter(brightness=(0.2, 1.8), contrast=(0.2, 1.8), saturation=(0.2, 1.8), hue=(-0.2, 0.2))], p=0.8)
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is one layer: no split lies between its own. The one at position k gets the seed `seed_at(·, k)` of this layer's.

  Args:
    layers: a list or tuple of layers of this module that keep the size and the dtype of an image, so not `resize`,
      `random_resized_crop`, `normalize` and those that decode. A list in place of one stands for its members.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, of images that all of its layers take. In `compose`
    it moves targets as they do.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module, or `p` not a real number.
    ValueError: `layers` is empty, or has one that makes images of another size or dtype; `p` is not from 0 to 1.
  """
  layers = composition.checked_layers(layers, "random_apply")
  for position, layer in enumerate(layers):
    if not isinstance(layer, NativeLayer):
      raise TypeError(
          f"layers of random_apply must be layers of rtf.augment that take images, got {layer!r} at position {position}. Draw in "
          "a function of your own, with a parameter named seed, whether it is applied.")
  if len(layers) > MOST_LAYERS:
    raise ValueError(
        f"layers of random_apply must be 1 to {MOST_LAYERS} layers, got {len(layers)}. Put some of them into one in its place.")
  # Pieces that begin with a comma go on with the word before.
  text = " ".join(piece for k, layer in enumerate(layers) for piece in pieces(layer.text, k)).replace(" ,", ",")
  return RandomApply(layers, text, p)


class RandomApply(ChanceLayer):
  """`text`: the layers as for the ops, each with its position."""

  def __init__(self, layers, text, p):
    outcomes = [layer.outcomes for layer in layers]
    # Cut before commas, as the lists of other arguments are.
    inner = text.replace(",~", ",~~").replace(" ", ",~")
    shown = ", ".join(map(repr, layers))
    super().__init__(
        "random_apply", p, f"layers={inner}", f"[{shown}]",
        outcomes=None if None in outcomes else tuple(math.prod(each) for each in zip(*outcomes)))
    try:
      facts_of(tuple(pieces(self.text, -1)))
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(
          f"layers of random_apply must keep the size and the dtype of an image, got [{shown}]. Put those that resize or normalize "
          "before or after it.") from error
