"""Applies one of several layers."""

from __future__ import annotations

import math
from typing import Any, Sequence

import numpy as np

from refurbish_tf._internal.checks import is_real
from .inner_layers import checked_chains, kept, outcomes_of, shown
from .native_layers import DrawingLayer

# The largest weight, so that the sum of all weights is finite.
_MOST = 1e300


def random_choice(layers: Sequence[Any], p: Sequence[float] | np.ndarray | None = None) -> Any:
  """Returns a layer that applies one of several layers, or lists of them.

  >>> crops = [rtf.augment.random_resized_crop(32), [rtf.augment.resize(40), rtf.augment.random_crop(32)]]
  >>> rtf.augment.random_choice(crops, p=[0.9, 0.1])(tf.zeros([64, 96, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  It is torchvision's `RandomChoice`, and one layer: no split lies between its own. A list among them is one choice,
  whose members are all applied, in order. If choices make images of different sizes, put a layer after it that makes
  all of one size before they are batched. The seed of the layer at position k of all, each member of a list counted, is
  `seed_at(·, k)` of this layer's.

  Args:
    layers: a list or tuple of layers of this module that keep the dtype of an image, so not `normalize` and those that
      decode, and of lists of these.
    p: the weight of each choice, at least 0; weights need not sum to 1. None: all choices are equally likely.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, of images that all of its layers take. In
    `compose` it moves targets as they do.

  Raises:
    TypeError: `layers` is not a list or tuple of layers of this module, or `p` not one of real numbers.
    ValueError: `layers` is empty, or has one that makes images of another dtype; `p` has another length, or only zeros.
  """
  chains, text = checked_chains(layers, "random_choice")
  weights = [1] * len(chains) if p is None else p.tolist() if isinstance(p, np.ndarray) else p
  is_list = isinstance(weights, (list, tuple)) and all(map(is_real, weights))
  is_one_each = is_list and len(weights) == len(chains)
  if not is_one_each or not all(0 <= weight <= _MOST for weight in weights) or not any(weights):
    raise (ValueError if is_list else TypeError)(
      f"p of random_choice must have a number from 0 to 1e300 for each choice, {len(chains)} in all, not only zeros, "
      f"got {p!r}. Leave it out to draw all equally often."
    )
  total = math.fsum(weights)
  ends = [round(math.fsum(weights[: k + 1]) / total * 2**31) for k in range(len(chains))]
  layer = DrawingLayer(
    "random_choice",
    f"ends={','.join(map(str, ends))} {text}",
    shown(chains) + ("" if p is None else f", p={list(weights)}"),
    outcomes=_outcomes(chains, [weight / total for weight in weights]),
    looks_at_boxes=any(layer.looks_at_boxes for chain in chains for layer in chain),
  )
  return kept(layer, "the dtype", "Put those that normalize after it.")


def _outcomes(chains, weights):
  outcomes = [(outcomes_of(chain), weight) for chain, weight in zip(chains, weights) if weight]
  if any(each is None for each, _ in outcomes):
    return None
  same = sum(weight**2 / effective for (_, effective), weight in outcomes)
  return sum(number for (number, _), _ in outcomes), 1 / same if same else math.inf
