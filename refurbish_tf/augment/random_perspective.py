"""Views from a random viewpoint."""

from __future__ import annotations

import math
from typing import Any

from .layers import checked_real
from .native_layers import ChanceLayer


def random_perspective(distortion_scale: float = 0.5, p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, shows the image as if it was seen from a random side.

  >>> rtf.augment.random_perspective()
  random_perspective(0.5, p=0.5)
  >>> image = tf.constant([[[10 * y + x] for x in range(8)] for y in range(5)], tf.uint8)
  >>> rtf.augment.random_perspective(p=1)(image, seed=[1, 0]).numpy()[:2, :, 0].tolist()
  [[0, 0, 0, 4, 6, 7, 0, 0], [0, 11, 13, 14, 16, 27, 0, 0]]

  The arguments mean what they do for torchvision's `RandomPerspective`: each corner of the image moves inwards, in both
  directions, by a whole number of pixels from 0 to `distortion_scale` times half of the side, each equally likely. Each
  pixel is the nearest one, for which torchvision has to be told `interpolation=NEAREST`; what comes from outside is 0.
  Masks, boxes and key points follow.

  Args:
    distortion_scale: how far corners move, a real number from 0 to 0.5. With larger ones, as torchvision takes them, an
      image could be folded.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but of uint8 images with three channels or
    one, with sides of 5 to 32,767 pixels.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.
  """
  advice = "Pass 0.5, torchvision's default, or less."
  scale = checked_real("distortion_scale of random_perspective", distortion_scale, 0, 0.5, advice)
  number = math.inf if scale else 0
  return ChanceLayer("random_perspective", p, f"scale=0,{scale!r}", f"{scale:g}", outcomes=(number, number))
