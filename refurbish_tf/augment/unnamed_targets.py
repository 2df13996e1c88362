"""What looks as if it should follow its image, and is not named by `targets=`: it would stay behind in silence."""
from __future__ import annotations

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import mistakes
from .target_kinds import BOX_NAMES, IMAGE_NAMES, MAYBE_POINT_NAMES, POINT_NAMES, named, shown


def leaves(value, path=()):
  """Yields pairs of a path and what is there: entries of dicts, components of tuples, and their own. A list is a tensor."""
  if isinstance(value, dict):
    for key in value:
      yield from leaves(value[key], (*path, key))
  elif isinstance(value, tuple):
    for number, each in enumerate(value):
      yield from leaves(each, (*path, number))
  else:
    yield path, np.asarray(value) if isinstance(value, list) else value


def components(element, rest):
  """All that is beside the image, as pairs of a path and what is there."""
  if isinstance(element, dict):
    yield from ((path, value) for path, value in leaves(element) if path[0] not in IMAGE_NAMES)
  for number, value in enumerate(rest, 1):
    yield from leaves(value, (number,))


def _may_be_points(shape, lead):
  """Whether this is the shape of key points, of those of several people, or of the corners of rows of eight numbers."""
  own = shape.as_list()[lead:] if shape.rank else []
  # The last is a matrix, as of a camera.
  return len(own) in (2, 3) and (own[-1] in (2, 3) or own[-1] in (8, 51) and len(own) == 2) and own != [3, 3]


def kind_by_name(path, value, lead):
  """The kind that a component has which is called as boxes or key points are, or None."""
  *holders, name = [key.lower() for key in path if isinstance(key, str)] or [""]
  shape = tf.TensorShape(getattr(value, "shape", None))
  # A dict of that name holds labels, too.
  is_row = bool(shape.rank) and shape[-1] == 4
  if name in BOX_NAMES or is_row and not set(BOX_NAMES).isdisjoint(holders):
    return "xyxy"
  # Without dimensions of its own it is a class, or a number of points.
  if name in POINT_NAMES and (shape.rank is None or shape.rank > lead):
    return "xy"
  is_called_so = name.rpartition("_")[2] in (*POINT_NAMES, *MAYBE_POINT_NAMES)
  return "xy" if is_called_so and _may_be_points(shape, lead) else None


def check_names(found, lead):
  """Raises if a component is called as boxes or key points are.

  `lead`: how many dimensions the image has before its height.
  """
  for path, value in found:
    kind = kind_by_name(path, value, lead)
    if kind:
      raise ValueError(
          f"targets must say what the component {shown(path)} is, which is called as {'boxes' if kind == 'xyxy' else 'key points'} "
          f"are: beside layers that move pixels it would stay where it is. Pass {named(path, kind)}, or the format that it "
          f"has, if it is to follow the image, else {named(path, None)}; targets={{}} if nothing follows it.")


def warn_of_companions(found, lead):
  """Warns of components that look as if they should follow: rows of boxes or key points, and pictures of another size.

  `lead`: how many dimensions the image has before its height.
  """
  for path, value in found:
    shape, dtype = tf.TensorShape(getattr(value, "shape", None)), tf.as_dtype(getattr(value, "dtype", tf.string))
    if not shape.rank or dtype in (tf.string, tf.bool):
      continue
    held = list(_may_hold(path, shape, dtype, lead))
    if held:
      mistakes.warn(
          f"The component {shown(path)} of shape {shape} stays where it is, beside layers that move pixels. If it holds "
          f"{'; if it holds '.join(held)}; if it holds anything else, such as labels, {named(path, None)}.")


