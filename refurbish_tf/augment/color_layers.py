"""Layers that change colours and do not move pixels: jitter, grey, order of channels, solarisation, blur."""

import math
from typing import Any, Sequence

from refurbish_tf._internal.checks import is_real
from .layers import checked_around, checked_probability, checked_range, checked_whole
from .native_layers import ChanceLayer, DrawingLayer

# The arguments of `checked_around` for factors, and for rotations of the hue.
_FACTORS, _TURNS = (1, 0, 100, 99), (0, -0.5, 0.5, 0.5)
_LARGEST_KERNEL = 1023


def color_jitter(
  brightness: float | Sequence[float] = 0,
  contrast: float | Sequence[float] = 0,
  saturation: float | Sequence[float] = 0,
  hue: float | Sequence[float] = 0,
) -> Any:
  """Returns a layer that changes brightness, contrast, saturation and hue by random amounts, in a random order.

  >>> image = tf.constant([[[200, 100, 50], [10, 20, 30]]], tf.uint8)
  >>> rtf.augment.color_jitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)(image, seed=[7, 0]).shape
  TensorShape([1, 2, 3])
  >>> rtf.augment.color_jitter(hue=(0.5, 0.5))(image, seed=[7, 0]).numpy().tolist()
  [[[50, 150, 200], [30, 20, 10]]]

  The arguments have the same meaning as in torchvision's `ColorJitter`: a number `x` is the range from `max(0, 1 - x)`
  to `1 + x`, or for the hue from `-x` to `x`. Each amount is drawn uniformly from its range, in steps of 1 / 4096. The
  order of the four is also drawn. A factor of 1 changes nothing. A factor of 0 makes the image black (brightness),
  uniformly grey (contrast), or makes each pixel grey (saturation). The hue is turned by this fraction of the circle.

  Brightness, contrast and saturation equal Pillow's `ImageEnhance`, bit for bit. They are within one level of
  torchvision's `transforms.v2` of uint8 tensors, which does not round grey values. The hue is also within one level of
  torchvision: it is turned in HSV and rounded once, at the end. Pillow's own HSV has 8 bits, which shifts values by
  several levels.

  Args:
    brightness, contrast, saturation: a real number of at least 0, or a range, `(low, high)`, from 0 to 100. SimCLR
      uses 0.8 times the strength of the jitter.
    hue: a real number from 0 to 0.5, or a range from -0.5 to 0.5. SimCLR uses 0.2 times the strength.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 images with three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the colour distortion of Chen et al., *A Simple Framework for Contrastive Learning of Visual
  Representations*, ICML 2020, appendix A, together with `random_apply` and `random_grayscale`.
  """
  ranges = _checked_amounts("color_jitter", brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
  active = {name: ends for name, ends in ranges.items() if ends != ((0, 0) if name == "hue" else (1, 1))}
  number = math.inf if any(high > low for low, high in active.values()) else math.factorial(len(active))
  return DrawingLayer("color_jitter", _texts(ranges), _shown(active), outcomes=(number, number))


def random_photometric_distort(
  brightness: Sequence[float] = (0.875, 1.125),
  contrast: Sequence[float] = (0.5, 1.5),
  saturation: Sequence[float] = (0.5, 1.5),
  hue: Sequence[float] = (-0.05, 0.05),
  p: float = 0.5,
) -> Any:
  """Returns a layer that changes brightness, contrast, saturation, hue and channel order, each with probability `p`.

  >>> image = tf.constant([[[200, 100, 50], [10, 20, 30]]], tf.uint8)
  >>> rtf.augment.random_photometric_distort()(image, seed=[7, 0]).shape
  TensorShape([1, 2, 3])

  It is torchvision's `RandomPhotometricDistort`: each of the five changes is drawn independently. Contrast comes
  directly after brightness or after the hue, with equal probability; the channels come last. Amounts are drawn as in
  `color_jitter`, uniformly in steps of 1 / 4096.

  Args:
    brightness, contrast, saturation: a range of factors `(low, high)`, 0 to 100, or a number as for `color_jitter`.
    hue: a range of turns, `(low, high)`, from -0.5 to 0.5, or a number.
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, but for uint8 images with three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the photometric distortions of Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016, as described by
  Howard, *Some Improvements on Deep Convolutional Neural Network Based Image Classification*, 2013.
  """
  p = checked_probability("random_photometric_distort", p, "Leave it out for 0.5.")
  given = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
  ranges = _checked_amounts("random_photometric_distort", **given)
  number = math.inf if any(low < high for low, high in ranges.values()) else None
  outcomes = (1, 1) if p == 0 else number and (number, number)
  text, shown = f"{_texts(ranges)} below={round(p * 2**31)}", f"{_shown(ranges)}, p={p:g}"
  return DrawingLayer("random_photometric_distort", text, shown, outcomes=outcomes)


def random_channel_permutation() -> Any:
  """Returns a layer that puts the three channels into a random order.

  >>> image = tf.constant([[[10, 20, 30]]], tf.uint8)
  >>> rtf.augment.random_channel_permutation()(image, seed=[11, 0]).numpy().tolist()
  [[[20, 30, 10]]]

  It is torchvision's `RandomChannelPermutation`: each of the six orders is equally likely, including the original one.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with 3 channels, or 1, which stays grey.
  """
  return DrawingLayer("random_channel_permutation", f"below={2**31} order=0,5", outcomes=(6, 6))


def random_grayscale(p: float = 0.1) -> Any:
  """Returns a layer that makes the image grey with probability `p`, and keeps its three channels.

  >>> image = tf.constant([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], tf.uint8)
  >>> rtf.augment.random_grayscale(p=1)(image, seed=[7, 0]).numpy().tolist()
  [[[76, 76, 76], [150, 150, 150], [29, 29, 29]]]

  Args:
    p: a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with 3 channels, or 1, which stays grey.

  Raises:
    TypeError, ValueError: `p` is not a real number from 0 to 1.

  It uses Pillow's weights: (19595 red + 38470 green + 7471 blue) / 65536, rounded.
  """
  return ChanceLayer("random_grayscale", p)


def random_solarize(threshold: int = 128, p: float = 0.5) -> Any:
  """Returns a layer that, with probability `p`, inverts all values at or above a threshold.

  >>> image = tf.constant([[[0, 127, 128], [129, 200, 255]]], tf.uint8)
  >>> rtf.augment.random_solarize(threshold=128, p=1)(image, seed=[7, 0]).numpy().tolist()
  [[[0, 127, 127], [126, 55, 0]]]

  Args:
    threshold: a whole number from 0, which inverts the whole image, to 256, which leaves it as it is.
    p: a real number from 0 to 1. BYOL and DINO use 0.2, for one of their two views.

  Returns:
    A function `layer(image, seed)` like `random_crop`'s, but for uint8 images with three channels or one.

  Raises:
    TypeError, ValueError: `threshold` is not a whole number, or `p` not a real number, or out of range.

  Implements the solarisation of Grill et al., *Bootstrap Your Own Latent*, NeurIPS 2020, appendix B. It equals Pillow's
  `ImageOps.solarize`.
  """
  advice = "Pass 128, as in Pillow and the papers, to invert bright values."
  threshold = checked_whole("threshold of solarize", threshold, 0, 256, advice)
  return ChanceLayer("random_solarize", p, f"threshold={threshold}", f"{threshold}", outcomes=(1, 1))


def gaussian_blur(kernel_size: int | None = None, sigma: float | Sequence[float] = (0.1, 2.0)) -> Any:
  """Returns a layer that blurs the image with a Gaussian of random width.

  >>> image = tf.constant([[[0], [0], [0], [255], [0], [0], [0]]], tf.uint8)
  >>> rtf.augment.gaussian_blur(sigma=1)(image, seed=[7, 0]).numpy()[0, :, 0].tolist()
  [2, 14, 62, 102, 62, 14, 2]

  The standard deviation is drawn uniformly. `random_apply([gaussian_blur()], p=0.5)` blurs half of the images. Beyond
  its edges the image is reflected about its outermost pixels. uint8 is computed in fixed point, rows and then columns,
  and rounded. No value differs by more than 1 from torchvision's `gaussian_blur` with the same kernel or, without a
  `kernel_size`, with a kernel of unlimited size. uint16 and int16 are rounded.

  Args:
    kernel_size: the side of the square kernel in pixels, an odd whole number from 1 to 1,023. SimCLR uses a tenth of
      the image. None, which torchvision does not have, reaches three times the drawn sigma to each side, rounded up;
      sigma is then at most 170.
    sigma: the standard deviation in pixels, a number above 0 or a range. SimCLR, BYOL and DINO use 0.1 to 2.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the blur of Chen et al., *A Simple Framework for Contrastive Learning of Visual Representations*, ICML
  2020, appendix A.
  """
  if is_real(sigma):
    sigma = (sigma, sigma)
  low, high = checked_range("gaussian_blur", "sigma", sigma, _LARGEST_KERNEL, "Pass (0.1, 2.0), as in the papers.")
  if kernel_size is not None:
    advice = "Leave it out for a kernel that is as wide as sigma needs."
    kernel_size = checked_whole("kernel_size of gaussian_blur", kernel_size, 1, _LARGEST_KERNEL, advice)
    if kernel_size % 2 == 0:
      raise ValueError(
        f"kernel_size of gaussian_blur must be odd, so that it has a middle pixel, got {kernel_size}. Pass "
        f"{kernel_size + 1}."
      )
  elif high > _LARGEST_KERNEL // 6:
    raise ValueError(
      f"sigma of gaussian_blur must be at most {_LARGEST_KERNEL // 6} without a kernel_size, got {high:g}. Pass a "
      "kernel_size, or make the image smaller with resize first."
    )
  number = math.inf if high > low else 1
  shown = ("" if kernel_size is None else f"{kernel_size}, ") + f"sigma=({low:g}, {high:g})"
  text = f"sigma={low!r},{high!r} kernel={kernel_size or 0}"
  return DrawingLayer("gaussian_blur", text, shown, outcomes=(number, number))


def _texts(ranges):
  return " ".join(f"{name}={low!r},{high!r}" for name, (low, high) in ranges.items())


def _shown(ranges):
  return ", ".join(f"{name}=({low:g}, {high:g})" for name, (low, high) in ranges.items())


def _checked_amounts(whose, **given):
  limits = lambda name: _TURNS if name == "hue" else _FACTORS
  return {name: checked_around(f"{name} of {whose}", value, *limits(name)) for name, value in given.items()}
