"""Makes functions for `refurbish` and `Dataset.map` from augmentation layers."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import tracing
from . import keras_layers, other_libraries
from .decoding import Decoder
from .depth_layers import DepthLayer
from .layers import check_is_one, checked_batch, checked_seed, checked_whole, dense, layer_name, new_seed, seed_at
from .native_layers import MOST_LAYERS, HalfAugmented, LayerChain, NativeLayer
from .numpy_layer import NumpyLayer
from .target_kinds import IMAGE_NAMES, checked_targets
from .targets import Following, check_layer, check_layer_of_clips, has_stacked, mover, shape_of, warn_of_first_alone

# Layers that are given the targets with the image.
_GIVEN_TARGETS = (LayerChain, Decoder, DepthLayer, NumpyLayer)


def compose(
  layers: Sequence[Any], targets: dict[str | int, Any] | None = None, *, clips: bool | None = None
) -> Callable[..., Any]:
  """Returns a function that applies the layers in order to the image of an element, and moves its targets with it.

  >>> fn = rtf.augment.compose(
  ...     [rtf.augment.resize((64, 64)), rtf.augment.random_flip(p=0)], targets={"mask": "mask", "boxes": "xyxy"})
  >>> image, mask = tf.zeros([32, 32, 3], tf.uint8), tf.ones([32, 32], tf.int32)
  >>> element = fn({"image": image, "mask": mask, "boxes": [[0.0, 8, 32, 16]]}, seed=[7, 0])
  >>> element["mask"].shape, element["boxes"].numpy().tolist()
  (TensorShape([64, 64]), [[0.0, 16.0, 64.0, 32.0]])

  The layer at position p gets the seed `seed_at(seed, p)`. Adjacent layers of this module become one operation, except
  those that decode. Layers may also be functions `layer(image)`, or `layer(image, seed)` with seeds for
  `tf.random.stateless_*`. TensorFlow's functions with an optional seed are called without it, and draw from a state
  that no checkpoint saves. Keras layers are called as in training, with the seed in place of their own. If no other
  layers draw, the seed may be left out, and each call draws different numbers.

  | kind of target | shape | |
  | --- | --- | --- |
  | `"mask"` | `[height, width]` or `[height, width, channels]`, any number or bool | nearest pixels; 0 outside |
  | `"bilinear"` | the same, floating | blended between pixels |
  | `"image"` | `[height, width, channels]`, or a multiple of both sides | a second image, colour layers included |
  | `"flow"` | `[height, width, 2]`, floating | vectors x, y in pixels: blended, mirrored, turned and scaled |
  | `"vectors"` | `[height, width, 3 or 2 * n]`, floating | directions x, y (z stays): like a flow, but not scaled |
  | `"disparity"` | `[height, width]` or `[height, width, 1]`, floating | blended, scaled; rows not mirrored or turned |
  | `"xyxy"`, `"yxyx"`, `"xywh"`, `"center_xywh"`, `"center_yxhw"` | `[n, 4]`, any number | boxes in pixels |
  | `"rel_xyxy"`, `"rel_yxyx"`, `"rel_xywh"`, `"rel_center_xywh"` | `[n, 4]`, floating | boxes in parts of the image |
  | `"xy"` | `[n, 2]` or, with visibility, `[n, 3]`, int32, int64 or floating | key points in pixels |
  | `"rel_xy"` | the same, floating | key points in parts of the image |

  A box becomes the upright box around its four moved corners, clipped to the image. It keeps its row, and is all 0 if
  nothing of it is left (`sanitize_boxes` drops such rows). Points outside get visibility 0. Rows of -1 are padding.
  Only layers of `rtf.augment` move targets: other functions must not move pixels. The page *Targets* has the details.

  Args:
    layers: a list or tuple of callables, or of lists of them, such as a policy returns.
    targets: a dict from components to kinds. A component is the name of a dict's entry, or a position in a tuple, whose
      image is 0, such as `{1: "mask"}`. A nested dict has a dict of kinds, `{"objects": {"bbox": "rel_yxyx"}}`. None
      leaves a component as it is, `{}` leaves all. An undeclared component that looks like a target raises an error or
      a `rtf.PipelineWarning`.
    clips: the meaning of four dimensions. True: a clip `[frames, height, width, channels]`, or a volume, all of whose
      frames have the same draws, as do their targets. False: a batch, each of whose images has its own draws; `seed`
      may then be left out. None: a batch, but an error inside `refurbish` and `echo`.

  Returns:
    A function `fn(image, *rest, seed)` for `Dataset.map`, with an int32 or int64 seed `[2]`; without `seed` if no layer
    takes one. It returns `image`, or `(image, *rest)`. The image may be the entry `"image"` or `"images"` of a dict. If
    all layers are from this module, the function takes batches, and has the layers' `draws` and `pixels`.

  Raises:
    TypeError: an argument has the wrong type; when the function is called, the seed or a target has.
    ValueError: `layers` is empty, or has a layer that would not move targets, or not treat all frames alike. When the
      function is called: the seed or a target has the wrong shape, a component or the image is missing, or a component
      that looks like a target is not declared.
    tf.errors.InvalidArgumentError: when it runs, a box or point is not finite or not within the image, or a map and its
      image have different sizes.

  Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 2.2: an augmentation is a sequence of layers.
  """
  layers = checked_layers(layers, "compose")
  return compose_part(layers, 0, len(layers), checked_targets(targets, "compose"), checked_clips(clips, "compose"))


def split(
  layers: Sequence[Any], at: int, targets: dict[str | int, Any] | None = None, *, clips: bool | None = None
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
  """Returns `(partial_fn, final_fn)`: the first `at` layers as one function, and the rest as another.

  >>> layers = [rtf.augment.rand_augment(1), rtf.augment.random_crop(padding=4), rtf.augment.random_flip()]
  >>> partial_fn, final_fn = rtf.augment.split(layers, at=1)
  >>> image = tf.zeros([32, 32, 3], tf.uint8)
  >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  With the same seed, calling one after the other gives the same result as `compose(layers)`: layers keep their
  positions, and therefore their seeds.

  Args:
    layers: a list or tuple of at least one callable, or of lists of them, as for `compose`.
    at: the number of layers whose result is cached, a whole number from 1 to the number of all layers, including those
      in nested lists. With all of them, nothing is left for the final augmentation, and `final_fn` is None.
    targets, clips: as for `compose`.

  Returns:
    Two functions like the one that `compose` returns, or one function and None.

  Raises:
    TypeError: as for `compose`, or `at` is not a whole number.
    ValueError: as for `compose`, or `at` is not between 1 and the number of layers.

  Implements the split into partial and final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC
  2021, section 4.
  """
  layers = checked_layers(layers, "split")
  way = "; to cache nothing, use refurbish(layers, r=1)" if isinstance(at, int) and at == 0 else ""
  at = checked_whole("at", at, 1, len(layers), f"Pass the number of layers of the partial augmentation{way}.")
  return _split(layers, at, checked_targets(targets, "split"), checked_clips(clips, "split"))


def functions_of(partial, final, targets):
  """The two functions of a stage, each given as a function or as a list of layers."""
  parts = [flattened(given) if is_list(given) else [] for given in (partial, final)]
  made = None, None
  if partial is None or is_list(partial) and not parts[0]:
    raise (TypeError if partial is None else ValueError)(
      f"partial_fn must be a function, or have at least one layer, got {partial!r}. To cache nothing, use "
      "refurbish(layers, r=1). To cache the elements as they are, pass [lambda image: image]."
    )
  if any(parts):
    layers, targets = checked_layers([*parts[0], *parts[1]], "refurbish"), checked_targets(targets, "refurbish")
    made = _split(layers, len(parts[0]), targets, clips=True, is_sample=True)
  elif targets is not None:
    raise TypeError(
      f"targets of refurbish needs lists of layers, got {targets!r} with functions. Pass targets to "
      "rtf.augment.compose or split, which make such functions, or pass lists of layers to refurbish."
    )
  given = zip(("partial_fn", "final_fn"), (partial, final), made)
  return tuple(part if is_list(function) else function_of(name, function) for name, function, part in given)


def function_of(name, function):
  """The user's function, which may be a Keras layer; raises if it comes from a library that does not take tensors."""
  other_libraries.check_is_none(name, function)
  keras_layers.check(name, function)
  return keras_layers.as_function(function)


