"""Crops that are chosen by their overlap with boxes."""

from __future__ import annotations

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import is_real
from .layers import checked_range, checked_whole
from .native_layers import DrawingLayer


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

  The arguments mean what they do for torchvision's `RandomIoUCrop`. An element of `sampler_options` is drawn. If the
  option is 1 or more, the image is not cropped. Otherwise up to `trials` crops are drawn, until one has the middle of a
  box, and with such a box at least this intersection over union; if none has, another option is drawn. After 50
  options, or without a box, the image stays as it is. Boxes whose middle is outside the crop become 0, and
  `sanitize_boxes` drops them; others are clipped. Images get different sizes: put a `resize((height, width))` after it
  before they are batched.

  Args:
    min_scale, max_scale: the least and the largest part of each side, above 0 and at most 1.
    min_aspect_ratio, max_aspect_ratio: the least and the largest width / height of a crop, above 0.
    sampler_options: one or more real numbers of at least 0; None for `[0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]`.
    trials: a whole number from 1 to 10,000.

  Returns:
    A layer for `compose`, `split` and the lists of `refurbish`, with `targets` that name boxes of any format. It uses
    the first boxes among them, after the layers before it have moved them; in a clip, the boxes of all frames.

  Raises:
    TypeError, ValueError: an argument is of the wrong type, or out of range; when it is called, there are no boxes.

  Implements the crop of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, section 2.2.
  """
  whose, advice = "random_iou_crop", "Leave them out for those of SSD."
  scale = checked_range(whose, "(min_scale, max_scale)", (min_scale, max_scale), 1, advice)
  ratio = min_aspect_ratio, max_aspect_ratio
  ratio = checked_range(whose, "(min_aspect_ratio, max_aspect_ratio)", ratio, math.inf, advice)
  options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if sampler_options is None else sampler_options
  is_list = isinstance(options, (list, tuple)) and all(map(is_real, options))
  if not is_list or not options or not all(0 <= option < math.inf for option in options):
    raise (ValueError if is_list else TypeError)(
      f"sampler_options of {whose} must be a list of at least one number of at least 0, got {sampler_options!r}. "
      "Leave it out for that of SSD."
    )
  trials = checked_whole(f"trials of {whose}", trials, 1, 10_000, "Pass 40, torchvision's default.")
  given = {"scale": scale, "ratio": ratio, "options": options}
  texts = [f"{name}={','.join(repr(float(each)) for each in values)}" for name, values in given.items()]
  shown = f"{scale[0]:g}, {scale[1]:g}, {ratio[0]:g}, {ratio[1]:g}, sampler_options={list(options)}, trials={trials}"
  return DrawingLayer(whose, f"{' '.join(texts)} trials={trials}", shown, looks_at_boxes=True)
