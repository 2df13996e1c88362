"""Targets: components of an element that follow the geometry of its image, but not its colours."""

from __future__ import annotations

import copy
import re

import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings
from . import target_kinds, target_hints
from .decoding import Decoder
from .depth_layers import DepthLayer
from .layers import checked_when_it_runs, layer_name, unwrapped
from .native_layers import HalfAugmented
from .numpy_layer import NumpyLayer
from .target_kinds import BOXES, BOX_NAMES, KEY_POINTS, POINT_NAMES, TELL, WITH_SIDES, shown

# Names of Keras' and TensorFlow's functions that move pixels and keep the size of the image.
_MOVERS = re.compile(
  "crop|flip|rot90|rotat|translat|zoom|shear|perspective|elastic|transpose|augment|augmix", re.IGNORECASE
)
# Names of functions that draw for each image of a batch.
_DRAW_FOR_EACH = re.compile("random_flip|^Random|RandAugment|AugMix|CutMix|MixUp|Erasing", re.IGNORECASE)
# Names of functions that draw. Those that do not move pixels change colors.
_RANDOM = re.compile("^Random|random_")
# For methods in which AutoGraph has nothing to convert.
_as_it_is = tf.autograph.experimental.do_not_convert


def _known_as(layer):
  """A layer's package, its names there (a user's class has those of its Keras bases), and its inner layers."""
  layer, name = unwrapped(layer), layer_name(layer)
  owner = type(getattr(layer, "__self__", layer))
  rooms = {(getattr(layer, "__module__", None) or "").split(".")[0]: [name]}
  for each in owner.__mro__:
    rooms.setdefault(each.__module__.split(".")[0], []).append(each.__name__)
  room = next((room for room in ("refurbish_tf", "keras", "tensorflow") if room in rooms), None)
  return room, rooms.get(room, []), getattr(layer, "layers", None) or ()


def mover(layer, position):
  """Returns which layer it is, and advice, if it certainly moves pixels but not targets; otherwise None."""
  room, names, inner = _known_as(layer)
  if room == "refurbish_tf":
    way_out = "Put layers of rtf.augment themselves into the list, not a function made from them"
  elif room and inner:
    return next(filter(None, (mover(each, position) for each in inner)), None)
  elif room and any(map(_MOVERS.search, names)):
    way_out = "Use a layer of rtf.augment, such as random_flip()"
  else:
    return None
  return f"{layer_name(layer)} at position {position}", way_out


def check_layer(layer, position):
  """Raises ValueError if the layer certainly moves pixels, but not targets."""
  found = mover(layer, position)
  if found:
    raise ValueError(
      f"layers with targets must move them with the image, but {found[0]} gets only the image. {found[1]}, or move "
      "both in Dataset.map first."
    )


def warn_of_first_alone(layer, position, targets):
  """Warns if the layer certainly draws, and would change only the first of two images."""
  room, names, inner = _known_as(layer)
  followers = [shown(path) for path, kind in targets.items() if kind == "image"]
  if followers and room and any(map(_RANDOM.search, names)):
    pipeline_warnings.warn(
      f"{layer_name(layer)} at position {position} gets only the first image, and leaves the component "
      f"{followers[0]}, 'image', as it is. Use a layer of rtf.augment for both, such as color_jitter. If the images "
      f"are to differ, silence this: {pipeline_warnings.SILENCE}."
    )
  for each in inner if room else ():
    warn_of_first_alone(each, position, targets)


def check_layer_of_clips(layer, position):
  """Raises ValueError if the layer certainly draws for each image of a batch, and so for each frame."""
  room, names, inner = _known_as(layer)
  for each in inner if room else ():
    check_layer_of_clips(each, position)
  if room == "refurbish_tf" or room and any(map(_DRAW_FOR_EACH.search, names)):
    raise ValueError(
      f"layers must treat all frames of a clip alike, but {layer_name(layer)} at position {position} draws for each "
      "frame separately. Use layers of rtf.augment themselves, or a function that draws once, for example with "
      "tf.random.stateless_uniform."
    )


def has_stacked(layer, images, made):
  """Whether a function of Keras or TensorFlow was given a tuple of images, and stacked it into a batch."""
  rank = shape_of(images[0]).rank if isinstance(images, tuple) else None
  if rank is None or shape_of(made).rank != 1 + rank:
    return False
  return _known_as(layer)[0] in ("keras", "tensorflow") and layer_name(layer) != "stack"


