"""Applies layers in a random order."""

from __future__ import annotations

from typing import Any, Sequence

from .inner_layers import checked_chains, kept, outcomes_of, shown
from .native_layers import DrawingLayer


def random_order(layers: Sequence[Any]) -> Any:
  """Returns a layer that applies all of several layers, or lists of them, in random order.

  >>> layer = rtf.augment.random_order([rtf.augment.random_crop(padding=4), rtf.augment.cutout(8)])
  >>> layer
  random_order([random_crop(padding=4, padding_mode='constant'), cutout(8)])
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `RandomOrder`, and one layer: no split lies between its own. All orders are equally likely. A list
  among them is one step, whose members stay together and in order. The seed of the layer at position k of all, each
  member of a list counted, is `seed_at(·, k)` of this layer's, whatever the order.

  Args:
    layers: a list or tuple of layers of this module that keep the size and the dtype of an image, as for
      `random_apply`, and of lists of these.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, of images that all of its layers take. In
    `compose` it moves targets as they do.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module.
    ValueError: `layers` is empty, or has one that makes images of another size or dtype.
  """
  chains, text = checked_chains(layers, "random_order")
  # Orders are not counted, because many layers give the same result in any order.
  outcomes = outcomes_of([layer for chain in chains for layer in chain])
  layer = DrawingLayer("random_order", f"number={len(chains)} {text}", shown(chains), outcomes=outcomes)
  return kept(layer, "the size and the dtype", "Put those that resize or normalize before or after it.")