def _split(layers, at, targets, clips, is_sample=False):
  rest = compose_part(layers, at, len(layers), targets, clips, is_sample) if at < len(layers) else None
  return compose_part(layers, 0, at, targets, clips, is_sample), rest


def checked_clips(clips, whose):
  if clips is not None and not isinstance(clips, bool):
    raise TypeError(
      f"clips of {whose} must be True, False or None, got {clips!r}. Pass True if an image of four dimensions is a "
      "clip, all of whose frames are treated alike."
    )
  return clips


def is_list(layers):
  # A named tuple is not a list of layers.
  return isinstance(layers, (list, tuple)) and not hasattr(layers, "_fields")


def flattened(layers):
  """The layers of nested lists."""
  return [each for layer in layers for each in (flattened(layer) if is_list(layer) else [layer])]


def compose_part(layers, start, stop, targets=None, clips=None, is_sample=False):
  """Returns `layers[start:stop]` as a function. It needs all layers, so that seeds do not depend on the split.

  `is_sample`: whether the function is called with single samples.
  """
  draws = lambda layer: keras_layers.draws(layer) or tracing.signature_with("seed", layer) is not None
  taking_seed = [position for position in range(start, stop) if draws(layers[position])]
  part = _Part if not taking_seed else _BatchPart if clips is False else _SeededPart
  return part(_steps(layers, start, stop, clips), taking_seed, targets, clips, is_sample)


