"""Channels in another order."""

from __future__ import annotations

from typing import Any

from .native_layers import DrawingLayer


def random_channel_permutation() -> Any:
  """Returns a layer that puts the three channels into a random order.

  >>> image = tf.constant([[[10, 20, 30]]], tf.uint8)
  >>> rtf.augment.random_channel_permutation()(image, seed=[11, 0]).numpy().tolist()
  [[[20, 30, 10]]]

  It is torchvision's `RandomChannelPermutation`: each of the six orders is equally likely, that of the image included.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 images with three channels, or
    with one, which it leaves as they are.
  """
  return DrawingLayer("random_channel_permutation", f"below={2**31} order=0,5", outcomes=(6, 6))
