"""The layers of a final augmentation in NumPy: what each draws from a seed, and how it applies that to an image.

This is the specification: one image at a time, slow, made to be read. A layer has a name, `size` (how many numbers it
draws), `draws(seed)` and `pixels(image, draws)`.
"""
import dataclasses
import math

import numpy as np
import tensorflow as tf

from support.words import below, fraction, seed_at


@dataclasses.dataclass(frozen=True)
class Crop:
  """With a size `to`, as torchvision's RandomCrop(to, padding, pad_if_needed=True), whose padding is `numpy.pad`'s."""
  padding: int
  mode: str = "constant"
  to: tuple | None = None
  size = 2
  name = "random_crop"

  def draws(self, seed):
    return [fraction(seed, k) if self.to else below(seed, k, 2 * self.padding + 1) for k in range(2)]

  def pixels(self, image, draws):
    height, width = made = self.to or image.shape[:2]
    around = [self.padding + max(0, least - side - 2 * self.padding) for least, side in zip(made, image.shape)]
    padded = np.pad(image, [*((each, each) for each in around), (0, 0)], self.mode)
    places = [side - least + 1 for side, least in zip(padded.shape, made)]
    y, x = [int(drawn) * number >> 31 for drawn, number in zip(draws, places)] if self.to else draws
    return padded[y:y + height, x:x + width]


@dataclasses.dataclass(frozen=True)
class Flip:
  mode: str = "horizontal"
  p: float = 0.5
  name = "random_flip"

  @property
  def size(self):
    return 1 + (self.mode == "horizontal_and_vertical")

  def draws(self, seed):
    return [int(fraction(seed, k) >= 2**31 - round(self.p * 2**31)) for k in range(self.size)]

  def pixels(self, image, draws):
    if self.mode != "vertical" and draws[0]:
      image = image[:, ::-1]
    return image[::-1] if self.mode != "horizontal" and draws[-1] else image