class _Part:
  """Layers as a function. It is a class, so that it can be pickled if the layers can."""

  __name__ = "a composed function"

  def __init__(self, steps, taking_seed, targets, clips, is_sample):
    self._steps = steps
    # Keras layers have their own seeds; other random layers must be given one.
    self._needs_seed = bool({*taking_seed} - {position for position, layer in steps if keras_layers.is_keras(layer)})
    # The layers that are given a seed; a chain derives the seeds of its layers.
    alone = [position for position, layer in steps if not isinstance(layer, LayerChain)]
    self._positions = [position for position in alone if position in taking_seed]
    self._targets, self._clips, self._is_sample = targets, clips, is_sample
    for position, layer in steps:
      if isinstance(layer, DepthLayer) and not clips:
        raise ValueError(
          f"clips must be True for layers that choose the slices of a volume, got clips={clips} and "
          f"{layer_name(layer)} at position {position}. Pass clips=True, and put the layers before batch."
        )
    own = [layer for _, layer in steps if isinstance(layer, _GIVEN_TARGETS)]
    others = [(layer, position) for position, layer in steps if not isinstance(layer, _GIVEN_TARGETS)]
    if any((targets or {}).values()):
      for layer, position in others:
        check_layer(layer, position)
        warn_of_first_alone(layer, position, targets)
      for layer in own:
        if isinstance(layer, Decoder):
          layer.check_targets()
        for path, kind in targets.items():
          if isinstance(layer, LayerChain):
            layer.check_follows(path, kind)
    self._moves = any(layer.moves_pixels for layer in own) or any(mover(layer, position) for layer, position in others)
    if len(steps) == 1 and isinstance(steps[0][1], LayerChain) and steps[0][1].is_whole:
      self.draws, self.pixels = steps[0][1].draws, steps[0][1].pixels

  def __call__(self, image, *rest):
    return self._applied(image, rest, None)

  def _applied(self, element, rest, seed):
    image = image_of(element)
    following = Following(self._targets, element, rest, image, self._moves)
    # Two ops in all, not two for each layer.
    seeds = dict(zip(self._positions, tf.unstack(seed_at(seed, self._positions)))) if self._positions else {}
    for position, layer in self._steps:
      rank = shape_of(image).rank
      if self._is_sample and isinstance(layer, LayerChain) and rank is not None and rank > 4:
        raise ValueError(
          "image of refurbish must be one sample, an image of three dimensions or a clip of four, got shape "
          f"{image.shape}. Put refurbish before batch, or pass functions that rtf.augment.compose makes instead of the "
          "lists."
        )
      if isinstance(layer, Decoder) and rank == 1 and not self._clips:
        raise ValueError(
          f"file of {layer.__name__} must be a single file, of shape [], got shape {image.shape}. Put the layers "
          "before batch. If it holds the frames of a clip, pass clips=True to rtf.augment.compose or split."
        )
      if isinstance(layer, _GIVEN_TARGETS):
        check_is_one(image, f"the layer at position {position}")
        image = following.through_layer(layer, image, seed if isinstance(layer, LayerChain) else seeds.get(position))
      else:
        if self._clips and rank is not None and rank > 3:
          check_layer_of_clips(layer, position)
        made = _made_by(layer, position, image, {"seed": seeds[position]} if position in seeds else {})
        if has_stacked(layer, image, made):
          check_is_one(image, f"{layer_name(layer)} at position {position}")
        image = following.through_function(layer, position, image, made)
    return following.beside(with_image(element, image))


