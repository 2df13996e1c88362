"""Functions for `refurbish` and `Dataset.map`, made of augmentation layers."""
from __future__ import annotations

import copy
import numbers
from typing import Any, Callable, Sequence

import tensorflow as tf

from refurbish_tf._internal import tracing
from .final_layers import MOST_LAYERS
from .final_layers import FinalLayer
from .final_layers import Run
from .layers import checked_seed
from .layers import seed_at


def compose(layers: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
  """Returns a function that applies the layers in order to the image of an element.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> fn = augment.compose([augment.rand_augment_layer(9), augment.random_crop(4), augment.random_flip()])
  >>> image, label = fn(tf.zeros([32, 32, 3], tf.uint8), 3, seed=[7, 0])
  >>> image.shape, label
  (TensorShape([32, 32, 3]), 3)

  The layer at position p gets a seed of its own, `seed_at(seed, p)`. `random_crop`, `random_flip`, `random_resized_crop`,
  `cutout` and `normalize` are one operation where they stand next to each other. Where those are all there is, the
  function takes a batch as they do, and has their `draws` and `pixels`, too. A layer without a parameter named
  `seed`, say `tf.io.decode_png`, is called as `layer(image)`. One that has it must take it as `tf.random.stateless_*`
  do: `tf.image.stateless_random_contrast`. TensorFlow's and Keras' own functions whose seed may be left out, such as
  `tf.image.random_contrast`, are called without: they draw by a state of their own, which no checkpoint can hold.

  Args:
    layers: a list or tuple of at least one callable. The two of `auto_augment_layers` must stand together.

  Returns:
    A function that is called as `Dataset.map` calls its own, `fn(image, *rest, seed)`, with a seed that is int32 or
    int64 `[2]`; if no layer takes a seed, `fn(image, *rest)`. It returns `image` if there is no rest, else
    `(image, *rest)`. A dict in place of the image is returned with another entry `"image"`. Whatever is not the image
    is passed through; what the image's shape and dtype may be is for the layers to say.

  Raises:
    TypeError: `layers` is not a list or tuple of callables. When the function is called: the seed has another dtype.
    ValueError: `layers` is empty, or has one of AutoAugment's two layers alone. When the function is called: the seed
      has another shape, or a dict has no `"image"`.

  Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 2.2: an augmentation is a sequence of layers.
  """
  layers = checked_layers(layers, "compose")
  return compose_part(layers, 0, len(layers))


def split(
    layers: Sequence[Callable[..., Any]], at: int) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
  """Returns `(partial_fn, final_fn)`: what the first `at` layers do, and what the rest do.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> layers = [augment.rand_augment_layer(9), augment.random_crop(4), augment.random_flip()]
  >>> partial_fn, final_fn = augment.split(layers, at=1)
  >>> image = tf.zeros([32, 32, 3], tf.uint8)
  >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  With the same seed, one after the other gives just what `compose(layers)` gives: layers keep the positions, and so
  the seeds, that they have in the whole.

  Args:
    layers: a list or tuple of at least one callable, as for `compose`.
    at: a whole number from 1 to `len(layers)`, how many layers make what is worth keeping. With `len(layers)` nothing
      is left to be done afresh, and `final_fn` is None.

  Returns:
    Two functions like the one that `compose` returns, or one of them and None.

  Raises:
    TypeError: `layers` is not a list or tuple of callables, or `at` is not a whole number.
    ValueError: as for `compose`, or `at` is not between 1 and `len(layers)`.

  Implements the split into partial and final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC
  2021, section 4.
  """
  layers = checked_layers(layers, "split")
  at = _checked_at(at, len(layers))
  return compose_part(layers, 0, at), compose_part(layers, at, len(layers)) if at < len(layers) else None


def compose_part(layers, start, stop):
  """Returns a function of what `layers[start:stop]` do. The others count, for the seeds not to depend on the split."""
  taking_seed = [tracing.signature_with_seed(layer) is not None for layer in layers]
  steps = _steps(layers, start, stop)
  # The seeds that have to be handed to a layer; a run makes its own.
  positions = [step for step in steps if not isinstance(step, Run) and taking_seed[step]]

  def apply(element, rest, seed):
    image = image_of(element)
    seeds = _layer_seeds(seed, positions)
    for step in steps:
      if isinstance(step, Run):
        image = step(image, seed)
      elif taking_seed[step]:
        image = layers[step](image, seed=seeds[step])
      else:
        image = layers[step](image)
    element = with_image(element, image)
    return (element, *rest) if rest else element

  def with_seed(image, *rest, seed):
    return apply(image, rest, checked_seed(seed, "A composed function"))

  def without_seed(image, *rest):
    return apply(image, rest, None)

  function = with_seed if any(taking_seed[start:stop]) else without_seed
  if len(steps) == 1 and isinstance(steps[0], Run):
    function.draws, function.pixels = steps[0].draws, steps[0].pixels
  return function


def _steps(layers, start, stop):
  """Returns the positions of the layers, with a `Run` in place of those that are one."""
  steps, run = [], []
  for position in range(start, stop):
    layer = layers[position]
    if run and (not isinstance(layer, FinalLayer) or run[-1][0].dtype != "uint8" or len(run) == MOST_LAYERS):
      steps.append(Run(run))
      run = []
    if isinstance(layer, FinalLayer):
      run.append((layer, position))
    else:
      steps.append(position)
  return steps + [Run(run)] if run else steps


def _layer_seeds(seed, positions):
  """Returns by position a seed for each of the layers, in two operations."""
  return dict(zip(positions, tf.unstack(seed_at(seed, positions)))) if positions else {}


def image_of(element):
  """Returns the image of an element: its entry `"image"` if it is a dict."""
  if not isinstance(element, dict):
    return element
  if "image" not in element:
    raise ValueError(
        f"A composed function was given a dict with the entries {sorted(element)}; there must be one named 'image'. "
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
  if not isinstance(layers, (list, tuple)):
    raise TypeError(
        f"{whose} was given layers={layers!r}; it must be a list or tuple of callables. Put even a single layer into a "
        "list.")
  if not layers:
    raise ValueError(
        f"{whose} was given no layers; there must be at least one. Leave the augmentation out where there is none.")
  for position, layer in enumerate(layers):
    if not callable(layer):
      raise TypeError(
          f"{whose} was given {layer!r} at position {position} of layers; it must be callable as layer(image, seed) or "
          "layer(image). Pass what makes one image of another, such as random_flip().")
  for position, (layer, following) in enumerate(zip([None, *layers], [*layers, None])):
    handed_on, taken_over = getattr(layer, "hands_on", None), getattr(following, "takes_over", None)
    if handed_on != taken_over:
      there = f"the {'second' if handed_on is None else 'first'} layer of {handed_on or taken_over}"
      raise ValueError(
          f"{whose} was given {there} at position {position - (handed_on is not None)} of layers without the other one "
          "of them next to it; there must be both, in order. Pass [*auto_augment_layers(policy), ...].")
  return tuple(layers)


def _checked_at(at, count):
  if isinstance(at, bool) or not isinstance(at, numbers.Integral):
    raise TypeError(
        f"split was given at={at!r}; it must be a whole number from 1 to {count}, the number of layers. Pass how many "
        "layers the partial augmentation has.")
  if at == 0:
    raise ValueError(
        f"split was given at=0; it must be a whole number from 1 to {count}, the number of layers. With 0 nothing "
        "worth keeping would be kept; use compose(layers) in Dataset.map instead.")
  if not 1 <= at <= count:
    raise ValueError(
        f"split was given at={at!r}; it must be a whole number from 1 to {count}, the number of layers. Pass how many "
        "layers the partial augmentation has.")
  return at
