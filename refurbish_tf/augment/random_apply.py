"""Applies all of several layers, or none."""

from __future__ import annotations

from typing import Any, Sequence

from .composition import checked_layers
from .inner_layers import check_native, kept, outcomes_of, text_of
from .native_layers import ChanceLayer


def random_apply(layers: Sequence[Any], p: float = 0.5) -> Any:
  """Returns a layer that applies other layers, in order, with probability `p`, or leaves the image as it is.

  >>> layer = rtf.augment.random_apply([rtf.augment.color_jitter(brightness=0.8, hue=0.2)], p=0.8)
  >>> layer
  random_apply([color_jitter(brightness=(0.2, 1.8), hue=(-0.2, 0.2))], p=0.8)
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is one layer: no split lies between its own. The one at position k gets the seed `seed_at(·, k)` of this layer's.

  Args:
    layers: a list or tuple of layers of this module that keep the size and the dtype of an image, so not `resize`,
      `random_resized_crop`, `normalize` and those that decode. A list in place of one stands for its members.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, of images that all of its layers take. In
    `compose` it moves targets as they do.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module, or `p` not a real number.
    ValueError: `layers` is empty, or has one that makes images of another size or dtype; `p` is not from 0 to 1.
  """
  chain = checked_layers(layers, "random_apply")
  check_native(chain, "random_apply")
  layer = ChanceLayer("random_apply", p, f"layers={text_of(chain)}", repr(list(chain)), outcomes=outcomes_of(chain))
  return kept(layer, "the size and the dtype", "Put those that resize or normalize before or after it.")
