"""Drops boxes that are too small, with their rows of other components."""

from __future__ import annotations

import copy
import numbers
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal.checks import is_real
from .composition import image_of
from .layers import checked_when_it_runs
from .target_kinds import BOX_NAMES, BOXES, BoxFormat


def sanitize_boxes(
  boxes: str | int,
  format: BoxFormat = "xyxy",
  *,
  with_rows: str | int | Sequence[str | int] = (),
  min_size: float = 1,
  min_area: float = 1,
) -> Callable[..., Any]:
  """Returns a function for `Dataset.map` that drops boxes which are too small, with their rows of other components.

  >>> clean = rtf.augment.sanitize_boxes("boxes", with_rows=("labels",), min_size=2)
  >>> boxes = [[0.0, 0, 9, 9], [0, 0, 1, 9]]
  >>> element = clean({"image": tf.zeros([32, 32, 3], tf.uint8), "boxes": boxes, "labels": [3, 7]})
  >>> element["boxes"].numpy().tolist(), element["labels"].numpy().tolist()
  ([[0.0, 0.0, 9.0, 9.0]], [3])

  A crop or a rotation leaves little of some boxes, and of others nothing: these are all 0. Put it after the layers,
  and before `batch`. Rows of -1, which pad, are dropped, too.

  Args:
    boxes: the component that holds them, `[n, 4]`: the name of a dict's entry, or a position in a tuple. A dict there,
      as Keras' `"bounding_boxes"`, has them under `boxes`, `bbox` or `bboxes`.
    format: how they are written, as for `compose`. For a relative one the image must be in the element.
    with_rows: the components that have a row for each box, such as labels: a name or position, or several. Names are
      first looked for beside the boxes, in a dict that holds them.
    min_size: the least height and width, in pixels, a real number of at least 0.
    min_area: the least height times width, in pixels, a real number of at least 0.

  Returns:
    A function that is called as `Dataset.map` calls its own. It returns the element with fewer rows, as they stand, and
    `n` unknown. It raises `ValueError` for a component that is not there or of another shape.

  Raises:
    TypeError: an argument is of the wrong type.
    ValueError: there is no such format, or a number is below 0.
  """
  with_rows = (with_rows,) if isinstance(with_rows, (str, numbers.Integral)) else with_rows
  is_list = isinstance(with_rows, (list, tuple))
  for name, value in (("boxes", boxes), *(("with_rows", each) for each in (with_rows if is_list else [with_rows]))):
    if isinstance(value, bool) or not isinstance(value, (str, numbers.Integral)):
      raise TypeError(
        f"{name} of sanitize_boxes must be a name or a position{', or several' * (name == 'with_rows')}, got "
        f'{value!r}. Pass "boxes" for the entry of a dict, 1 for the second component of a tuple.'
      )
  if not isinstance(format, str) or format not in BOXES:
    raise ValueError(
      f"format of sanitize_boxes must be one of {', '.join(BOXES)}, got {format!r}. Pass that of the boxes."
    )
  for name, value in (("min_size", min_size), ("min_area", min_area)):
    if not is_real(value) or not value >= 0:
      raise (ValueError if is_real(value) else TypeError)(
        f"{name} of sanitize_boxes must be a real number of at least 0, in pixels, got {value!r}. Pass 1 to drop what "
        "is less than a pixel."
      )
  return _Sanitizer(boxes, format, tuple(dict.fromkeys(with_rows)), float(min_size), float(min_area))


