"""The kinds of `targets=` that may follow an image, and the tensors that each kind takes."""

import numbers
from typing import Literal, get_args

import tensorflow as tf

# Boxes [n, 4], with Keras' names of their formats.
BoxFormat = Literal[
  "xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"
]
BOXES = get_args(BoxFormat)
KEY_POINTS = ("xy", "rel_xy")
MAPS = ("mask", "bilinear", "flow", "vectors", "disparity")
# Kinds that have the height and width of the image, or a multiple of them.
WITH_SIDES = (*MAPS, "image")
KINDS = (*WITH_SIDES, *BOXES, *KEY_POINTS)
# Names of boxes and key points in data sets.
BOX_NAMES = ("boxes", "bbox", "bboxes", "bounding_boxes")
POINT_NAMES = ("keypoints", "key_points", "kpts", "landmarks", "joints", "polygon", "polygons")
# Classes and the matrices of cameras also have these names: the shape decides.
MAYBE_POINT_NAMES = ("pose", "poses")
IMAGE_NAMES = ("image", "images")
TELL = (
  'Pass targets={"mask": "mask", "boxes": "xyxy"} for entries of a dict, targets={1: "mask"} for the second component '
  "of a tuple."
)
_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
OF_IMAGES = (tf.uint8, tf.uint16, tf.int16, tf.float16, tf.bfloat16, tf.float32)
_INTEGERS = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64)


def checked_targets(targets, whose):
  """Returns a dict from paths to kinds, or None; raises if `targets` is invalid.

  A path is a tuple: the name or position of a component, and of entries inside it.
  """
  if targets is None:
    return None
  if not isinstance(targets, dict):
    raise TypeError(
      f"targets of {whose} must be a dict from names or positions to kinds, or None, got {targets!r}. {TELL}"
    )
  paths = {}
  for name, kind in targets.items():
    if name in IMAGE_NAMES or isinstance(name, numbers.Integral) and not isinstance(name, bool) and name < 1:
      raise ValueError(
        f"targets of {whose} must not name the image, which is the first component, got {name!r}. {TELL}"
      )
    paths.update(_checked_paths((), name, kind, whose))
  return paths


def checked_names(what, names, advice='Pass "labels" for the entry of a dict, 1 for the second component of a tuple.'):
  """Returns a list of the names of components, or of their positions; raises unless it can be that."""
  names = list(names) if isinstance(names, (list, tuple)) else [names]
  if any(isinstance(name, bool) or not isinstance(name, (str, numbers.Integral)) for name in names):
    raise TypeError(f"{what} must be names, or positions in a tuple, got {names!r}. {advice}")
  return names


def _checked_paths(path, name, kind, whose):
  """Yields pairs of a path and a kind: for one name, or for the entries inside it."""
  checked_names(f"targets of {whose}", [name], TELL)
  path = (*path, name if isinstance(name, str) else int(name))
  if isinstance(kind, dict):
    for inner, each in kind.items():
      yield from _checked_paths(path, inner, each, whose)
    return
  if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
    raise (ValueError if isinstance(kind, str) else TypeError)(
      f"targets of {whose} must give the component {shown(path)} one of the kinds {', '.join(KINDS)}, or None to leave "
      f"it as it is, got {kind!r}. {TELL}"
    )
  yield path, kind


