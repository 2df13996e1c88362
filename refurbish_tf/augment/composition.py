"""Makes functions for `refurbish` and `Dataset.map` from augmentation layers."""
from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import tracing
from . import masks as masking
from .layers import checked_seed, checked_whole, seed_at
from .native_layers import MOST_LAYERS, NativeLayer, LayerChain


def compose(layers: Sequence[Any], masks: Sequence[str | int] | None = None) -> Callable[..., Any]:
  """Returns a function that applies the layers in order to the image of an element.

  >>> fn = rtf.augment.compose([rtf.augment.rand_augment(1), rtf.augment.random_crop(4), rtf.augment.random_flip()])
  >>> image, label = fn(tf.zeros([32, 32, 3], tf.uint8), 3, seed=[7, 0])
  >>> image.shape, label
  (TensorShape([32, 32, 3]), 3)

  The layer at position p gets a seed of its own, `seed_at(seed, p)`. Adjacent layers of this module become one operation,
  but for those that decode. If there are no other layers, the function takes batches as they do, and has their `draws` and
  `pixels`, too. A layer without a parameter named `seed`, such as
  `tf.io.decode_png`, is called as `layer(image)`. A layer with that parameter must take the seeds of
  `tf.random.stateless_*`, like `tf.image.stateless_random_contrast`. TensorFlow's and Keras' own functions with an
  optional seed, such as `tf.image.random_contrast`, are called without it: they draw from a state of their own, which
  no checkpoint can hold.

  Masks, such as the classes of pixels for segmentation, follow the image where it is cropped, flipped, resized or
  distorted, by its nearest pixels, with 0 from outside, and keep their values otherwise:

  >>> fn = rtf.augment.compose([rtf.augment.random_crop(4), rtf.augment.random_flip(), rtf.augment.normalize()], masks=("mask",))
  >>> pair = fn({"image": tf.zeros([32, 32, 3], tf.uint8), "mask": tf.ones([32, 32], tf.int32)}, seed=[7, 0])
  >>> pair["mask"].shape, int(tf.reduce_min(pair["mask"]))
  (TensorShape([32, 32]), 0)

  Only layers of `rtf.augment` move masks. Any other function among the layers gets the image alone. With masks it must
  leave each pixel in its place, as functions of colour do, which cannot be checked; if it changes the image's size, or
  is a layer of Keras that moves pixels, such as `RandomFlip`, that is an error.

  Args:
    layers: a list or tuple of at least one callable. A list in place of one, such as a policy returns, stands for its
      members, each with a position of its own. The two of `auto_augment` must stand together.
    masks: the components that follow the image: names of a dict's entries, or positions in a tuple, of which the image
      is the first, 0: `masks=(1,)` for `(image, mask, label)`. Each is `[height, width]` or `[height, width,
      channels]`, of the height and width of the image, and of any integer dtype or bool; or a batch of these for a batch
      of images. Components that are not named stay as they are, with `()` all of them. With None, a component that
      looks like a mask is an error: of rank 2 or more, with the image's height and width.

  Returns:
    A function that is called as `Dataset.map` calls its own, `fn(image, *rest, seed)`, with a seed that is int32 or
    int64 `[2]`; if no layer takes a seed, `fn(image, *rest)`. It returns `image` if there is no rest, else
    `(image, *rest)`. A dict in place of the image is returned with a new entry `"image"`. Other components are passed
    through. The layers decide which shapes and dtypes the image may have.

  Raises:
    TypeError: `layers` is not a list or tuple of callables, or `masks` not one of names and positions. When the
      function is called: the seed or a mask has another dtype.
    ValueError: `layers` is empty, has only one of AutoAugment's two layers, or has one that would not move masks. When
      the function is called: the seed or a mask has another shape, there is no such mask, or no `"image"` in a dict, or
      a component that looks like a mask is not named.

  Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 2.2: an augmentation is a sequence of layers.
  """
  layers = checked_layers(layers, "compose")
  return compose_part(layers, 0, len(layers), masking.checked_masks(masks, "compose"))


def split(
    layers: Sequence[Any], at: int,
    masks: Sequence[str | int] | None = None) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
  """Returns `(partial_fn, final_fn)`: the first `at` layers as one function, and the rest as another.

  >>> layers = [rtf.augment.rand_augment(1), rtf.augment.random_crop(4), rtf.augment.random_flip()]
  >>> partial_fn, final_fn = rtf.augment.split(layers, at=1)
  >>> image = tf.zeros([32, 32, 3], tf.uint8)
  >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  With the same seed, one after the other gives the same result as `compose(layers)`: layers keep their positions, and
  so their seeds.

  Args:
    layers: a list or tuple of at least one callable, or of lists of them, as for `compose`.
    at: the number of layers whose result is cached, a whole number from 1 to that of all layers, each member of a list
      counted. With all, nothing is left for the final augmentation, and `final_fn` is None.
    masks: as for `compose`.

  Returns:
    Two functions like the one that `compose` returns, or one of them and None.

  Raises:
    TypeError: as for `compose`, or `at` is not a whole number.
    ValueError: as for `compose`, or `at` is not between 1 and the number of layers.

  Implements the split into partial and final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC
  2021, section 4.
  """
  layers = checked_layers(layers, "split")
  at = checked_whole("at", at, 1, len(layers), "Pass the number of layers of the partial augmentation" + (
      "; to cache nothing, use refurbish(layers, r=1)." if at == 0 else "."))
  return _split(layers, at, masking.checked_masks(masks, "split"))


