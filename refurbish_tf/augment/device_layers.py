"""The layers that an accelerator can apply to a batch, and what `offload` and `Offloaded` must agree on."""

from __future__ import annotations

import collections
import hashlib
import math
from typing import Any, Sequence

from . import composition
from .native_layers import NativeLayer, LayerChain, facts_of, pieces

# Consecutive images that share tables on the accelerator: see `DeviceLayers.num_tables`.
GROUP = 8
# For images with sides up to this, sums over all pixels, and positions in the image, fit into 32 bits.
LARGEST_SIDE = 2048
# The largest fraction of images that the host processes instead, because too many of their group need a table.
_MOST_OVERFLOW = 0.005
# Distortions that map values with a table computed from the whole image.
TABLE_DISTORTIONS = frozenset({"auto_contrast", "equalize"})
_DISTORTIONS = TABLE_DISTORTIONS.union(
  "identity invert color contrast brightness sharpness solarize posterize rotate".split(),
  (f"{name}_{axis}" for name in ("shear", "translate", "truncate", "move") for axis in "xy"),
)
# Layers as text, by fingerprint, for messages.
_shown: dict[int, str] = {}
_KINDS = frozenset(
  {"random_crop", "random_flip", "cutout", "random_grayscale", "random_solarize", "policy", "normalize"}
)


class DeviceLayer(collections.namedtuple("DeviceLayer", ["kind", "arguments", "num_draws", "is_policy"])):
  """A layer: its kind, its arguments (texts by name), how many numbers it draws, and whether it is a policy."""

  __slots__ = ()

  def numbers(self, name):
    return [float(text) for text in self.arguments[name]]

  def number(self, name):
    (value,) = self.numbers(name)
    return int(value)

  @property
  def table_probability(self):
    """The probability that an image needs a table."""
    if self.kind != "policy":
      return 0.0
    edges = self.numbers("edges")
    drawn = zip(self.arguments["operations"], [0, *edges], edges)
    return sum(edge - before for name, before, edge in drawn if name in TABLE_DISTORTIONS) / edges[-1]


class DeviceLayers:
  """Consecutive layers that an accelerator can apply.

  Attributes:
    texts: each layer as text, without the position of its seed. Enough to rebuild this object.
    layers: a `DeviceLayer` for each.
    num_policy_layers: the number of layers up to and including the last policy, which either side can run. The
      accelerator always runs those after it.
    num_draws: how many int32 numbers the layers draw for an image.
    num_tables: how many of `GROUP` consecutive images can get a table in one layer. For the few images beyond that, the
      host runs the policy layers.
    fingerprint: a number from 1 to 2**24 - 1 that is almost certainly different for other layers.
  """

  def __init__(self, texts: Sequence[str]) -> None:
    self.texts = tuple(texts)
    self.layers = [_parsed(text) for text in self.texts]
    self.num_policy_layers = max((i + 1 for i, layer in enumerate(self.layers) if layer.is_policy), default=0)
    self.num_draws = sum(layer.num_draws for layer in self.layers)
    self.num_tables = max(_num_tables(layer.table_probability) for layer in self.layers)
    digest = hashlib.sha256("\n".join(self.texts).encode()).digest()
    self.fingerprint = 1 + int.from_bytes(digest[:8], "little") % (2**24 - 1)
    _shown.setdefault(self.fingerprint, f"[{', '.join(self.texts)}]")

  @classmethod
  def of(cls, layers: Sequence[Any], whose: str) -> DeviceLayers:
    """Checks the layers that a user has given to `whose`.

    Raises:
      TypeError: `layers` is not a list or tuple of layers of `rtf.augment`.
      ValueError: it is empty, or an accelerator cannot apply one of them.
    """
    layers = checked_layers(layers, whose)
    made = cls([layer.text for layer in layers])
    _shown[made.fingerprint] = f"[{', '.join(map(repr, layers))}]"
    return made


def shown(fingerprint: int) -> str:
  """The layers with this fingerprint, as text."""
  return _shown.get(fingerprint, "layers that this process does not know")


def checked_layers(layers: Sequence[Any], whose: str) -> tuple[NativeLayer, ...]:
  """The layers of nested lists, as a tuple; raises as `DeviceLayers.of` does."""
  layers = composition.checked_layers(layers, whose)
  for position, layer in enumerate(layers):
    here = f"at position {position} of {len(layers)}"
    if not isinstance(layer, NativeLayer):
      raise TypeError(
        f"layers of {whose} must be layers of rtf.augment, got {layer!r} {here}. Move it, and the layers before it, "
        "into partial_fn of refurbish or into Dataset.map."
      )
    reason = _reason_against(_parsed(layer.text, known=False), last=position == len(layers) - 1)
    if reason:
      raise ValueError(f"layers of {whose} cannot have {layer!r} {here}: {reason}")
  return layers


def chain_of(layers: Sequence[NativeLayer], first_position: int) -> LayerChain:
  """The layers as one chain, with the seeds that `compose` gives to layers at `first_position` and after it."""
  return LayerChain([(layer, first_position + i) for i, layer in enumerate(layers)])


def _reason_against(layer, last):
  # A `height` means that the layer changes the size of images.
  if layer.kind == "resize" or "height" in layer.arguments or layer.arguments.get("reflect") == ["1"]:
    return (
      "crops to a size, resizing and reflecting stay on the host. Put the layer, and those before it, into partial_fn "
      "of refurbish or into Dataset.map. For a crop, use random_crop(padding=...), with padding_mode='constant'."
    )
  if layer.kind not in _KINDS:
    return "it stays on the host. Put it into partial_fn or final_fn of refurbish, or into Dataset.map."
  others = sorted(set(layer.arguments.get("operations", ())) - _DISTORTIONS)
  if others:
    return (
      f"its {', '.join(others)} stay on the host. Put the layer into partial_fn of refurbish, or use rand_augment, "
      "auto_augment or trivial_augment."
    )
  if layer.kind == "normalize" and not last:
    return "an accelerator converts to floats last. Put normalize last."
  if layer.kind == "normalize" and len(layer.arguments["mean"]) not in (1, 3):
    return "images for an accelerator have 3 channels. Pass one number for all channels, or one for each."
  return None


def _parsed(text, known=True):
  """Parses the text of a layer. If `known`, raises ValueError for a layer that an accelerator cannot apply."""
  kind, *arguments = text.split(" ")
  told = facts_of(tuple(pieces(text, -1)))
  arguments = {name: value.split(",") for name, _, value in (each.partition("=") for each in arguments)}
  layer = DeviceLayer(kind, arguments, *told.num_draws, *told.is_policy)
  if known and _reason_against(layer, last=True):
    raise ValueError(f"An accelerator cannot run the layer {text!r}.")
  return layer


def _num_tables(probability):
  """The smallest number of tables for a group with which only few images lack a table that they need."""
  for num_tables in range(GROUP):
    overflow = sum(
      (number - num_tables) * math.comb(GROUP, number) * probability**number * (1 - probability) ** (GROUP - number)
      for number in range(num_tables + 1, GROUP + 1)
    )
    if overflow <= _MOST_OVERFLOW * GROUP:
      return num_tables
  return GROUP
