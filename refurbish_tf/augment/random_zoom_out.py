"""Puts images into larger, empty ones."""

from __future__ import annotations

import math
from typing import Any, Sequence

from .layers import checked_fill, is_pair
from .native_layers import ChanceLayer

_LARGEST = 1000


def random_zoom_out(fill: int | Sequence[int] = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, puts the image at a random place of a larger, empty one.

  >>> layer = rtf.augment.random_zoom_out(fill=9, side_range=(2, 2), p=1)
  >>> layer(tf.constant([[[1], [2]]], tf.uint8), seed=[5, 0]).numpy()[..., 0].tolist()
  [[9, 1, 2, 9], [9, 9, 9, 9]]

  The arguments mean what they do for torchvision's `RandomZoomOut`, with which SSD makes objects small. Masks are 0 in
  the empty part for any `fill`. Images get different sizes: put a `resize((height, width))` after it before they are
  batched.

  Args:
    fill: the value of new pixels, a whole number from 0 to 255, or three of them, for the channels.
    side_range: the least and the largest factor of the sides, from 1 to 1,000. It is drawn uniformly.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. With another `fill` than 0 it takes uint8
    images with at most four channels, or with three for three values.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range.

  Implements the zoom out of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, section 3.6.
  """
  values = checked_fill("fill of random_zoom_out", fill)
  low, high = map(float, side_range) if is_pair(side_range) else (0.0, 0.0)
  if not 1 <= low <= high <= _LARGEST:
    raise (ValueError if is_pair(side_range) else TypeError)(
      f"side_range of random_zoom_out must be two numbers from 1 to {_LARGEST:,}, the second not the smaller one, got "
      f"{side_range!r}. Pass (1, 4), torchvision's default."
    )
  text, number = f"sides={low!r},{high!r} fill={','.join(map(str, values))}", math.inf if high > 1 else 0
  shown = f"fill={fill!r}, side_range=({low:g}, {high:g})"
  return ChanceLayer("random_zoom_out", p, text, shown, outcomes=(number, number))