class _SeededPart(_Part):
  """Layers that draw."""

  def __call__(self, image, *rest, seed=None):
    if seed is None and self._needs_seed:
      raise TypeError(
        "seed of a composed function must be given by keyword, int32 [2], but is missing. refurbish and echo give it. "
        "In Dataset.map, zip the dataset with tf.data.Dataset.random(rerandomize_each_iteration=True).batch(2) and "
        "pass its elements; after batch you can pass clips=False to compose instead, which needs no seed."
      )
    return self._applied(image, rest, new_seed() if seed is None else checked_seed(seed, self.__name__))


class _BatchPart(_SeededPart):
  """Layers that draw for each image of a batch. Without a seed, the draws differ in each epoch and each run."""

  def __call__(self, image, *rest, seed=None):
    images = image_of(image)
    check_is_one(images, self.__name__)
    if dense(images).dtype != tf.string:
      way = "Put it after batch, or leave clips=False out for single images."
      image = with_image(image, checked_batch(images, self.__name__, way))
    return super().__call__(image, *rest, seed=new_seed() if seed is None else seed)


def _made_by(layer, position, image, seed):
  if keras_layers.is_keras(layer):
    return keras_layers.call(layer, image, **seed)
  try:
    return layer(image, **seed)
  except TypeError as failed:
    # The signature is checked only after a failure, because decorators may report a wrong one.
    try:
      inspect.signature(layer, follow_wrapped=False).bind(image, **seed)
    except ValueError:
      pass
    except TypeError as error:
      raise TypeError(
        "layers of a list are called with the image alone, and with a seed if they have a parameter of that name, but "
        f"{layer_name(layer)} at position {position} does not accept that: {error}. To use the other components, pass "
        "functions instead of lists: refurbish(partial_fn, final_fn) calls them with all components."
      ) from failed
    raise


def described_clip(function, made):
  """Describes the clips that a composed function returns, or None. `made`: the structure that it returns."""
  if not isinstance(function, _Part) or not function._clips:
    return None
  shape = shape_of(image_of(made[0] if isinstance(made, tuple) and not isinstance(made, HalfAugmented) else made))
  if shape.rank != 4:
    return None
  return f"a clip of {'any number of' if shape[0] is None else shape[0]} frames, which have the same draws"


def normalization_of(function):
  """The mean and the standard deviation of a composed function that ends with `normalize`, as arrays, or None."""
  found = re.match(r"normalize .*mean=(\S+) std=(\S+)", getattr(_last_layer(function), "text", ""))
  return found and tuple(np.array(numbers.split(","), np.float64) for numbers in found.groups())


