"""The layers of colours, blur and erasing in NumPy: what each draws from a seed, and how it applies that to an image.

As `final_reference`, which has the other layers.
"""
import dataclasses
import itertools
import math

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from support.final_reference import below, composed_pixels, fraction, seed_at

UNIT = 2**31


def grey_of(image):
  return (image.astype(int) @ [19595, 38470, 7471] + 32768) >> 16


def blended(start, image, factor):
  """As Pillow: in float32, cut off."""
  start, factor = np.float32(start), np.float32(factor)
  return np.clip(start + factor * (np.float32(image) - start), 0, 255).astype(np.uint8)


def brightened(image, factor):
  return blended(0, image, factor)


def contrasted(image, factor):
  return blended(int(grey_of(image).mean() + 0.5), image, factor)


def saturated(image, factor):
  return blended(grey_of(image)[..., np.newaxis], image, factor)


def hue_turned(image, turn):
  """In HSV, in whole numbers: a hue is in sixteenths of the spread times a sixth of the circle."""
  red, green, blue = pixels = np.moveaxis(image.astype(int), -1, 0)
  most = pixels.max(0)
  spread = most - pixels.min(0)
  hue = np.where(most == red, green - blue, np.where(most == green, 2 * spread + blue - red, 4 * spread + red - green))
  circle = 96 * spread
  hue = (16 * hue + (spread * round(turn * 24576) + 128) // 256) % np.maximum(circle, 1)
  made = []
  for channel in range(3):
    away = np.abs(hue - 32 * channel * spread)
    less = np.clip(np.minimum(away, circle - away) - 16 * spread, 0, 16 * spread)
    made.append((16 * most + 8 - less) // 16)
  return np.stack(made, -1).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class ColorJitter:
  brightness: tuple = (1, 1)
  contrast: tuple = (1, 1)
  saturation: tuple = (1, 1)
  hue: tuple = (0, 0)
  size = 5
  name = "color_jitter"

  def draws(self, seed):
    return [below(seed, 0, 24), *(fraction(seed, k) for k in range(1, 5))]

  def amounts(self, draws):
    return [round((low + (high - low) * drawn / UNIT) * 4096) / 4096 for (low, high), drawn in zip(
        (self.brightness, self.contrast, self.saturation, self.hue), draws[1:])]

  @staticmethod
  def order(number):
    steps = [0, 1, 2, 3]
    for i in range(4):
      other = i + number % (4 - i)
      number //= 4 - i
      steps[i], steps[other] = steps[other], steps[i]
    return steps

  def pixels(self, image, draws):
    functions, amounts = (brightened, contrasted, saturated, hue_turned), self.amounts(draws)
    for step in self.order(draws[0]):
      image = functions[step](image, amounts[step])
    return image


@dataclasses.dataclass(frozen=True)
class Chance:
  """What does nothing with probability 1 - p."""
  p: float
  size = 1

  def draws(self, seed):
    return [fraction(seed, k) for k in range(self.size)]

  def happens(self, draws):
    return draws[0] < round(self.p * UNIT)

  def pixels(self, image, draws):
    return self.changed(image, draws) if self.happens(draws) else image


@dataclasses.dataclass(frozen=True)
class Solarize(Chance):
  threshold: int = 128
  name = "random_solarize"

  def changed(self, image, draws):
    del draws
    return np.where(image < self.threshold, image, 255 - image)


def pillows(function):
  """A function of an array of three channels or one that calls Pillow's."""
  def called(image, *arguments):
    made = function(Image.fromarray(image if image.shape[-1] == 3 else image[..., 0]), *arguments)
    return np.asarray(made).reshape(image.shape)
  return called


ORDERS = list(itertools.permutations(range(3)))
DISTORTIONS = {
    "random_autocontrast": pillows(ImageOps.autocontrast), "random_equalize": pillows(ImageOps.equalize),
    "random_invert": pillows(ImageOps.invert), "random_posterize": pillows(ImageOps.posterize),
    "random_solarize": pillows(ImageOps.solarize),
    "random_channel_permutation": lambda image, order: image[..., ORDERS[order] if image.shape[-1] == 3 else [0]],
    "random_adjust_sharpness": pillows(lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor))}


@dataclasses.dataclass(frozen=True)
class Distort(Chance):
  """The layer of this name, with the range of its parameter, if it has one."""
  name: str = ""
  ends: tuple = ()

  @property
  def size(self):
    return 1 + (len(set(self.ends)) == 2)

  def changed(self, image, draws):
    return DISTORTIONS[self.name](image, *self.parameter(draws))

  def parameter(self, draws):
    if self.size == 1:
      return self.ends[:1]
    low, high = self.ends
    if self.name == "random_adjust_sharpness":
      return [round((low + (high - low) * draws[1] / UNIT) * 4096) / 4096]
    return [math.floor(low + (high + 1 - low) * draws[1] / UNIT)]


@dataclasses.dataclass(frozen=True)
class PhotometricDistort(ColorJitter):
  p: float = 0.5
  size = 11
  name = "random_photometric_distort"

  def draws(self, seed):
    return [*(fraction(seed, k) for k in range(8)), below(seed, 8, 2), fraction(seed, 9), below(seed, 10, 6)]

  def pixels(self, image, draws):
    functions, amounts = (brightened, contrasted, saturated, hue_turned), self.amounts(draws[3:])
    for step in (0, 1, 2, 3) if draws[8] else (0, 2, 3, 1):
      if draws[step] < round(self.p * UNIT):
        image = functions[step](image, amounts[step])
    return image[..., ORDERS[draws[10]]] if draws[9] < round(self.p * UNIT) else image


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
  mean: float = 0
  sigma: tuple = (0.1, 0.1)
  clip: bool = True
  size = 3
  name = "gaussian_noise"
  # Of the odd powers of a sum of four bytes, from about -1 to 1.
  factors = (3.3361117228142634, 0.31268683974899514, 1.4296519373922978, -3.479164838328435, 3.6930138362335114)

  def draws(self, seed):
    return [fraction(seed, k) for k in range(3)]

  def pixels(self, image, draws):
    key = [np.uint32(below(draws[:2], k, 2**32)) for k in range(2)]
    bits = np.arange(image.size, dtype=np.uint32).reshape(image.shape) + key[0]
    bits = (bits ^ bits >> 16) * np.uint32(0x21f0aaad)
    bits = ((bits ^ bits >> 15) + key[1]) * np.uint32(0xd35a2d97)
    bits ^= bits >> 15
    total = sum(bits >> shift & 255 for shift in (0, 8, 16, 24)) * 256 + (bits * np.uint32(0x9e3779b1) >> 24)
    at = (np.float32(total) - np.float32(130687.5)) * np.float32(2**-17)
    low, high = self.sigma
    unit = 255 if image.dtype == np.uint8 else 1
    sigma = (low + (high - low) * draws[2] / UNIT) * unit
    factor = np.float32(0)
    for each in self.factors[::-1]:
      factor = factor * (at * at) + np.float32(each * sigma)
    offset = np.float32(self.mean * unit) + np.float32(0.5 * (unit > 1))
    made = np.float32(image) + offset + factor * at
    return (np.clip(made, 0, unit) if self.clip else made).astype(image.dtype)


def reflected(i, size):
  """Point i of an axis that is reflected about the middle of its outermost points."""
  period = max(2 * (size - 1), 1)
  return min(abs(i) % period, period - abs(i) % period)


def blurred(image, sigma, radius):
  """In double, without a rounding."""
  weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma)**2)
  image = image.astype(np.float64)
  for _ in range(2):
    points = [[reflected(i + k, len(image)) for k in range(-radius, radius + 1)] for i in range(len(image))]
    image = np.einsum("k,ik...->i...", weights / weights.sum(), image[points]).swapaxes(0, 1)
  return image


