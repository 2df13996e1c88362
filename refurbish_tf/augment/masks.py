"""Masks: components of an element that follow the geometry of its image, pixel by pixel, and none of its colours."""
from __future__ import annotations

import functools
import numbers
import re

import tensorflow as tf

# How Keras and TensorFlow name functions that move pixels within an image of the same size.
_MOVERS = re.compile(
    "crop|flip|rot90|rotat|translat|zoom|shear|perspective|elastic|transpose|augment|augmix", re.IGNORECASE)
# AutoGraph has nothing to convert here.
_as_it_is = tf.autograph.experimental.do_not_convert
_DTYPES = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64)
_TELL = 'Pass masks=("mask",) for the entry "mask" of a dict, masks=(1,) for the second component of a tuple.'


def checked_masks(masks, whose):
  """Returns names and positions as a tuple, or None; raises if they can be neither."""
  if masks is None:
    return None
  if not isinstance(masks, (list, tuple)):
    raise TypeError(f"masks of {whose} must be a tuple of names or positions, or None, got {masks!r}. {_TELL}")
  for mask in masks:
    if isinstance(mask, bool) or not isinstance(mask, (str, numbers.Integral)):
      raise TypeError(f"masks of {whose} must be names, or positions in a tuple, got {mask!r}. {_TELL}")
    if mask == "image" or not isinstance(mask, str) and mask < 1:
      raise ValueError(
          f"masks of {whose} must name components beside the image, which is the first one, got {mask!r}. {_TELL}")
  return tuple(dict.fromkeys(mask if isinstance(mask, str) else int(mask) for mask in masks))


def check_layer(layer, position):
  """Raises ValueError if the layer certainly moves pixels, and would not move those of masks."""
  name = layer_name(layer)
  while isinstance(layer, functools.partial):
    layer = layer.func
  owner = type(getattr(layer, "__self__", layer)).__name__
  room = (getattr(layer, "__module__", None) or "").split(".")
  if getattr(layer, "keeps_pixels", False):
    return
  if room[:3] == ["refurbish_tf", "augment", "decoding"]:
    way_out = (
        "Use tf.io.decode_jpeg, or decode() if masks lie as photographs are stored, then random_resized_crop")
  elif room[:2] == ["refurbish_tf", "augment"]:
    way_out = "Put layers of rtf.augment themselves into the list, not a function made of them"
  elif room[0] in ("keras", "tensorflow") and getattr(layer, "layers", None):
    for each in layer.layers:
      check_layer(each, position)
    return
  elif room[0] in ("keras", "tensorflow") and _MOVERS.search(f"{name} {owner}"):
    way_out = "Use a layer of rtf.augment, such as random_flip()"
  else:
    return
  raise ValueError(
      f"layers with masks must move them with the image, but {name} at position {position} is given the image alone. "
      f"{way_out}, or move both in Dataset.map before.")


def layer_name(layer):
  while isinstance(layer, functools.partial):
    layer = layer.func
  return getattr(layer, "__name__", type(layer).__name__)


class Following:
  """The masks of one element, on their way through the layers."""

  @_as_it_is
  def __init__(self, names, element, rest, image):
    """`names`: of `checked_masks`. Raises ValueError if there are none of them, and a component looks like a mask."""
    self._names = names
    self._element = element
    self._rest = rest
    self._masks = {name: _checked_mask(name, self._component(name)) for name in names or ()}
    # What may have the size of the image, and is not named: known when it runs.
    self._maybe_masks = []
    if not _is_file(image):
      self._check_all_are_named(image)
      self._check_sizes(image)

  @_as_it_is
  def through_chain(self, chain, image, seed):
    """Returns the image behind layers that draw once for the image and its masks."""
    if self._maybe_masks:
      image, self._maybe_masks = _checked_to_be_no_masks(image, self._maybe_masks), []
    if not self._masks:
      return chain(image, seed)
    image, self._masks = chain.with_masks(image, self._masks, seed)
    return image

  @_as_it_is
  def through_function(self, layer, position, given, image):
    """To be told of a function that has made `image` of the image `given`."""
    if self._masks and not _is_file(given):
      before, after = _sides(given), _sides(image)
      # A size that is no longer known is checked when it runs. One that is known only now was changed.
      if _shape(image).rank is not None and (len(before) != len(after) or any(
          side not in (None, known) for side, known in zip(after, before))):
        raise ValueError(
            f"layers with masks must leave the image its size, {before}, unless they are of rtf.augment and move the "
            f"masks, too: {layer_name(layer)} at position {position} is given the image alone, and returned {after}. "
            "Use a layer of rtf.augment, such as random_resized_crop, or resize both in Dataset.map before.")
    if not _is_file(image):
      if _is_file(given):
        self._check_all_are_named(image, was_file=True)
      self._check_sizes(image)
      self._masks = {name: _checked_when_it_runs(name, mask, _pixels(image)) for name, mask in self._masks.items()}

  @_as_it_is
  def beside(self, element):
    """Returns the masks with an element that holds the image behind all layers; changes a dict."""
    rest = list(self._rest)
    for name, mask in self._masks.items():
      if isinstance(name, str):
        element[name] = mask
      else:
        rest[name - 1] = mask
    return (element, *rest) if rest else element

  def _component(self, name):
    if isinstance(name, str):
      there = self._element if isinstance(self._element, dict) else {}
      held = f"with the entries {sorted(there)}" if there else "that is no dict"
    else:
      there = dict(enumerate(self._rest, 1))
      held = f"of {1 + len(there)} components, the image among them"
    if name not in there:
      raise ValueError(f"masks: there is no component {name!r} in an element {held}. {_TELL}")
    return there[name]

  def _check_sizes(self, image):
    for name, mask in self._masks.items():
      _check_size(name, mask, image)

  def _check_all_are_named(self, image, was_file=False):
    rank = _shape(image).rank
    if self._names is not None or rank not in (None, 3, 4):
      return
    # Files are of any size, as far as is known, and so are masks that belong to them.
    sides = [None, None] if was_file or rank is None else _sides(image)
    others = dict(enumerate(self._rest, 1))
    if isinstance(self._element, dict):
      others.update((name, value) for name, value in self._element.items() if name != "image")
    for name, value in others.items():
      for component in tf.nest.flatten(value):
        shape = _shape(component)
        if shape.rank is None or shape.rank < len(sides):
          continue
        found = shape.as_list()[:len(sides)]
        if found == sides and rank is not None:
          quoted = f'"{name}"' if isinstance(name, str) else name
          raise ValueError(
              f"masks must say what the component {name!r} of shape {shape} is, as it has the height and width of the "
              f"image: a mask that is not named does not follow the image. Pass masks=({quoted},) if it is to be "
              "cropped and flipped with the image, else masks=().")
        if not was_file and None in found + sides and shape[:len(sides)].is_compatible_with(sides) and isinstance(
            component, tf.Tensor):
          self._maybe_masks.append((name, component, len(sides)))


