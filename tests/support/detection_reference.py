"""Zoom out, random sizes, crops by boxes, and layers of which one, or all in any order, are applied, in NumPy.

As `final_reference`, which has the other layers.
"""
import dataclasses

import numpy as np

from support.final_reference import composed_pixels
from support.words import below, fraction, seed_at

UNIT = 2**31


@dataclasses.dataclass(frozen=True)
class ZoomOut:
  fill: int = 0
  sides: tuple = (1, 4)
  p: float = 0.5
  size = 4
  name = "random_zoom_out"

  def draws(self, seed):
    return [fraction(seed, k) for k in range(4)]

  def pixels(self, image, draws):
    if draws[0] >= round(self.p * UNIT):
      return image
    low, high = self.sides
    by, left, top = low + (high - low) * (draws[1] / UNIT), draws[2] / UNIT, draws[3] / UNIT
    height, width = image.shape[:2]
    made = np.full([int(height * by), int(width * by), image.shape[2]], self.fill, image.dtype)
    y, x = int((made.shape[0] - height) * top), int((made.shape[1] - width) * left)
    made[y:y + height, x:x + width] = image
    return made


def iou_crop(seed, size, boxes, *, scale=(0.3, 1), ratio=(0.5, 2), options=(0, 0.1, 0.3, 0.5, 0.7, 0.9, 1), trials=40):
  """Top, left, height and width of the crop, or None: the image stays. `seed`: what the layer draws."""
  word = 0
  for _ in range(50 if len(boxes) else 0):
    least = options[below(seed, word, len(options))]
    word += 1
    if least >= 1:
      return None
    for _ in range(trials):
      units = [fraction(seed, word + k) / UNIT for k in range(4)]
      word += 4
      width, height = [int(side * (scale[0] + (scale[1] - scale[0]) * unit)) for side, unit in zip(size[::-1], units)]
      left, top = int((size[1] - width) * units[2]), int((size[0] - height) * units[3])
      if not (height and width and ratio[0] <= width / height <= ratio[1]):
        continue
      crop = np.array([left, top, left + width, top + height])
      if any(is_within(crop, box) and overlap(crop, box) >= least for box in np.asarray(boxes, np.float64)):
        return top, left, height, width
  return None


def is_within(crop, box):
  middle = (box[:2] + box[2:]) / 2
  return bool(np.all(middle > crop[:2]) and np.all(middle < crop[2:]))


def overlap(crop, box):
  common = np.prod(np.minimum(crop[2:], box[2:]) - np.maximum(crop[:2], box[:2]))
  return common / (np.prod(crop[2:] - crop[:2]) + np.prod(box[2:] - box[:2]) - common)


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
    ends = [round(sum(self.p[:k + 1]) * UNIT) for k in range(len(self.p))]
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
