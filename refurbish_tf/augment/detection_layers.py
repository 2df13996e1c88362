"""Layers for object detection, which make images of random sizes: SSD's zoom out and crop, and resizing."""

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import is_real
from .final_layers import LARGEST_RESIZED, checked_antialias
from .layers import checked_fill, checked_range, checked_whole, is_pair
from .native_layers import ChanceLayer, DrawingLayer

_LARGEST = 1000


def random_zoom_out(fill: int | Sequence[int] = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, puts the image at a random position in a larger, empty one.

  >>> layer = rtf.augment.random_zoom_out(fill=9, side_range=(2, 2), p=1)
  >>> layer(tf.constant([[[1], [2]]], tf.uint8), seed=[5, 0]).numpy()[..., 0].tolist()
  [[9, 1, 2, 9], [9, 9, 9, 9]]

  The arguments have the same meaning as in torchvision's `RandomZoomOut`, with which SSD makes objects small. Masks are
  0 in the empty part for any `fill`. Images get different sizes: put a `resize((height, width))` after it before they
  are batched.

  Args:
    fill: the value of new pixels, a whole number from 0 to 255, or three, one for each channel.
    side_range: the smallest and the largest factor of the sides, from 1 to 1,000. It is drawn uniformly.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. A `fill` other than 0 needs uint8 images
    with at most four channels; three values need three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the zoom out of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, section 3.6.
  """
  values = checked_fill("fill of random_zoom_out", fill)
  low, high = map(float, side_range) if is_pair(side_range) else (0.0, 0.0)
  if not 1 <= low <= high <= _LARGEST:
    raise (ValueError if is_pair(side_range) else TypeError)(
      f"side_range of random_zoom_out must be two numbers from 1 to {_LARGEST:,}, the smaller one first, got "
      f"{side_range!r}. Pass (1, 4), torchvision's default."
    )
  text, number = f"sides={low!r},{high!r} fill={','.join(map(str, values))}", math.inf if high > 1 else 0
  shown = f"fill={fill!r}, side_range=({low:g}, {high:g})"
  return ChanceLayer("random_zoom_out", p, text, shown, outcomes=(number, number))


def random_iou_crop(
  min_scale: float = 0.3,
  max_scale: float = 1.0,
  min_aspect_ratio: float = 0.5,
  max_aspect_ratio: float = 2.0,
  sampler_options: Sequence[float] | None = None,
  trials: int = 40,
) -> Any:
  """Returns a layer that crops the image so that the crop and one of its boxes overlap by a random amount.

  >>> fn = rtf.augment.compose([rtf.augment.random_iou_crop(sampler_options=[0.5])], targets={"boxes": "xyxy"})
  >>> element = {"image": tf.zeros([300, 400, 3], tf.uint8), "boxes": [[0.0, 0, 250, 200], [300, 200, 390, 290]]}
  >>> element = fn(element, seed=[1, 0])
  >>> element["image"].shape, element["boxes"].numpy().tolist()
  (TensorShape([192, 303, 3]), [[0.0, 0.0, 247.0, 183.0], [0.0, 0.0, 0.0, 0.0]])

  The arguments have the same meaning as in torchvision's `RandomIoUCrop`. The layer draws one of the `sampler_options`.
  If it is 1 or more, the image is not cropped. Otherwise up to `trials` crops are drawn, until one contains the center
  of a box and has at least this intersection over union with such a box; if none does, another option is drawn. After
  50 options, or without a box, the image stays as it is. Boxes whose center is outside the crop become 0, and
  `sanitize_boxes` drops them; others are clipped. Images get different sizes: put a `resize((height, width))` after it
  before they are batched.

  Args:
    min_scale, max_scale: the smallest and the largest fraction of each side, above 0 and at most 1.
    min_aspect_ratio, max_aspect_ratio: the smallest and the largest width / height of a crop, above 0.
    sampler_options: one or more real numbers of at least 0; None for `[0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]`.
    trials: a whole number from 1 to 10,000.

  Returns:
    A layer for `compose`, `split` and the lists of `refurbish`, with `targets` that name boxes of any format. It uses
    the first boxes in `targets`, as moved by the layers before it; in a clip, the boxes of all frames.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range; when called, there are no boxes.

  Implements the crop of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, section 2.2.
  """
  whose, advice = "random_iou_crop", "Leave them out for SSD's values."
  scale = checked_range(whose, "(min_scale, max_scale)", (min_scale, max_scale), 1, advice)
  ratio = min_aspect_ratio, max_aspect_ratio
  ratio = checked_range(whose, "(min_aspect_ratio, max_aspect_ratio)", ratio, math.inf, advice)
  options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if sampler_options is None else sampler_options
  is_list = isinstance(options, (list, tuple)) and all(map(is_real, options))
  if not is_list or not options or not all(0 <= option < math.inf for option in options):
    raise (ValueError if is_list else TypeError)(
      f"sampler_options of {whose} must be a list of one or more numbers of at least 0, got {sampler_options!r}. Leave "
      "it out for SSD's options."
    )
  trials = checked_whole(f"trials of {whose}", trials, 1, 10_000, "Pass 40, torchvision's default.")
  given = {"scale": scale, "ratio": ratio, "options": options}
  texts = [f"{name}={','.join(repr(float(each)) for each in values)}" for name, values in given.items()]
  shown = f"{scale[0]:g}, {scale[1]:g}, {ratio[0]:g}, {ratio[1]:g}, sampler_options={list(options)}, trials={trials}"
  return DrawingLayer(whose, f"{' '.join(texts)} trials={trials}", shown, looks_at_boxes=True)


def random_resize(min_size: int, max_size: int, antialias: bool = True) -> Any:
  """Returns a layer that resizes the image so that its shortest side has a random number of pixels.

  >>> layer = rtf.augment.random_resize(480, 801)
  >>> layer(tf.zeros([300, 400, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([512, 682, 3])

  The arguments have the same meaning as in torchvision's `RandomResize`: all lengths from `min_size` to just
  below `max_size` are equally likely. The longest side is rounded down. The image is resized as by `resize(size,
  antialias)`. Images get different sizes: before a batch, put a layer that gives all the same size, such as
  `random_crop(size, pad_if_needed=True)`.

  Args:
    min_size: the smallest length of the shortest side, a whole number of pixels from 1 to 65,535.
    max_size: the upper bound, exclusive, a whole number above `min_size`.
    antialias: whether to average over all pixels of an image that shrinks, not over two in each direction.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  antialias = checked_antialias(antialias, "random_resize")
  advice = "Pass a number of pixels, such as 480."
  low = checked_whole("min_size of random_resize", min_size, 1, LARGEST_RESIZED, advice)
  advice = "Pass a number above min_size: max_size itself is never drawn."
  high = checked_whole("max_size of random_resize", max_size, low + 1, LARGEST_RESIZED + 1, advice)
  text, number = f"short={low} number={high - low} antialias={antialias:d}", high - low
  return DrawingLayer("random_resize", text, f"{low}, {high}, antialias={antialias}", outcomes=(number, number))
