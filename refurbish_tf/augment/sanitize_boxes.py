"""Drops boxes that are too small, with their rows of other components."""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings
from .composition import checked_clips, image_of
from .layers import checked_real, checked_when_it_runs, dense
from .target_kinds import BOX_NAMES, BOXES, BoxFormat, checked_names
from .targets import checked_rows, kept_rows, padding_of


def sanitize_boxes(
  boxes: str | int,
  format: BoxFormat = "xyxy",
  *,
  with_rows: str | int | Sequence[str | int] = (),
  min_size: float = 1,
  min_area: float = 1,
  clips: bool | None = None,
) -> Callable[..., Any]:
  """Returns a function for `Dataset.map` that drops boxes which are too small, with their rows of other components.

  >>> clean = rtf.augment.sanitize_boxes("boxes", with_rows=("labels",), min_size=2)
  >>> boxes = [[0.0, 0, 9, 9], [0, 0, 1, 9]]
  >>> element = clean({"image": tf.zeros([32, 32, 3], tf.uint8), "boxes": boxes, "labels": [3, 7]})
  >>> element["boxes"].numpy().tolist(), element["labels"].numpy().tolist()
  ([[0.0, 0.0, 9.0, 9.0]], [3])

  A crop or a rotation leaves little of some boxes, and nothing of others, which become 0. Put it after the layers,
  before or after `batch`. Padding, rows of -1, is dropped; after `batch`, dense rows are padded as by `mosaic`.

  Args:
    boxes: the component with the boxes, `[n, 4]`, or `[batch, n, 4]`, ragged or padded: the name of a dict's entry, or
      a position in a tuple. A dict there, such as Keras' `"bounding_boxes"`, has them as `boxes`, `bbox` or `bboxes`.
    format: the format of the boxes, as for `compose`. A relative one needs the image in the element.
    with_rows: the components that have a row for each box, such as labels: a name or position, or several. Names are
      first looked up in the dict that holds the boxes, if there is one.
    min_size: the smallest height and width, in pixels, a number from 0 to 65,535.
    min_area: the smallest height times width, in pixels, a number from 0 to 65,535².
    clips: pass False for a padded batch; ragged boxes need nothing. Otherwise dense boxes of three dimensions count as
      a clip, which raises an error, because row i is the same object in all frames.

  Returns:
    A function for `Dataset.map`. It returns the element with fewer rows, in the same order, and `n` unknown; in a
    padded batch, padding follows them. It warns if a component that is not named seems to have a row for each box. It
    raises `ValueError` for a component that is missing or has another shape, and, when it runs,
    `tf.errors.InvalidArgumentError` for another number of rows.

  Raises:
    TypeError: an argument is of the wrong type.
    ValueError: there is no such format, or a number is out of range.
  """
  checked_names("boxes of sanitize_boxes", [boxes])
  with_rows = checked_names("with_rows of sanitize_boxes", with_rows)
  if not isinstance(format, str) or format not in BOXES:
    raise ValueError(
      f"format of sanitize_boxes must be one of {', '.join(BOXES)}, got {format!r}. Pass the format of the boxes."
    )
  advice, most = "It is in pixels: pass 1 to drop boxes smaller than one.", 65_535
  min_size = checked_real("min_size of sanitize_boxes", min_size, 0, most, advice)
  min_area = checked_real("min_area of sanitize_boxes", min_area, 0, most**2, advice)
  checked_clips(clips, "sanitize_boxes")
  return _Sanitizer(boxes, format, tuple(dict.fromkeys(with_rows)), min_size, min_area, clips)


class _Sanitizer:
  """It is a class, so that it can be pickled."""

  __name__ = "sanitize_boxes"

  def __init__(self, boxes, format, with_rows, min_size, min_area, clips):
    self._boxes, self._format, self._with_rows = boxes, format, with_rows
    self._min_size, self._min_area, self._clips = min_size, min_area, clips

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
          f"boxes of sanitize_boxes must have one of the entries {', '.join(BOX_NAMES)} in {self._boxes!r}, got "
          f"{sorted(holder)}. Rename the entry that holds the boxes in Dataset.map first."
        )
      key = names[0]
    boxes = given = holder[key]
    if isinstance(given, tf.RaggedTensor):
      boxes = given.to_tensor(padding_of(given.dtype), shape=[None] * (given.shape.rank - 1) + [4])
    boxes = tf.convert_to_tensor(boxes)
    shape = [None, None, 4] if boxes.shape.rank == 3 else [None, 4]
    if not boxes.shape.is_compatible_with(shape):
      raise ValueError(
        f"boxes of sanitize_boxes must be [n, 4], or [batch, n, 4], got {self._boxes!r} of shape {boxes.shape}. Give a "
        "single box a row, boxes[tf.newaxis]. Boxes of clips in a batch keep their rows: a row that is all 0 has no "
        "box."
      )
    if len(shape) == 3 and self._clips is not False and not isinstance(given, tf.RaggedTensor):
      raise ValueError(
        f"clips of sanitize_boxes must be False for a batch, got {self._clips} and {self._boxes!r} of shape "
        f"{boxes.shape}, which may be a clip. Boxes of a clip keep their rows: a row that is all 0 has no box."
      )
    boxes = tf.ensure_shape(boxes, shape)
    keep = self._kept(boxes, element)
    # Rows of a batch stay ragged.
    given = holder[key] = given if isinstance(given, tf.RaggedTensor) and keep.shape.rank == 2 else boxes
    is_beside = lambda name: isinstance(holder, dict) and name in holder
    for name, other in holder.items() if isinstance(holder, dict) else ():
      if name not in (key, *self._with_rows) and getattr(other, "shape", None) == given.shape[:-1]:
        pipeline_warnings.warn(
          f"{name!r} of shape {other.shape} stays as it is, while sanitize_boxes drops boxes. If it has a row for each "
          f"box, pass with_rows={(*self._with_rows, name)!r}."
        )
    places = [(holder, name) if is_beside(name) else _place(made, name) for name in self._with_rows]
    for place, name in [(holder, key), *places]:
      place[name] = kept_rows(checked_rows("with_rows of sanitize_boxes", repr(name), place[name], given), keep)
    return tuple(made) if rest else made[0]

  def _kept(self, boxes, element):
    first, second, third, fourth = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
    longest = tf.reduce_max(tf.abs(tf.cast(boxes, tf.float64)), [-2, -1])[..., tf.newaxis]
    if self._format.endswith(("xyxy", "yxyx")):
      third, fourth = third - first, fourth - second
    if self._format.startswith("rel_"):
      image = dense(image_of(element))
      if image.shape.rank in (0, 1):
        raise ValueError(
          f"format of sanitize_boxes must be a format in pixels if the image is a file, got {self._format}. Put it "
          "after the layers, which decode the image."
        )
      sides = tf.cast(tf.shape(image)[-3:-1], tf.float64)
      height, width = tf.unstack(sides if self._format.endswith("yxyx") else sides[::-1], 2)
      third, fourth = third * height, fourth * width
      longest *= tf.maximum(height, width)
    padding = tf.reduce_all(tf.equal(boxes, tf.cast(-1, boxes.dtype)), -1) if not boxes.dtype.is_unsigned else False
    is_right = tf.reduce_all((third >= 0) & (fourth >= 0) | padding)
    told = f"boxes of sanitize_boxes must have no negative height or width, which they have as {self._format}."
    told += " Pass their actual format. Got:"
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
      f"sanitize_boxes: there is no component {name!r} in an element of {held}. Pass its name in the element."
    )
  return holder, name