class _Sanitizer:
  """A class, so that it can be pickled."""

  __name__ = "sanitize_boxes"

  def __init__(self, boxes, format, with_rows, min_size, min_area):
    self._boxes, self._format, self._with_rows = boxes, format, with_rows
    self._min_size, self._min_area = min_size, min_area

  @tf.autograph.experimental.do_not_convert
  def __call__(self, element, *rest):
    made = [copy.copy(element), *rest]
    holder, key = _place(made, self._boxes)
    if isinstance(holder[key], dict):
      holder[key] = copy.copy(holder[key])
      holder = holder[key]
      names = [name for name in holder if name in BOX_NAMES]
      if len(names) != 1:
        raise ValueError(
          f"sanitize_boxes looks for one of the entries {', '.join(BOX_NAMES)} in {self._boxes!r}, got "
          f"{sorted(holder)}. Rename the one that holds the boxes with Dataset.map first."
        )
      key = names[0]
    if isinstance(holder[key], tf.RaggedTensor):
      holder[key] = holder[key].to_tensor(shape=[None] * (holder[key].shape.rank - 1) + [4])
    boxes = tf.convert_to_tensor(holder[key])
    if not boxes.shape.is_compatible_with([None, 4]):
      raise ValueError(
        f"boxes of sanitize_boxes must be [n, 4], got {self._boxes!r} of shape {boxes.shape}. Put it before batch, "
        "and give a single box a row, boxes[tf.newaxis]. Boxes of clips keep their rows: those that are all 0 are gone."
      )
    keep = self._kept(tf.ensure_shape(boxes, [None, 4]), element)
    is_beside = lambda name: isinstance(holder, dict) and name in holder
    places = [(holder, name) if is_beside(name) else _place(made, name) for name in self._with_rows]
    for place, name in [(holder, key), *places]:
      rows = place[name] if isinstance(place[name], tf.RaggedTensor) else tf.convert_to_tensor(place[name])
      if rows.shape.rank == 0 or rows.shape.rank and not rows.shape[:1].is_compatible_with(boxes.shape[:1]):
        raise ValueError(
          f"with_rows of sanitize_boxes must name components with a row for each box, got {name!r} of shape "
          f"{rows.shape} for boxes of shape {boxes.shape}. Leave it out, or give it as many rows."
        )
      place[name] = (tf.ragged if isinstance(rows, tf.RaggedTensor) else tf).boolean_mask(rows, keep)
    return tuple(made) if rest else made[0]

  def _kept(self, boxes, element):
    first, second, third, fourth = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
    longest = tf.reduce_max(tf.abs(tf.cast(boxes, tf.float64)))
    if self._format.endswith(("xyxy", "yxyx")):
      third, fourth = third - first, fourth - second
    if self._format.startswith("rel_"):
      image = image_of(element)
      if tf.convert_to_tensor(image).shape.rank in (0, 1):
        raise ValueError(
          f"format of sanitize_boxes must be one in pixels, not {self._format}, where the image is a file. Put it "
          "after the layers, which decode it."
        )
      sides = tf.cast(tf.shape(image)[-3:-1], tf.float64)
      height, width = tf.unstack(sides if self._format.endswith("yxyx") else sides[::-1], 2)
      third, fourth = third * height, fourth * width
      longest *= tf.maximum(height, width)
    padding = tf.reduce_all(tf.equal(boxes, tf.cast(-1, boxes.dtype)), -1) if not boxes.dtype.is_unsigned else False
    is_right = tf.reduce_all((third >= 0) & (fourth >= 0) | padding)
    told = f"boxes of sanitize_boxes must have no negative height or width, as {self._format} they have."
    told += " Pass the format that they have. Got:"
    smallest = checked_when_it_runs(tf.minimum(third, fourth), is_right, told, boxes)
    # The rounding error of the boxes' dtype, in pixels.
    little = longest * 2.0 ** {tf.float16: -10, tf.bfloat16: -7}.get(boxes.dtype, -20)
    is_large = (third + little) * (fourth + little) >= self._min_area
    return (smallest > 0) & (smallest >= self._min_size - little) & is_large


def _place(made, name):
  """The container of a component, and its key there."""
  holder = made[0] if isinstance(name, str) and isinstance(made[0], dict) else made
  is_there = name in holder if isinstance(holder, dict) else not isinstance(name, str) and 0 < name < len(made)
  if not is_there:
    held = f"a dict with {sorted(holder)}" if isinstance(holder, dict) else f"{len(made)} components"
    raise ValueError(
      f"sanitize_boxes: there is no component {name!r} in an element of {held}. Pass the name that it has there."
    )
  return holder, name