def _is_file(image):
  """Whether this is not an image, but bytes that a layer will decode."""
  return isinstance(image, (bytes, str)) or tf.is_tensor(image) and image.dtype == tf.string


def _pixels(image):
  # AutoAugment's layers pass the image in a named tuple.
  return image.image if isinstance(image, tuple) and hasattr(image, "image") else image


def _shape(image):
  return tf.TensorShape(getattr(_pixels(image), "shape", None))


def _sides(image):
  """The static height and width, after the size of the batch if there is one."""
  shape = _shape(image)
  return shape.as_list()[:-1] if shape.rank in (3, 4) else shape[:2].as_list()


def _checked_mask(name, mask):
  try:
    mask = tf.convert_to_tensor(mask)
  except (TypeError, ValueError):
    raise TypeError(
        f"masks: the component {name!r} must be a dense tensor, got a {type(mask).__name__}. Make each mask a "
        "component of its own, by Dataset.map.") from None
  if mask.dtype not in _DTYPES:
    raise TypeError(
        f"masks: the component {name!r} must have an integer dtype or bool, got dtype {mask.dtype.name}. " + (
            "Decode it in Dataset.map before, as with tf.io.decode_png." if mask.dtype == tf.string else
            "In Dataset.map before, convert numbers of classes with tf.cast(tf.round(mask), tf.int32), and shares from 0 to 1 "
            "with tf.image.convert_image_dtype(mask, tf.uint8, saturate=True)."))
  return mask


def _check_size(name, mask, image):
  sides = tf.TensorShape(_sides(image))
  if mask.shape.rank not in (None, sides.rank, sides.rank + 1):
    raise ValueError(
        f"masks: the component {name!r} must be [height, width] or [height, width, channels], got shape {mask.shape} "
        f"beside an image of shape {_shape(image)}. Put the layers before batch, or batch both.")
  if not mask.shape[:sides.rank].is_compatible_with(sides):
    raise ValueError(
        f"masks: the component {name!r} must have the height and width of the image, {sides}, got shape {mask.shape}. "
        "Resize one of them in Dataset.map before, a mask [height, width] with "
        'tf.image.resize(tf.cast(mask, tf.int64)[..., tf.newaxis], size, "nearest").')


def _checked_to_be_no_masks(image, components):
  """Returns the image; when it runs, raises if a component that is not named has its height and width."""
  checks = []
  for name, component, number in components:
    sides = tf.shape(component)[:number]
    checks.append(tf.debugging.Assert(tf.reduce_any(tf.not_equal(sides, tf.shape(_pixels(image))[:number])), [
        f"masks must say what the component {name!r} is, as it has the height and width of the image: a mask that is not "
        "named does not follow the image. Name it if it is to follow the image, else pass masks=(). Got:", sides]))
  with tf.control_dependencies([check for check in checks if check is not None]):
    return tf.nest.map_structure(tf.identity, image)


def _checked_when_it_runs(name, mask, image):
  """Returns the mask behind a function, which may have changed the size of an image of unknown size."""
  number = len(_sides(image))
  if mask.shape[:number].is_fully_defined() and _shape(image)[:number].is_fully_defined():
    return mask
  sides, expected = tf.shape(mask)[:number], tf.shape(image)[:number]
  check = tf.debugging.Assert(tf.reduce_all(tf.equal(sides, expected)), [
      f"masks: the component {name!r} must have the height and width of the image. Got those of mask and image:", sides,
      expected])
  with tf.control_dependencies([] if check is None else [check]):
    return tf.identity(mask)
