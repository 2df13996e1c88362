"""Layers of which one, or all in any order, are applied, in NumPy.

As `final_reference`, which has the other layers.
"""
import dataclasses

import numpy as np

from support.final_reference import composed_pixels
from support.words import below, fraction, seed_at


@dataclasses.dataclass(frozen=True)
class Choice:
  """`chains`: of layers; `p`: of each, as a part of 1."""
  chains: tuple
  p: tuple
  name = "random_choice"

  @property
  def size(self):
    return 1 + max(sum(layer.size for layer in chain) for chain in self.chains)

  def chosen(self, draws):
    ends = [round(sum(self.p[:k + 1]) * 2**31) for k in range(len(self.p))]
    return next(k for k, end in enumerate(ends) if draws[0] < end)

  def draws(self, seed):
    first = [fraction(seed, 0)]
    drawn = first + _draws(self.chains, seed)[self.chosen(first)]
    return drawn + [0] * (self.size - len(drawn))

  def pixels(self, image, draws):
    return composed_pixels(self.chains[self.chosen(draws)], image, draws[1:])


@dataclasses.dataclass(frozen=True)
class Order:
  chains: tuple
  name = "random_order"

  @property
  def size(self):
    return len(self.chains) - 1 + sum(layer.size for chain in self.chains for layer in chain)

  def draws(self, seed):
    number = len(self.chains)
    return [below(seed, k, number - k) for k in range(number - 1)] + [drawn for chain in _draws(self.chains, seed) for drawn in chain]

  def pixels(self, image, draws):
    left, first = list(range(len(self.chains))), len(self.chains) - 1
    starts = first + np.cumsum([0] + [sum(layer.size for layer in chain) for chain in self.chains])
    for drawn in [*draws[:first], 0]:
      k = left.pop(drawn)
      image = composed_pixels(self.chains[k], image, draws[starts[k]:starts[k + 1]])
    return image


def _draws(chains, seed):
  """What each chain draws: positions go on from one to the next."""
  made, position = [], 0
  for chain in chains:
    made.append([])
    for layer in chain:
      made[-1] += layer.draws(seed_at(seed, position))
      position += 1
  return made