def shown(path):
  """A path as errors show it."""
  return repr(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def named(path, kind):
  """The argument `targets=` that names this path, as text."""
  inner = f'"{kind}"' if kind else "None"
  for key in reversed(path):
    shown_key = f'"{key}"' if isinstance(key, str) else key
    inner = f"{{{shown_key}: {inner}}}"
  return f"targets={inner}"


def checked_dtype(path, kind, value):
  """Returns the component as a tensor, dense or ragged; raises unless the kind allows its dtype."""
  if isinstance(value, tf.RaggedTensor) and kind not in WITH_SIDES:
    tensor, is_dense = value, True
  else:
    try:
      tensor, is_dense = tf.convert_to_tensor(value), True
    except (TypeError, ValueError):
      tensor, is_dense = value, False
  if not is_dense or isinstance(tensor, tf.SparseTensor):
    raise TypeError(
      f"targets: the component {shown(path)} must be a dense tensor, got a {type(value).__name__}. Name the tensors "
      f"inside it, such as {named((*path, 'boxes'), kind)}, and make each mask a separate tensor in Dataset.map."
    )
  dtype = tensor.dtype
  if kind == "mask":
    must, allowed, way = "a numeric or bool dtype", (*_INTEGERS, *_FLOATS, tf.bool), "for example with tf.io.decode_png"
  elif kind == "image":
    must = "the dtype of an image: uint8, uint16, int16 or at most 32 floating bits"
    allowed, way = OF_IMAGES, "like the image itself"
  elif kind in ("flow", "vectors", "disparity"):
    must, allowed, way = "a floating dtype", _FLOATS, f"with tf.cast({kind}, tf.float32)"
    if kind == "vectors" and dtype == tf.uint8:
      way = "with tf.cast(v, tf.float32) / 127.5 - 1 for vectors v that an image stores as 0 to 255"
  elif kind == "bilinear":
    must, allowed = "a floating dtype", _FLOATS
    way = 'or name it "mask", which takes the nearest pixels: classes must not be blended'
  elif kind.startswith("rel_"):
    must, allowed, way = "a floating dtype, from 0 to 1", _FLOATS, "or name a format in pixels"
  elif kind in BOXES:
    must, allowed, way = "a numeric dtype", (*_INTEGERS, *_FLOATS), "with tf.cast(boxes, tf.float32)"
  else:
    # Key points may be far outside the image, on any side.
    must, allowed = "int32, int64 or a floating dtype", (tf.int32, tf.int64, *_FLOATS)
    way = "with tf.cast(points, tf.float32)"
  if dtype not in allowed:
    way = way if dtype != tf.string else "for example with tf.io.decode_png for a mask"
    raise TypeError(
      f"targets: the component {shown(path)}, {kind!r}, must have {must}, got dtype {dtype.name}. Convert it in "
      f"Dataset.map first, {way}."
    )
  return tensor


# By kind: the smallest and the largest number of dimensions, without those of a batch or of frames, and their names.
_FORMS = {
  "mask": (2, 3, "[height, width] or [height, width, channels]"),
  "bilinear": (2, 3, "[height, width] or [height, width, channels]"),
  "flow": (3, 3, "[height, width, 2]"),
  "vectors": (3, 3, "[height, width, 3], with x, y and z, or [height, width, 2 * n], with x and y of n vectors"),
  "disparity": (2, 3, "[height, width] or [height, width, 1]"),
  "image": (3, 3, "[height, width, channels]"),
}

_OF_ANGLES = "Convert a map of angles in Dataset.map: tf.stack([tf.cos(angles), tf.sin(angles)], axis=-1)."


def are_multiples(sides, of):
  """Whether static sides may all be the same multiple of the sides `of`."""
  known = [(side, first) for side, first in zip(sides, of) if None not in (side, first) and first]
  are_whole = all(side >= first and side % first == 0 for side, first in known)
  return are_whole and len({side // first for side, first in known}) <= 1


def _way_to_resize(kind, dtype, own_sides, sides, is_plain):
  """For errors: how to resize a map to the static sides of its image. `is_plain`: it has no channel dimension."""
  own_height, own_width = (side or f"{kind}_{name}" for side, name in zip(own_sides, ("height", "width")))
  height, width = (side or name for side, name in zip(sides, ("height", "width")))
  channels, size = "[..., tf.newaxis]" * is_plain, f"[{height}, {width}]"
  if kind == "mask":
    cast = "mask" if dtype.is_floating else "tf.cast(mask, tf.int64)"
    return f'a mask with tf.image.resize({cast}{channels}, {size}, "nearest")'
  if kind in ("bilinear", "vectors"):
    return f"a map with tf.image.resize(map{channels}, {size})"
  scaled, factors = "a disparity with its width", f"({width} / {own_width})"
  if kind == "flow":
    scaled, factors = "the vectors of a flow with it", f"[{width} / {own_width}, {height} / {own_height}]"
  return f"and scale {scaled}: tf.image.resize({kind}{channels}, {size}) * {factors}"


def check_shape(path, kind, tensor, lead, image_shape):
  """Raises unless the tensor's static shape fits an image that has the dimensions `lead` before its height."""
  shape = tensor.shape
  if shape.rank is None:
    return
  of_rows = (1, 2, "[n, 4]") if kind in BOXES else (1, 3, "[n, 2] or [n, 3], or these for several people")
  own, most, forms = _FORMS.get(kind, of_rows)
  before = f", after the dimensions {lead} of the images" if len(lead) else ""
  if not len(lead) + own <= shape.rank <= len(lead) + most or not shape[: len(lead)].is_compatible_with(lead):
    way = "Put the layers before batch, or batch both; each frame of a clip needs its own."
    if kind == "image" and shape.rank == len(lead) + 2:
      way = "Add a channel axis in Dataset.map first: image[..., tf.newaxis]."
    if kind == "vectors" and shape.rank == len(lead) + 2:
      way = _OF_ANGLES
    raise ValueError(
      f"targets: the component {shown(path)}, {kind!r}, must be {forms}{before}, got shape {shape} with an image of "
      f"shape {image_shape}. {way}"
    )
  if kind in WITH_SIDES:
    sides = tf.TensorShape([None, None]) if image_shape.rank is None or image_shape.rank < 3 else image_shape[-3:-1]
    channels = {"flow": [2], "disparity": [1], "vectors": [3, *range(2, 1 + (shape[-1] or 0), 2)]}.get(kind)
    if channels and shape.rank == len(lead) + 3 and shape[-1] not in (*channels, None):
      way = 'Put anything else into a component of its own in Dataset.map; a map of the valid pixels is a "mask".'
      way = _OF_ANGLES if (kind, shape[-1]) == ("vectors", 1) else way
      raise ValueError(
        f"targets: the component {shown(path)}, {kind!r}, must be {forms}{before}, got shape {shape}. {way}"
      )
    own_sides = shape[len(lead) : len(lead) + 2]
    if kind == "image":
      if not are_multiples(own_sides.as_list(), sides.as_list()):
        raise ValueError(
          f"targets: the component {shown(path)}, 'image', must have the height and width of the image, {sides}, or "
          f"the same multiple of both, got shape {shape}. Crop or resize one of them in Dataset.map first; the "
          "smaller one is the image."
        )
    elif not own_sides.is_compatible_with(sides):
      way = _way_to_resize(kind, tensor.dtype, own_sides, sides, shape.rank == len(lead) + 2)
      way = f"Resize one of them in Dataset.map first, {way}."
      if shape.rank == len(lead) + 3 and shape[-2:].is_compatible_with(sides):
        order = [*range(len(lead)), *(len(lead) + place for place in (1, 2, 0))]
        way = f"Put the masks last in Dataset.map: tf.transpose(mask, {order})."
      raise ValueError(
        f"targets: the component {shown(path)}, {kind!r}, must have the height and width of the image, {sides}, got "
        f"shape {shape}. {way}"
      )
    return
  last = shape[-1]
  if last is not None and last not in ((4,) if kind in BOXES else (2, 3)):
    told = "three numbers a point: x, y and visibility" if kind in KEY_POINTS else "four numbers a box"
    way = "Reshape it" + ", such as [n, 51] to [n, 17, 3] and [n, 8] to [n, 4, 2]" * (kind in KEY_POINTS)
    way += ", or put other columns into a component of their own"
    if last == 0:
      way = f"An empty list has no columns: write tf.reshape(component, [-1, {4 if kind in BOXES else 2}])"
    raise ValueError(
      f"targets: the component {shown(path)}, {kind!r}, must be {forms}, {told}, got shape {shape}. {way}, in "
      "Dataset.map."
    )
