"""Layers that apply other layers: all or none, one of several, or all in random order."""

import math
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal.checks import is_real
from . import composition
from .native_layers import MOST_LAYERS, ChanceLayer, DrawingLayer, NativeLayer, facts_of, pieces

# The largest weight, so that the sum of all weights is finite.
_LARGEST_WEIGHT = 1e300


def random_apply(layers: Sequence[Any], p: float = 0.5) -> Any:
  """Returns a layer that applies other layers, in order, with probability `p`, or leaves the image as it is.

  >>> layer = rtf.augment.random_apply([rtf.augment.color_jitter(brightness=0.8, hue=0.2)], p=0.8)
  >>> layer
  random_apply([color_jitter(brightness=(0.2, 1.8), hue=(-0.2, 0.2))], p=0.8)
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is one layer: you cannot split it. With this layer's seed, the one at position k gets `seed_at(seed, k)`.

  Args:
    layers: a list or tuple of layers of this module that keep the size and the dtype of an image: not `resize`,
      `random_resized_crop`, `normalize` and those that decode. Nested lists are flattened.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, for images that all its layers accept. Targets follow.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module, or `p` is not a real number.
    ValueError: `layers` is empty, or has one that makes images of another size or dtype; `p` is not from 0 to 1.
  """
  chain = composition.checked_layers(layers, "random_apply")
  _check_native(chain, "random_apply")
  layer = ChanceLayer("random_apply", p, f"layers={text_of(chain)}", repr(list(chain)), outcomes=_outcomes_of(chain))
  return _kept(layer, "the size and the dtype", "Put those that resize or normalize before or after it.")


def random_choice(layers: Sequence[Any], p: Sequence[float] | np.ndarray | None = None) -> Any:
  """Returns a layer that applies one of several layers, or lists of them.

  >>> crops = [rtf.augment.random_resized_crop(32), [rtf.augment.resize(40), rtf.augment.random_crop(32)]]
  >>> rtf.augment.random_choice(crops, p=[0.9, 0.1])(tf.zeros([64, 96, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `RandomChoice`, and one layer: you cannot split it. A nested list is one choice, whose members are
  all applied, in order. If choices give images of different sizes, add a layer that gives all the same size before they
  are batched. With this layer's seed, the layer at position k of all, members of nested lists included, gets
  `seed_at(seed, k)`.

  Args:
    layers: a list or tuple of layers of this module, or of lists of them, that keep the dtype of an image: not
      `normalize` and those that decode.
    p: the weight of each choice, at least 0; weights need not sum to 1. None makes all choices equally likely.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, for images that all its layers accept. Targets follow.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module, or `p` is not a list of real numbers.
    ValueError: `layers` is empty, or has a layer that changes the dtype; `p` has the wrong length, or only zeros.
  """
  chains, text = _checked_chains(layers, "random_choice")
  weights = [1] * len(chains) if p is None else p.tolist() if isinstance(p, np.ndarray) else p
  is_list = isinstance(weights, (list, tuple)) and all(map(is_real, weights))
  is_one_each = is_list and len(weights) == len(chains)
  if not is_one_each or not all(0 <= weight <= _LARGEST_WEIGHT for weight in weights) or not any(weights):
    raise (ValueError if is_list else TypeError)(
      f"p of random_choice must have a number from 0 to 1e300 for each of the {len(chains)} choices, and not only "
      f"zeros, got {p!r}. Leave it out to draw all equally often."
    )
  total = math.fsum(weights)
  ends = [round(math.fsum(weights[: k + 1]) / total * 2**31) for k in range(len(chains))]
  layer = DrawingLayer(
    "random_choice",
    f"ends={','.join(map(str, ends))} {text}",
    _shown(chains) + ("" if p is None else f", p={list(weights)}"),
    outcomes=_outcomes_of_one(chains, [weight / total for weight in weights]),
    looks_at_boxes=any(layer.looks_at_boxes for chain in chains for layer in chain),
  )
  return _kept(layer, "the dtype", "Put those that normalize after it.")