class Following:
  """The targets of one element on their way through the layers."""

  @_as_it_is
  def __init__(self, targets, element, rest, image, moves):
    """Raises ValueError if an undeclared component looks like a target. `moves`: if layers certainly move pixels."""
    self._element, self._rest = element, rest
    self._kinds, self._tensors, self._ragged = {}, {}, {}
    lead = self._lead(image)
    stays = set()
    for path, kind in (targets or {}).items():
      path, value = self._component(path, kind)
      if kind is None:
        stays.add(path)
        continue
      self._kinds[path] = kind
      self._tensors[path] = self._dense(path, target_kinds.checked_dtype(path, kind, value))
      target_kinds.check_shape(path, kind, self._tensors[path], lead, shape_of(image))
    # The components that `targets` does not declare, which are checked for likely targets.
    found = [] if targets == {} else target_hints.components(element, rest)
    self._others = [(path, value) for path, value in found if not beginning_in({*stays, *self._kinds}, path)]
    self._check_others(image)
    self._check_others_beside_second_images()
    if moves:
      target_hints.check_names(self._others, len(lead))
      target_hints.warn_of_companions(self._others, len(lead))

  @_as_it_is
  def through_layer(self, layer, image, seed):
    """Returns the image after a layer that also moves targets: native, a decoder, a depth or a Python layer."""
    named = [(path, kind, self._tensors[path]) for path, kind in self._kinds.items()]
    others, is_by_depth = [], isinstance(layer, DepthLayer)
    if is_by_depth and self._ragged:
      raise ValueError(
        f"targets with {layer_name(layer)} must have the same number of rows in each slice or frame, got the ragged "
        f"component {shown(next(iter(self._ragged)))}. Pad it with rows of -1 in Dataset.map first: "
        "tensor.to_tensor(-1)."
      )
    if not isinstance(layer, NumpyLayer):
      others, self._maybe_maps = [(path, "unnamed", tensor) for path, tensor in self._maybe_maps], []
    if isinstance(layer, DepthLayer):
      target_hints.warn_of_slices(self._others, shape_of(image), layer.__name__)
    image, moved = layer.with_targets(image, others + named, seed)
    for (path, kind, given), tensor in zip(named, moved[len(others) :]):
      # Native layers keep the number of rows, but the static shape of their op's output may be less exact.
      if kind not in WITH_SIDES and not is_by_depth and not isinstance(layer, NumpyLayer):
        tensor.set_shape(given.shape)
      self._tensors[path] = tensor
    if isinstance(layer, Decoder):
      self._check_others(image)
    return image

  @_as_it_is
  def through_function(self, layer, position, image, made):
    """Checks the image that any other layer has returned, and returns it."""
    if not _is_file(image):
      before, after = _sides(image), _sides(made)
      # A side that is no longer known is checked at run time. A side that is known only now was changed.
      is_resized = shape_of(made).rank is not None and (
        len(before) != len(after) or any(side not in (None, known) for side, known in zip(after, before))
      )
      if is_resized:
        target_hints.check_names(self._others, len(self._lead(image)))
      if is_resized and self._kinds:
        raise ValueError(
          f"layers with targets must keep the size of the image, {before}, unless they are layers of rtf.augment, "
          f"which also move the targets: {layer_name(layer)} at position {position} gets only the image, and returned "
          f"{after}. Use a layer of rtf.augment, such as random_resized_crop, or resize both in Dataset.map first. To "
          "draw a window of frames, write a function that cuts both and calls the functions of rtf.augment.split."
        )
      if self._kinds and None in before + after:
        made = _checked_to_keep_its_size(made, image, layer, position)
    if not _is_file(made):
      if _is_file(image):
        self._check_others(made)
        lead = self._lead(made)
        for path, kind in self._kinds.items():
          target_kinds.check_shape(path, kind, self._tensors[path], lead, shape_of(made))
      for path in self._kinds:
        if self._kinds[path] in WITH_SIDES:
          self._tensors[path] = _checked_to_have_its_size(path, self._kinds[path], self._tensors[path], _pixels(made))
    return made

  @_as_it_is
  def beside(self, element):
    """Returns the element with its targets. `element` holds the image after all layers; a dict is changed."""
    whole = dict(enumerate(self._rest, 1))
    whole.update(element if isinstance(element, dict) else {})
    for path, tensor in self._tensors.items():
      tensor = _ragged_as(self._ragged[path], tensor) if path in self._ragged else tensor
      whole[path[0]] = replaced(whole[path[0]], path[1:], tensor)
    rest = [whole[number] for number in range(1, 1 + len(self._rest))]
    if isinstance(element, dict):
      element.update((name, whole[name]) for name in element)
    return (element, *rest) if rest else element

  def _lead(self, image):
    """The static dimensions before height, width and channels: of a batch, of frames."""
    shape = shape_of(image)
    if _is_file(image):
      return tf.TensorShape([]) if shape.rank is None else shape
    return shape[:-3] if shape.rank is not None and shape.rank > 3 else tf.TensorShape([])

  def _component(self, path, kind):
    """The path of a component and its value; for a dict, those of its only entry that is named like boxes or points."""
    name, *inner = path
    if isinstance(name, str):
      there = self._element if isinstance(self._element, dict) else {}
      held = f"with the entries {sorted(there)}" if there else "that is not a dict"
    else:
      there = dict(enumerate(self._rest, 1))
      held = f"of {1 + len(there)} components, the image among them"
    if name not in there:
      inside = [number for number, each in enumerate(self._rest, 1) if isinstance(each, dict) and name in each]
      way = TELL
      if inside:
        way = f"It is in the component {inside[0]}: pass {target_kinds.named((inside[0], *path), kind)}."
      raise ValueError(f"targets: there is no component {name!r} in an element {held}. {way}")
    value = there[name]
    for number, key in enumerate(inner, 1):
      held = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, tuple) else {}
      if key not in held:
        what = f"which has {list(held)}" if held else f"which is a {type(value).__name__}"
        raise ValueError(f"targets: there is no {key!r} in the component {shown(path[:number])}, {what}. {TELL}")
      value = held[key]
    known = BOX_NAMES if kind in BOXES else POINT_NAMES if kind in KEY_POINTS else ()
    entries = [key for key in value if key.lower() in known] if isinstance(value, dict) else []
    if len(entries) == 1:
      return (*path, entries[0]), value[entries[0]]
    return path, value

  def _dense(self, path, tensor):
    """Pads ragged rows. Layers leave the padding unchanged."""
    if not isinstance(tensor, tf.RaggedTensor):
      return tensor
    self._ragged[path] = tensor
    return tensor.to_tensor(padding_of(tensor.dtype))

  def _check_others(self, image):
    """Raises if an undeclared component has the image's size. If the size is unknown, the next layer checks it."""
    rank, self._maybe_maps = shape_of(image).rank, []
    if _is_file(image):
      self._maybe_maps = target_hints.check_sizes(self._others, [*self._lead(image), None, None])
    elif rank is None or rank >= 3:
      sides = [None, None] if rank is None else _sides(image)
      self._maybe_maps = target_hints.check_sizes(self._others, sides, rank is not None)

  def _check_others_beside_second_images(self):
    """Raises if an undeclared component has the size of a second image, if necessary at run time."""
    for second in [path for path, kind in self._kinds.items() if kind == "image" and self._tensors[path].shape.rank]:
      image = self._tensors[second]
      for path, other in target_hints.check_sizes(self._others, _sides(image), second=second):
        sides, there = tf.shape(image)[:-1], tf.shape(other)[: image.shape.rank - 1]
        is_other = tf.not_equal(tf.size(there), tf.size(sides))
        is_other |= tf.reduce_any(tf.not_equal(there, sides[: tf.size(there)]))
        told = (
          f"The component {shown(path)} has the height and width of the component {shown(second)}, 'image', but "
          f"`targets` does not name it. {target_hints.way_of_second(path)} Got the sizes:"
        )
        self._tensors[second] = checked_when_it_runs(self._tensors[second], is_other, told, there, sides)


