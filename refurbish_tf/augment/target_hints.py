"""Finds components that should probably follow the image although `targets=` does not name them."""

import re

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings
from .target_kinds import BOX_NAMES, IMAGE_NAMES, MAYBE_POINT_NAMES, POINT_NAMES, named, shown

# Rows with one of these words in their name are not key points, nor are more than _MOST_POINTS: a face mesh has 468.
_NOT_POINTS = frozenset(
  "attribute attributes audio board caption captions chars class classes embedding embeddings extrinsics feature "
  "features hot imu label labels logits mean onehot prob probs score scores sound speech std tag tags text token "
  "tokens waveform".split()
)
_MOST_POINTS = 500
# Shapes of matrices, such as those of cameras.
_MATRICES = ([3, 3], [8, 8])


def leaves(value, path=()):
  """Yields pairs of a path and a value: the entries of nested dicts and tuples. A list counts as a tensor."""
  if isinstance(value, dict):
    for key in value:
      yield from leaves(value[key], (*path, key))
  elif isinstance(value, tuple):
    for number, each in enumerate(value):
      yield from leaves(each, (*path, number))
  else:
    yield path, np.asarray(value) if isinstance(value, list) else value


def components(element, rest):
  """Yields pairs of a path and a value for all components except the image."""
  if isinstance(element, dict):
    yield from ((path, value) for path, value in leaves(element) if path[0] not in IMAGE_NAMES)
  for number, value in enumerate(rest, 1):
    yield from leaves(value, (number,))


def _may_be_points(shape, lead):
  """Whether a component of this shape may hold the key points of one or several people, or four corners in each row."""
  own = shape.as_list()[lead:] if shape.rank else []
  return len(own) in (2, 3) and (own[-1] in (2, 3) or own[-1] in (8, 51) and len(own) == 2) and own not in _MATRICES


def _to_points(shape, lead):
  """For messages: how to reshape rows of key points to two or three numbers a point before `targets` names them."""
  own = shape.as_list()[lead:] if shape.rank else []
  count = own[-1] if len(own) in (1, 2) else None
  if not count or len(own) == 2 and count in (2, 3) or count % 2 and count % 3:
    return ""
  shapes = [
    f"[{'n, ' * (len(own) - 1)}{count // numbers}, {numbers}]{more}"
    for numbers, more in ((2, ""), (3, " with visibility"))
    if count % numbers == 0
  ]
  return f", after a reshape to {' or '.join(shapes)} in Dataset.map"


def kind_by_name(path, value, lead):
  """The kind of a component that has a name of boxes or key points, otherwise None."""
  *holders, name = [key.lower() for key in path if isinstance(key, str)] or [""]
  shape = tf.TensorShape(getattr(value, "shape", None))
  # In a dict that has a name of boxes, only rows of four are boxes, because the dict may also hold labels.
  is_row = bool(shape.rank) and shape[-1] == 4
  if name in BOX_NAMES or is_row and not set(BOX_NAMES).isdisjoint(holders):
    return "xyxy"
  # A component without dimensions of its own is a class, or a count of points.
  if name in POINT_NAMES and (shape.rank is None or shape.rank > lead):
    return "xy"
  has_name = re.sub("_?2d$", "", name).rpartition("_")[2] in (*POINT_NAMES, *MAYBE_POINT_NAMES)
  is_row_of_points = name in MAYBE_POINT_NAMES and shape.rank == lead + 1 and shape[-1] in (34, 51)
  return "xy" if is_row_of_points or has_name and _may_be_points(shape, lead) else None


def check_names(found, lead):
  """Raises if a component has a name of boxes or key points.

  `lead`: how many dimensions the image has before its height.
  """
  for path, value in found:
    kind = kind_by_name(path, value, lead)
    if kind:
      raise ValueError(
        f"targets must say what the component {shown(path)} is, which has a name of "
        f"{'boxes' if kind == 'xyxy' else 'key points'}: layers that move pixels would leave it in place. Pass "
        f"{named(path, kind)}, or its own format, if it is to follow the "
        f"image{_to_points(tf.TensorShape(getattr(value, 'shape', None)), lead) if kind == 'xy' else ''}. Otherwise "
        f"pass {named(path, None)}, or targets={{}} if nothing follows the image."
      )


def warn_of_companions(found, lead):
  """Warns of components that look like targets: rows of boxes or key points, and pictures of another size.

  `lead`: how many dimensions the image has before its height.
  """
  for path, value in found:
    shape, dtype = tf.TensorShape(getattr(value, "shape", None)), tf.as_dtype(getattr(value, "dtype", tf.string))
    if not shape.rank or dtype in (tf.string, tf.bool):
      continue
    held = list(_may_hold(path, shape, dtype, lead))
    if held:
      pipeline_warnings.warn(
        f"The component {shown(path)} of shape {shape} stays in place, although layers move pixels. If it holds "
        f"{'; if it holds '.join(held)}; if it holds anything else, such as labels, {named(path, None)}."
      )


