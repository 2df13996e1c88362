"""Layers that each apply one of several operations: those of RandAugment, AutoAugment and Deep AutoAugment."""

import collections
import math
from typing import Literal

import numpy as np

from .native_layers import DrawingLayer

Ranges = Literal["paper", "torchvision"]
# AutoAugment moves images of 331 x 331 by up to 150 pixels. A fraction means the same at every size.
_LARGEST_TRANSLATION = 150 / 331
# AutoAugment's grey, for pixels from outside the image.
_FILL = 128
# Outcomes of operations that draw further numbers. A cutout has many, which depend on the image.
_OUTCOMES = {"random_flip": 2, "random_crop": 81, "random_cutout": math.inf, "random_resized_crop": math.inf}


class PolicyLayer(DrawingLayer):
  """A layer that applies `outcomes[i]` if it draws a number below `edges[i]`, and not below the previous edge.

  Args:
    name: of the layer.
    outcomes: pairs of the name of an operation and its parameter.
    edges: a whole number for each, in rising order. The last one is the end of what is drawn.
    shown: the arguments of the function that made the layer, as text.
    hands_on, takes_over: for AutoAugment's first and second layer, texts that `compose` requires to be equal.
    group: how many draws each sub-policy of AutoAugment has.
    fill: the value of pixels from outside the image, for geometric distortions.
    exact_turns: whether the cosine and sine of a rotation are exact, not rounded as Pillow does.
  """

  def __init__(
    self, name, outcomes, edges, shown="", *, hands_on=None, takes_over=None, group=1, fill=_FILL, exact_turns=False
  ):
    self.hands_on, self.takes_over, self.group = hands_on, takes_over, group
    names, parameters = zip(*outcomes)
    lists = {"operations": names, "parameters": map(repr, parameters), "edges": map(str, edges)}
    texts = [
      f"end={edges[-1]} group={group} goes_on={takes_over is not None:d} fill={fill} exact_turns={exact_turns:d}",
      *(f"{key}={','.join(values)}" for key, values in lists.items()),
    ]
    super().__init__(name, " ".join(texts), shown, kind="policy", outcomes=self._outcomes_of(outcomes, edges))

  def _outcomes_of(self, outcomes, edges):
    """The number of outcomes, and the effective one. For AutoAugment's second layer, the average over sub-policies."""
    in_a_pair = self.hands_on or self.takes_over
    chances = collections.Counter()
    for outcome, start, end in zip(outcomes, [0, *edges], edges):
      if end > start:
        chances[start // self.group if in_a_pair else 0, outcome] += (end - start) / edges[-1]
    number = sum(_OUTCOMES.get(name, 1) for _, (name, _) in chances)
    same = sum(chance**2 / _OUTCOMES.get(name, 1) for (_, (name, _)), chance in chances.items())
    if self.takes_over:
      sub_policies = edges[-1] / self.group
      number, same = number / sub_policies, same * sub_policies
    return number, 1 / same if same else math.inf


def distortions_at(level):
  """Returns a dict from the name of a distortion to its parameters in both directions, at a level from 0 to 1.

  The second parameter is None if there is only one direction.
  """
  largest = {"rotate": 30, **dict.fromkeys(("shear_x", "shear_y"), 0.3)}
  largest |= dict.fromkeys(("translate_x", "translate_y"), _LARGEST_TRANSLATION)
  return {
    **dict.fromkeys(("identity", "auto_contrast", "equalize", "invert"), (0.0, None)),
    **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), (0.1 + 1.8 * level, None)),
    "solarize": (int(256 * level), None),
    "posterize": (max(1, int(4 * level)), None),
    **{name: (limit * level, -limit * level) for name, limit in largest.items()},
  }


def torchvision_distortions(step, last, *, wide=False):
  """Like `distortions_at`, for torchvision with Pillow images at a `step` up to `last`. `wide`: TrivialAugmentWide."""

  def at(end, start=0.0):
    # Like torch.linspace: float32, counted from the nearer end, with one rounding for product and sum.
    start, end = float(np.float32(start)), float(np.float32(end))
    width = float(np.float32(end - start) / np.float32(last))
    return float(np.float32(start + width * step if step < (last + 1) // 2 else end - width * (last - step)))

  factor, slope, degrees, bits = (0.99, 0.99, 135, 6) if wide else (0.9, 0.3, 30, 4)
  moves = {"move": int(at(32))} if wide else {"truncate": _LARGEST_TRANSLATION * step / last}
  moves = {"shear": at(slope), **moves}
  signed = {"rotate": at(degrees)} | {f"{name}_{axis}": value for name, value in moves.items() for axis in "xy"}
  return {
    **dict.fromkeys(("identity", "auto_contrast", "equalize", "invert"), (0.0, None)),
    **{name: (value, -value) for name, value in signed.items()},
    **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), (1 + at(factor), 1 - at(factor))),
    # Pixels are whole numbers, so the threshold can be rounded up.
    "solarize": (math.ceil(255 * at(0, 1)), None),
    "posterize": (8 - round(bits * step / last), None),
  }


def all_strengths(steps):
  """Returns a dict from the name of a distortion to its parameters in all steps (dicts as above) and directions."""
  steps = list(steps)
  found = {
    name: [step[name][sign] for sign in (0, 1) for step in steps if step[name][sign] is not None] for name in steps[0]
  }
  return {name: parameters if any(parameters) else [0.0] for name, parameters in found.items()}


def equally_likely(distortions, cells):
  """Returns outcomes and edges for a dict of `all_strengths`: each distortion has `cells` draws, as each parameter."""
  outcomes, edges = [], []
  for position, (name, parameters) in enumerate(distortions.items()):
    for k, parameter in enumerate(parameters):
      outcomes.append((name, parameter))
      edges.append(position * cells + (k + 1) * cells // len(parameters))
  return outcomes, edges