def functions_of(partial, final, masks):
  """The two functions of a stage, which are given as such, or as two lists of layers."""
  if is_list(final) and not flattened(final):
    final = None
  if not is_list(partial) and not is_list(final):
    if masks is not None:
      raise TypeError(
          f"masks of refurbish is for lists of layers, got {masks!r} and functions. Pass masks to compose or split of "
          "rtf.augment, which make such functions, or lists of layers to refurbish.")
    return partial, final
  if not is_list(partial) or not is_list(final) and final is not None:
    raise TypeError(
        f"partial_fn and final_fn must be two functions or two lists of layers, got {partial!r} and {final!r}. Pass "
        "rtf.augment.compose(layers) in place of the list, or put the function into a list.")
  partial, final = flattened(partial), flattened(final or [])
  if not partial:
    raise ValueError(
        "partial_fn must have at least one layer, got an empty list. To cache nothing, use refurbish(layers, r=1); to cache "
        "the elements as they are, use [lambda image: image].")
  return _split(
      checked_layers(partial + final, "refurbish"), len(partial), masking.checked_masks(masks, "refurbish"))


def _split(layers, at, masks):
  rest = compose_part(layers, at, len(layers), masks) if at < len(layers) else None
  return compose_part(layers, 0, at, masks), rest


def is_list(layers):
  # A named tuple is not a list of layers.
  return isinstance(layers, (list, tuple)) and not hasattr(layers, "_fields")


def flattened(layers):
  """The layers of nested lists."""
  return [each for layer in layers for each in (flattened(layer) if is_list(layer) else [layer])]


def compose_part(layers, start, stop, masks=None):
  """Returns `layers[start:stop]` as a function. All layers are given, so that seeds do not depend on the split."""
  taking_seed = [position for position in range(start, stop) if tracing.signature_with_seed(layers[position]) is not None]
  return (_SeededPart if taking_seed else _Part)(_steps(layers, start, stop), taking_seed, masks)


class _Part:
  """Layers as a function. A class, so that it can be pickled if they can be."""
  __name__ = "a composed function"

  def __init__(self, steps, taking_seed, masks):
    self._steps = steps
    # Layers that are given a seed; a chain makes its own.
    self._positions = [position for position, layer in steps if position in taking_seed and not isinstance(layer, LayerChain)]
    self._masks = masks
    for position, layer in steps if masks else ():
      if not isinstance(layer, LayerChain):
        masking.check_layer(layer, position)
    if len(steps) == 1 and isinstance(steps[0][1], LayerChain) and steps[0][1].is_whole:
      self.draws, self.pixels = steps[0][1].draws, steps[0][1].pixels

  def __call__(self, image, *rest):
    return self._applied(image, rest, None)

  def _applied(self, element, rest, seed):
    image = image_of(element)
    following = masking.Following(self._masks, element, rest, image)
    # Made by two operations.
    seeds = dict(zip(self._positions, tf.unstack(seed_at(seed, self._positions)))) if self._positions else {}
    for position, layer in self._steps:
      if isinstance(layer, LayerChain):
        image = following.through_chain(layer, image, seed)
      else:
        given, image = image, layer(image, seed=seeds[position]) if position in seeds else layer(image)
        following.through_function(layer, position, given, image)
    return following.beside(with_image(element, image))


class _SeededPart(_Part):
  """Likewise of layers that draw."""

  def __call__(self, image, *rest, seed):
    return self._applied(image, rest, checked_seed(seed, self.__name__))


def _steps(layers, start, stop):
  """Returns pairs of a position and the layer there, with a `LayerChain` in place of adjacent native layers."""
  steps, chain = [], []
  for position in range(start, stop):
    layer = layers[position]
    if chain and (not isinstance(layer, NativeLayer) or len(chain) == MOST_LAYERS):
      steps.append((chain[0][1], LayerChain(chain)))
      chain = []
    if isinstance(layer, NativeLayer):
      chain.append((layer, position))
    else:
      steps.append((position, layer))
  return steps + [(chain[0][1], LayerChain(chain))] if chain else steps


def image_of(element):
  """Returns the image of an element: its entry `"image"` if it is a dict."""
  if not isinstance(element, dict):
    return element
  if "image" not in element:
    raise ValueError(
        f"image must be a tensor, or a dict with an entry 'image', got a dict with the entries {sorted(element)}. "
        "Rename the entry that holds the image with Dataset.map first.")
  return element["image"]


def with_image(element, image):
  """Returns the element with another image."""
  if not isinstance(element, dict):
    return image
  element = copy.copy(element)
  element["image"] = image
  return element


def checked_layers(layers, whose):
  """The layers of nested lists, as a tuple; raises unless they can be composed."""
  if not is_list(layers):
    raise TypeError(
        f"layers of {whose} must be a list or tuple of functions, got {layers!r}. Put even a single layer into a list.")
  layers = flattened(layers)
  if not layers:
    raise ValueError(
        f"layers of {whose} must have at least one layer, got an empty list. Without layers, leave the augmentation "
        "out.")
  for position, layer in enumerate(layers):
    if not callable(layer):
      raise TypeError(
          f"layers of {whose} must be callable as layer(image, seed) or layer(image), got {layer!r} at position "
          f"{position} of {len(layers)}. Pass a function from an image to an image, such as random_flip().")
  for position, (layer, following) in enumerate(zip([None, *layers], [*layers, None])):
    handed_on, taken_over = getattr(layer, "hands_on", None), getattr(following, "takes_over", None)
    if handed_on != taken_over:
      there = "second" if handed_on is None else "first"
      raise ValueError(
          f"layers of {whose} must have both layers of {handed_on or taken_over}, one after the other, got only the "
          f"{there} one at position {position - (handed_on is not None)}. Pass [*auto_augment(policy), ...].")
  return tuple(layers)