def random_order(layers: Sequence[Any]) -> Any:
  """Returns a layer that applies all of several layers, or lists of them, in random order.

  >>> layer = rtf.augment.random_order([rtf.augment.random_crop(padding=4), rtf.augment.cutout(8)])
  >>> layer
  random_order([random_crop(padding=4, padding_mode='constant'), cutout(8)])
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `RandomOrder`, and one layer: you cannot split it. All orders are equally likely. A nested list is
  one step, whose members stay together and in order. With this layer's seed, the layer at position k of all, members of
  nested lists included, gets `seed_at(seed, k)`, whatever the order.

  Args:
    layers: a list or tuple of layers that keep an image's size and dtype, as for `random_apply`, and of lists of these.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, for images that all its layers accept. Targets follow.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module.
    ValueError: `layers` is empty, or has a layer that changes the size or dtype of images.
  """
  chains, text = _checked_chains(layers, "random_order")
  # Orders are not counted, because many layers give the same result in any order.
  outcomes = _outcomes_of([layer for chain in chains for layer in chain])
  layer = DrawingLayer("random_order", f"number={len(chains)} {text}", _shown(chains), outcomes=outcomes)
  return _kept(layer, "the size and the dtype", "Put those that resize or normalize before or after it.")


def _checked_chains(layers, whose):
  """Checks a list of layers and lists of layers. Returns its members as tuples, and as text for the ops."""
  if not composition.is_list(layers) or not layers:
    composition.checked_layers(layers, whose)
  chains = [composition.checked_layers(each if composition.is_list(each) else [each], whose) for each in layers]
  _check_native([layer for chain in chains for layer in chain], whose)
  texts = [f"layers{k}={text_of(chain, sum(map(len, chains[:k])))}" for k, chain in enumerate(chains)]
  return chains, " ".join(texts)


def _check_native(layers, whose):
  """Raises unless the layers can be given to another layer."""
  for position, layer in enumerate(layers):
    if not isinstance(layer, NativeLayer):
      raise TypeError(
        f"layers of {whose} must be layers of rtf.augment that take images, got {layer!r} at position {position}. To "
        "choose among other functions, write a function with a parameter named seed that draws which of them to apply."
      )
  if len(layers) > MOST_LAYERS:
    raise ValueError(
      f"layers of {whose} must be 1 to {MOST_LAYERS} layers, got {len(layers)}. Put several of them into one "
      "random_order or random_choice."
    )


def text_of(layers, first=0):
  """The layers as an argument of the ops, with positions from `first` on."""
  # A piece that begins with a comma continues the previous word.
  text = " ".join(piece for k, layer in enumerate(layers, first) for piece in pieces(layer.text, k)).replace(" ,", ",")
  # `pieces` cuts before commas, so spaces become commas. Each level of nesting adds a tilde.
  return text.replace(",~", ",~~").replace(" ", ",~")


def _shown(chains):
  """The chains as a list; a chain of several layers is a list in it."""
  return f"[{', '.join(repr(chain[0]) if len(chain) == 1 else repr(list(chain)) for chain in chains)}]"


def _outcomes_of(layers):
  """The outcomes of layers that are all applied."""
  outcomes = [layer.outcomes for layer in layers]
  return None if None in outcomes else tuple(math.prod(each) for each in zip(*outcomes))


def _outcomes_of_one(chains, weights):
  outcomes = [(_outcomes_of(chain), weight) for chain, weight in zip(chains, weights) if weight]
  if any(each is None for each, _ in outcomes):
    return None
  same = sum(weight**2 / effective for (_, effective), weight in outcomes)
  return sum(number for (number, _), _ in outcomes), 1 / same if same else math.inf


def _kept(layer, what, way):
  """Returns `layer`; raises ValueError unless its inner layers keep `what` of an image."""
  try:
    facts_of(tuple(pieces(layer.text, -1)))
  except tf.errors.InvalidArgumentError as error:
    raise ValueError(f"layers of {layer.__name__} must keep {what} of an image, got {layer!r}. {way}") from error
  return layer