@dataclasses.dataclass(frozen=True)
class GaussianBlur:
  """Of uint8, within a level."""
  sigma: tuple = (0.1, 2.0)
  kernel_size: int = None
  name = "gaussian_blur"

  def draws(self, seed):
    return [fraction(seed, 1)]

  def pixels(self, image, draws):
    low, high = self.sigma
    sigma = low + (high - low) * draws[0] / UNIT
    made = blurred(image, sigma, self.kernel_size // 2 if self.kernel_size else math.ceil(3 * sigma))
    return made.astype(np.float32) if image.dtype == np.float32 else np.floor(made + 0.5).astype(image.dtype)


@dataclasses.dataclass(frozen=True)
class RandomErasing(Chance):
  scale: tuple = (0.02, 0.33)
  ratio: tuple = (0.3, 3.3)
  value: tuple = (0,)
  size = 23
  name = "random_erasing"

  def box(self, height, width, draws):
    """The rows and columns that are erased: top, bottom, left and right; or None."""
    drawn = [number / UNIT for number in draws[1:]]
    (least, most), (low, high) = self.scale, map(math.log, self.ratio)
    for k in range(10):
      area = height * width * (least + drawn[2 * k] * (most - least))
      aspect = math.exp(low + drawn[2 * k + 1] * (high - low))
      h, w = math.floor(math.sqrt(area * aspect) + 0.5), math.floor(math.sqrt(area / aspect) + 0.5)
      if h < height and w < width:
        top, left = math.floor(drawn[20] * (height - h + 1)), math.floor(drawn[21] * (width - w + 1))
        return top, top + h, left, left + w
    return None

  def changed(self, image, draws):
    box = self.box(*image.shape[:2], draws)
    if box is None:
      return image
    top, bottom, left, right = box
    image = image.copy()
    image[top:bottom, left:right] = self.value
    return image


@dataclasses.dataclass(frozen=True)
class RandomApply(Chance):
  layers: tuple = ()
  name = "random_apply"

  @property
  def size(self):
    return 1 + sum(layer.size for layer in self.layers)

  def draws(self, seed):
    first = [fraction(seed, 0)]
    if not self.happens(first):
      return first + [0] * (self.size - 1)
    return first + [drawn for k, layer in enumerate(self.layers) for drawn in layer.draws(seed_at(seed, k))]

  def changed(self, image, draws):
    return composed_pixels(self.layers, image, draws[1:])