def _may_hold(path, shape, dtype, lead):
  """Yields what a component may hold that should follow the image, and how to name it: the likeliest first."""
  names = [key.lower() for key in path if isinstance(key, str)]
  own, last = shape.rank - lead, shape[-1]
  is_many = max((side or 0 for side in shape[lead:-1]), default=0) > _MOST_POINTS
  # Bytes are colours, classes or pictures: they hold coordinates only up to 255.
  has_other_name = bool(names) and not _NOT_POINTS.isdisjoint(re.split("[^a-z]+", names[-1]))
  if _may_be_points(shape, lead) and dtype.size > 1 and not is_many and not has_other_name:
    what = {8: "four corners", 51: "17 key points of each person"}
    what = what.get(last, "key points, with or without their visibility")
    yield f"{what}, pass {named(path, 'xy')}" + (_to_points(shape, lead) or ' or, in fractions of the image, "rel_xy"')
  # YOLO's "labels" are rows of a class and a box.
  is_matrix = shape.as_list()[lead:] in ([8, 8], [9, 9]) or bool(names) and names[-1] in MAYBE_POINT_NAMES
  may_be_boxes = not is_matrix and not is_many and (not has_other_name or "label" in names[-1])
  if own == 2 and last in range(4, 10) and may_be_boxes or bool(names) and "box" in names[-1] and last == 4:
    more = ". If rows are longer, split the boxes off in Dataset.map first" * (last > 4)
    more += '; boxes with an angle follow as their four corners, [n, 4, 2], "xy"' * (last == 5)
    yield f"boxes, pass {named(path, 'xyxy')}, or their own format{more}"
  if own == 3 and last == 2 and dtype.is_floating:
    yield f"an optical flow, pass {named(path, 'flow')}, resized to the image's size"
  if own == 3 and last in (1, 3) and (dtype.is_floating or dtype.size < 4):
    yield f"a picture that belongs to the image, pass {named(path, 'image')}, of the image's size or a multiple of it"


def warn_of_slices(found, shape, whose):
  """Warns of components with as many parts as a volume has slices, or frames. `whose`: the layer's name."""
  for path, value in found:
    there = tf.TensorShape(getattr(value, "shape", None))
    if there.rank and shape.rank and shape[0] is not None and there[0] == shape[0] > 1:
      pipeline_warnings.warn(
        f"The component {shown(path)} of shape {there} stays as it is, although {whose} changes the slices or frames, "
        f"and both have {shape[0]} of them. If these belong together, cut both in a function that calls the layers of "
        f"rtf.augment.split. Otherwise pass {named(path, None)}."
      )


def _floating_kinds(path, component, channels):
  """For errors: the kinds that fit a component of the image's size if it holds floats."""
  if not tf.as_dtype(getattr(component, "dtype", tf.string)).is_floating:
    return ""
  kinds = [("bilinear", "a map to be blended")]
  if channels in ([], [1]):
    kinds.append(("disparity", "the disparity of two views"))
  if channels == [2]:
    kinds.append(("flow", "an optical flow"))
  if channels == [3] or len(channels) == 1 and channels[0] and channels[0] % 2 == 0:
    kinds.append(("vectors", 'directions, such as surface normals, which "bilinear" does not turn'))
  return "".join(f", {named(path, kind)} for {what}" for kind, what in kinds)


def way_of_second(path):
  """For errors: what to do with a component that has the height and width of a second image."""
  return (
    f"Pass {named(path, 'image')} for another picture, or {named(path, None)} if it stays as it is. To let a mask "
    "follow, resize it to the size of the first image in Dataset.map."
  )


def check_sizes(found, sides, is_known=True, second=None):
  """Raises if a component has the height and width of the image. Returns those whose size is known only at run time.

  `found`: pairs of a path and a tensor, like the result. `sides`: the dimensions of a batch or of frames, then the
  image's height and width. `is_known`: whether the image's rank is known. `second`: its path, unless it is the first.
  """
  maybe = []
  for path, component in found:
    shape = tf.TensorShape(getattr(component, "shape", None))
    if shape.rank is None:
      maybe += [(path, component)] if isinstance(component, tf.Tensor) else []
      continue
    there = shape.as_list()
    # Other dimensions may come first, such as for masks of instances, and those of a batch or a clip may be missing.
    pairs = [there[place : place + 2] for place in range(len(there) - 1)]
    is_map = there[: len(sides)] == sides
    if is_known and (is_map or None not in sides[-2:] and sides[-2:] in pairs):
      of, way = "image", f"Pass {named(path, 'mask')} for classes, {named(path, 'image')} for a second picture"
      way += f"{_floating_kinds(path, component, there[len(sides) :])}, or {named(path, None)} if it stays as it is."
      if not is_map:
        way += " It would have to be [height, width, channels], after the dimensions of a batch or of frames."
      if second:
        of, way = f"component {shown(second)}, 'image'", way_of_second(path)
      raise ValueError(
        f"The component {shown(path)} of shape {shape} has the height and width of the {of}, but `targets` does not "
        f"name it. {way}"
      )
    may_be = len(there) >= len(sides) and shape[: len(sides)].is_compatible_with(sides)
    if may_be and None in there[: len(sides)] + sides and isinstance(component, tf.Tensor):
      maybe.append((path, component))
  return maybe