@dataclasses.dataclass(frozen=True)
class Cutout:
  side: int
  size = 2
  name = "cutout"

  def draws(self, seed):
    return [fraction(seed, k) for k in range(2)]

  def pixels(self, image, draws):
    image = image.copy()
    (top, bottom), (left, right) = (
        (max(0, start), max(0, start + self.side))
        for start in ((int(drawn) * sides >> 31) - self.side // 2 for drawn, sides in zip(draws, image.shape)))
    image[top:bottom, left:right] = 0
    return image


@dataclasses.dataclass(frozen=True)
class Grayscale:
  p: float
  size = 1
  name = "random_grayscale"

  def draws(self, seed):
    return [fraction(seed, 0)]

  def pixels(self, image, draws):
    if draws[0] >= round(self.p * 2**31) or image.shape[-1] == 1:
      return image
    grey = (image.astype(int) @ [19595, 38470, 7471] + 32768) >> 16
    return np.repeat(grey[..., None], 3, -1).astype(np.uint8)


def bilinear_weights(size, to_size, antialias):
  """For each point of a resized axis, the first point that it is made of and the weights from there on, in float32.

  As `tf.image.resize` has them, without those that are 0.
  """
  one, half, size_32, to_size_32 = np.float32([1, 0.5, size, to_size])
  made = []
  for point in np.arange(to_size, dtype=np.float32):
    if antialias:
      step = np.float32(1 / np.float64(to_size_32 / size_32))
      middle, reach = (point + half) * step, max(step, one)
      first = max(0, math.ceil(middle - reach - half))
      points = np.arange(first, min(size - 1, math.floor(middle + reach - half)) + 1, dtype=np.float32)
      weights = np.maximum(np.float32(0), one - np.abs((points + half - middle) * (one / reach)))
      total = np.float32(0)
      for weight in weights:
        total += weight
      weights = weights * (one / total)
    else:
      middle = (point + half) * (size_32 / to_size_32) - half
      first, last = (int(np.clip(limit(middle), 0, size - 1)) for limit in (math.floor, math.ceil))
      share = middle - np.floor(middle)
      weights = np.float32([1] if first == last else [one - share, share])
    there = np.flatnonzero(weights)
    made.append((first + there[0], weights[there[0]:there[-1] + 1]))
  return made


def weighted(points, image):
  """Sums of rows in double, which holds the products exactly."""
  made = np.zeros([len(points), *image.shape[1:]])
  for row, (first, weights) in zip(made, points):
    for k, weight in enumerate(weights):
      row += np.float64(weight) * np.float64(image[first + k])
  return made


@dataclasses.dataclass(frozen=True)
class ResizedCrop:
  height: int
  width: int
  scale: tuple = (0.08, 1.0)
  ratio: tuple = (3 / 4, 4 / 3)
  antialias: bool = False
  size = 22
  name = "random_resized_crop"

  def draws(self, seed):
    return [fraction(seed, k) for k in range(22)]

  def box(self, height, width, draws):
    """The box taken from an image of this size: y, x, height and width."""
    drawn = [number / 2**31 for number in draws]
    (least, most), (narrowest, widest) = self.scale, self.ratio
    for attempt in range(10):
      area = height * width * (least + drawn[2 * attempt] * (most - least))
      aspect = math.exp(math.log(narrowest) + drawn[2 * attempt + 1] * (math.log(widest) - math.log(narrowest)))
      w, h = math.floor(math.sqrt(area * aspect) + 0.5), math.floor(math.sqrt(area / aspect) + 0.5)
      if 0 < w <= width and 0 < h <= height:
        return math.floor(drawn[20] * (height - h + 1)), math.floor(drawn[21] * (width - w + 1)), h, w
    w, h = width, height
    if width / height < narrowest:
      h = max(1, min(height, math.floor(width / narrowest + 0.5)))
    elif width / height > widest:
      w = max(1, min(width, math.floor(height * widest + 0.5)))
    return (height - h) // 2, (width - w) // 2, h, w

  def pixels(self, image, draws):
    y, x, h, w = self.box(*image.shape[:2], draws)
    part = image[y:y + h, x:x + w]
    if image.dtype == np.uint8:  # In fixed point there: within one level.
      part = tf.image.resize(part, [self.height, self.width], antialias=self.antialias)
      return np.clip(np.rint(part), 0, 255).astype(np.uint8)
    rows, columns = (bilinear_weights(*sides, self.antialias) for sides in ((h, self.height), (w, self.width)))
    part = weighted(columns, weighted(rows, part).astype(np.float32).swapaxes(0, 1)).swapaxes(0, 1)
    if image.dtype == np.float32:
      return part.astype(np.float32)
    limits = np.iinfo(image.dtype)
    return np.clip(np.floor(part + 0.5), limits.min, limits.max).astype(image.dtype)


@dataclasses.dataclass(frozen=True)
class Resize(ResizedCrop):
  antialias: bool = True
  size = 0
  name = "resize"

  def draws(self, seed):
    del seed
    return []

  def box(self, height, width, draws):
    del draws
    return 0, 0, height, width


@dataclasses.dataclass(frozen=True)
class Normalize:
  mean: tuple
  std: tuple
  dtype: str = "float32"
  max_pixel_value: float | None = None
  size = 0
  name = "normalize"

  def draws(self, seed):
    del seed
    return []

  def pixels(self, image, draws):
    del draws
    mean, std = np.float64(self.mean), np.float64(self.std)
    within_1 = all(((numbers >= 0) & (numbers <= 1)).all() for numbers in (mean, std))
    unit = self.max_pixel_value or (255 if image.dtype == np.uint8 and within_1 else 1)
    scale, offset = np.float32(1 / (unit * std)), np.float32(-mean / std)
    return (np.float32(image) * scale + offset).astype(tf.as_dtype(self.dtype).as_numpy_dtype)


def composed_draws(layers, seed):
  """The draws of the layers of a `compose` from its seed, one after the other."""
  return [drawn for position, layer in enumerate(layers) for drawn in layer.draws(seed_at(seed, position))]


def composed_pixels(layers, image, draws):
  for layer in layers:
    image = layer.pixels(image, draws[:layer.size])
    draws = draws[layer.size:]
  return image


def composed(layers, image, seed):
  return composed_pixels(layers, image, composed_draws(layers, seed))