def padding_of(dtype):
  """The value that pads rows of this dtype."""
  return tf.constant({tf.string: "", tf.bool: False}.get(dtype, 0 if dtype.is_unsigned else -1), dtype)


def checked_rows(what, name, rows, boxes):
  """Returns rows, dense or ragged; raises unless each image has one for each of its boxes. `what`: an argument."""
  rows = rows if isinstance(rows, tf.RaggedTensor) else tf.convert_to_tensor(rows)
  rank, told = boxes.shape.rank - 1, f"{what} must name components with a row for each box, got {name}"
  way = "Leave it out, or give it a row for each box."
  if rows.shape.rank in range(rank) or not rows.shape[:rank].is_compatible_with(boxes.shape[:rank]):
    raise ValueError(f"{told} of shape {rows.shape} for boxes of shape {boxes.shape}. {way}")
  is_ragged = lambda each: isinstance(each, tf.RaggedTensor)
  if is_ragged(rows) and is_ragged(boxes):
    numbers = [each.row_lengths() for each in (rows, boxes)]
  else:
    numbers = [(each.bounding_shape() if is_ragged(each) else tf.shape(each))[:rank] for each in (rows, boxes)]
  numbers = [tf.cast(each, tf.int64) for each in numbers]
  return checked_when_it_runs(rows, tf.reduce_all(tf.equal(*numbers)), f"{told}. {way} Got:", *numbers)