def _may_hold(path, shape, dtype, lead):
  """Yields what a component may hold that looks as if it should follow, and how to name it: the likeliest first."""
  names = [key.lower() for key in path if isinstance(key, str)]
  own, last = shape.rank - lead, shape[-1]
  # Rows of three bytes are colours or classes.
  if _may_be_points(shape, lead) and not (own == 2 and last == 3 and dtype.size == 1):
    what, way = {
        8: ("four corners", ", after a reshape to [n, 4, 2] in Dataset.map"),
        51: ("17 key points of each person", ", after a reshape to [n, 17, 3] in Dataset.map")}.get(
            last, ("key points, with or without their visibility", ' or, in fractions of the image, "rel_xy"'))
    yield f"{what}, pass {named(path, 'xy')}{way}"
  if own == 2 and last in range(4, 10) or bool(names) and "box" in names[-1] and last == 4:
    more = ". Of longer rows, split the boxes off in Dataset.map before" * (last > 4) + (
        '; boxes with an angle follow as their four corners, [n, 4, 2], "xy"' * (last == 5))
    yield f"boxes, pass {named(path, 'xyxy')}, with the form that it has{more}"
  if own == 3 and last == 2 and dtype.is_floating:
    yield f"an optical flow, pass {named(path, 'flow')}, resized to the image's size"
  if own == 3 and last in (1, 3) and (dtype.is_floating or dtype.size < 4):
    yield f"a picture that belongs to the image, pass {named(path, 'image')}, of the image's size or a multiple of it"


def warn_of_slices(found, shape, whose):
  """Warns of components that have a part for each slice of a volume of this shape, or frame of a clip, of which `whose` chooses some."""
  for path, value in found:
    there = tf.TensorShape(getattr(value, "shape", None))
    if there.rank and shape.rank and shape[0] is not None and there[0] == shape[0] > 1:
      mistakes.warn(
          f"The component {shown(path)} of shape {there} stays as it is beside {whose}, and has a part for each of the {shape[0]} slices or "
          "frames. If these belong together, cut both in a function that calls those of rtf.augment.split; if it holds anything else, "
          f"{named(path, None)}.")


def _floating_kinds(path, component, channels):
  """What else a component of the image's size may be if it holds floats, for errors."""
  if not tf.as_dtype(getattr(component, "dtype", tf.string)).is_floating:
    return ""
  kinds = [("bilinear", "a map to be blended")]
  if channels in ([], [1]):
    kinds.append(("disparity", "the disparity of two views"))
  if channels == [2]:
    kinds.append(("flow", "an optical flow"))
  if channels == [3] or len(channels) == 1 and channels[0] and channels[0] % 2 == 0:
    kinds.append(("vectors", "directions, such as surface normals, which \"bilinear\" does not turn"))
  return "".join(f", {named(path, kind)} for {what}" for kind, what in kinds)


def way_of_second(path):
  """What to do with a component that has the size of a second image."""
  return (
      f"Pass {named(path, 'image')} for another picture, or {named(path, None)} if it stays as it is. To let a mask follow, resize it to "
      "the size of the first image in Dataset.map.")


def check_sizes(found, sides, is_known=True, second=None):
  """Raises if a component has the height and width of the image; returns those of which that is known when it runs.

  `sides`: of the image, after the dimensions of a batch or of frames. `is_known`: whether its rank is. `second`: the path of the
  image, unless it is the first. These are pairs of a path and a tensor.
  """
  maybe = []
  for path, component in found:
    shape = tf.TensorShape(getattr(component, "shape", None))
    if shape.rank is None:
      maybe += [(path, component)] if isinstance(component, tf.Tensor) else []
      continue
    there = shape.as_list()
    # Also after other dimensions, as masks of instances are, or without those of a batch or a clip.
    pairs = [there[place:place + 2] for place in range(len(there) - 1)]
    is_map = there[:len(sides)] == sides
    if is_known and (is_map or None not in sides[-2:] and sides[-2:] in pairs):
      first = "" if is_map else (
          " It would have to be [height, width, channels], after the dimensions of a batch or of frames.")
      of, way = (f"component {shown(second)}, 'image'", way_of_second(path)) if second else ("image", (
          f"Pass {named(path, 'mask')} for classes, {named(path, 'image')} for a second picture"
          f"{_floating_kinds(path, component, there[len(sides):])}, or {named(path, None)} if it stays as it is.{first}"))
      raise ValueError(
          f"The component {shown(path)} of shape {shape} has the height and width of the {of}, but `targets` does not name it. {way}")
    if len(there) >= len(sides) and None in there[:len(sides)] + sides and (
        shape[:len(sides)].is_compatible_with(sides) and isinstance(component, tf.Tensor)):
      maybe.append((path, component))
  return maybe