def normalized_range(function, spec):
  """The smallest and largest value of images after `normalize`, if a composed function ends with it; otherwise None.

  `spec`: the structure of the function's input.
  """
  normalization = normalization_of(function)
  if not normalization:
    return None
  mean, std = normalization
  image = image_of(spec[0] if isinstance(spec, tuple) else spec)
  ends = np.stack([-mean, _last_layer(function).highest_of(getattr(image, "dtype", tf.uint8)) - mean]) / std
  return ends.min(), ends.max()


def _last_layer(function):
  layers = [layer for _, step in getattr(function, "_steps", ()) for layer in getattr(step, "_layers", [step])]
  return layers[-1] if layers else None


def _steps(layers, start, stop, clips):
  """Returns pairs of a position and the layer there, with a `LayerChain` in place of adjacent native layers."""
  steps, chain = [], []
  for position in range(start, stop):
    layer = layers[position]
    if chain and (not isinstance(layer, NativeLayer) or len(chain) == MOST_LAYERS):
      steps.append((chain[0][1], LayerChain(chain, clips=clips)))
      chain = []
    if isinstance(layer, NativeLayer):
      chain.append((layer, position))
    else:
      steps.append((position, layer))
  return steps + [(chain[0][1], LayerChain(chain, clips=clips))] if chain else steps


def image_of(element):
  """Returns the image of an element: its entry `"image"` or `"images"` if it is a dict."""
  if hasattr(element, "_fields") and not isinstance(element, HalfAugmented):
    raise TypeError(
      f"element must be an image, a tuple or a dict, got a named tuple, {type(element).__name__}{element._fields}. "
      "Convert it to a dict with an entry 'image' in Dataset.map first: element._asdict()."
    )
  return element[_image_name(element)] if isinstance(element, dict) else element


def with_image(element, image):
  """Returns the element with another image."""
  if not isinstance(element, dict):
    return image
  element = copy.copy(element)
  element[_image_name(element)] = image
  return element


def _image_name(element):
  names = [name for name in IMAGE_NAMES if name in element]
  if len(names) != 1:
    raise ValueError(
      "image must be a tensor, or a dict with one entry 'image' or 'images', got a dict with the entries "
      f"{sorted(element)}. Rename the entry that holds the image in Dataset.map first, or remove the other one."
    )
  return names[0]


def checked_layers(layers, whose):
  """The layers of nested lists, as a tuple; raises unless they can be composed."""
  if not is_list(layers):
    raise TypeError(
      f"layers of {whose} must be a list or tuple of functions, got {layers!r}. Put even a single layer into a list."
    )
  layers = flattened(layers)
  if not layers:
    raise ValueError(
      f"layers of {whose} must have at least one layer, got an empty list. Without layers, leave the augmentation out."
    )
  for position, layer in enumerate(layers):
    if not callable(layer):
      raise TypeError(
        f"layers of {whose} must be callable as layer(image, seed) or layer(image), got {layer!r} at position "
        f"{position} of {len(layers)}. Pass a function that takes and returns an image, such as random_flip()."
      )
    other_libraries.check_is_none(f"layers of {whose}", layer, f" at position {position}")
    keras_layers.check(f"layers of {whose}", layer, f" at position {position}")
    if getattr(layer, "makes_many", False):
      raise ValueError(
        f"layers of {whose} must return one image, but {layer.__name__} at position {position} returns several crops. "
        f"Call it in Dataset.map, after the layers: .map(rtf.augment.{layer.__name__}(...))."
      )
    if getattr(layer, "needs_labels", False):
      raise ValueError(
        f"layers of {whose} get images alone, but {layer.__name__} at position {position} also mixes the labels. Put "
        f"it after batch: .batch(B).map(rtf.augment.{layer.__name__}(...))."
      )
  for position, (layer, following) in enumerate(zip([None, *layers], [*layers, None])):
    handed_on, taken_over = getattr(layer, "hands_on", None), getattr(following, "takes_over", None)
    if handed_on != taken_over:
      there = "second" if handed_on is None else "first"
      raise ValueError(
        f"layers of {whose} must have both layers of {handed_on or taken_over}, one directly after the other, got only "
        f"the {there} one at position {position - (handed_on is not None)}. Pass [*auto_augment(policy), ...]."
      )
  return tuple(layers)