def kept_rows(rows, keep):
  """Drops the rows for which `keep`, `[n]` or `[batch, n]`, is False. Dense rows of a batch are padded at the end."""
  is_ragged, is_batch = isinstance(rows, tf.RaggedTensor), keep.shape.rank == 2
  if is_ragged and is_batch:
    keep = tf.RaggedTensor.from_tensor(keep, rows.row_lengths(), row_splits_dtype=rows.row_splits.dtype)
  made = tf.ragged.boolean_mask(rows, keep)
  if is_ragged or not is_batch:
    return made
  return tf.ensure_shape(made.to_tensor(padding_of(rows.dtype), shape=tf.shape(rows)), rows.shape)


def beginning_in(paths, path):
  """The path itself, or the first part of it, that is among `paths`; otherwise None."""
  return next((path[:end] for end in range(1, len(path) + 1) if path[:end] in paths), None)


def replaced(value, path, tensor):
  """Nested dicts and tuples with a tensor in place of the value at `path`."""
  if not path:
    return tensor
  if isinstance(value, dict):
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], tensor)
    return value
  parts = list(value)
  parts[path[0]] = replaced(parts[path[0]], path[1:], tensor)
  return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _ragged_as(given, tensor):
  """A padded tensor with the rows of a ragged one."""
  return tf.RaggedTensor.from_tensor(
    tensor, lengths=given.nested_row_lengths(), ragged_rank=given.ragged_rank, row_splits_dtype=given.row_splits.dtype
  )


def _is_file(image):
  """Whether this is not an image, but bytes that a layer will decode."""
  return isinstance(image, (bytes, str)) or tf.is_tensor(image) and image.dtype == tf.string


def _pixels(image):
  return image.image if isinstance(image, HalfAugmented) else image


def shape_of(image):
  """The static shape of an image, which may be in AutoAugment's named tuple, or of a tensor of files."""
  return tf.TensorShape(getattr(_pixels(image), "shape", None))


def _sides(image):
  """The static height and width, after the dimensions of a batch or of frames."""
  shape = shape_of(image)
  return shape.as_list()[:-1] if shape.rank is not None and shape.rank >= 3 else shape[:2].as_list()


def _checked_to_have_its_size(path, kind, tensor, image):
  """Returns the map or second image. If a function may have decoded the image, its size is checked at run time."""
  number = len(_sides(image))
  if tensor.shape[:number].is_fully_defined() and shape_of(image)[:number].is_fully_defined():
    return tensor
  sides, expected = tf.shape(tensor)[:number], tf.shape(image)[:number]
  first, is_image = expected, kind == "image"
  if is_image:
    times = tf.maximum(sides[-1] // tf.maximum(expected[-1], 1), 1)
    expected = tf.concat([expected[:-2], expected[-2:] * times], 0)
  multiple = ", or the same multiple of both" * is_image
  told = f"targets: the component {shown(path)} must have the height and width of the image{multiple}."
  return checked_when_it_runs(tensor, tf.reduce_all(tf.equal(sides, expected)), f"{told} Got both sizes:", sides, first)


def _checked_to_keep_its_size(made, given, layer, position):
  """Returns the image after a function, which must not have changed its size."""
  before, after = tf.shape(_pixels(given))[:-1], tf.shape(_pixels(made))[:-1]
  told = (
    f"layers with targets must keep the size of the image, unless they are layers of rtf.augment: {layer_name(layer)} "
    f"at position {position} gets only the image. Got the sizes before and after it:"
  )
  return checked_when_it_runs(made, tf.reduce_all(tf.equal(before, after)), told, before, after)
