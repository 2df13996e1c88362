"""Helpers for layers that apply other layers."""

from __future__ import annotations

import math

import tensorflow as tf

from . import composition
from .native_layers import MOST_LAYERS, NativeLayer, facts_of, pieces


def checked_chains(layers, whose):
  """Checks a list of layers and lists of layers. Returns its members as tuples, and as text for the ops."""
  if not composition.is_list(layers) or not layers:
    composition.checked_layers(layers, whose)
  chains = [composition.checked_layers(each if composition.is_list(each) else [each], whose) for each in layers]
  check_native([layer for chain in chains for layer in chain], whose)
  texts = [f"layers{k}={text_of(chain, sum(map(len, chains[:k])))}" for k, chain in enumerate(chains)]
  return chains, " ".join(texts)


def check_native(layers, whose):
  """Raises unless the layers can be given to another layer."""
  for position, layer in enumerate(layers):
    if not isinstance(layer, NativeLayer):
      raise TypeError(
        f"layers of {whose} must be layers of rtf.augment that take images, got {layer!r} at position {position}. "
        "Draw in a function of your own, with a parameter named seed, which of them are applied."
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


def shown(chains):
  """The chains as a list; a chain of several layers is a list in it."""
  return f"[{', '.join(repr(chain[0]) if len(chain) == 1 else repr(list(chain)) for chain in chains)}]"


def outcomes_of(layers):
  """The outcomes of layers that are all applied."""
  outcomes = [layer.outcomes for layer in layers]
  return None if None in outcomes else tuple(math.prod(each) for each in zip(*outcomes))


def kept(layer, what, way):
  """Returns `layer`; raises ValueError unless its inner layers keep `what` of an image."""
  try:
    facts_of(tuple(pieces(layer.text, -1)))
  except tf.errors.InvalidArgumentError as error:
    raise ValueError(f"layers of {layer.__name__} must keep {what} of an image, got {layer!r}. {way}") from error
  return layer
