"""Cheap layers, most of them for a final augmentation: crop, flip, resizing, cutout, erasing, normalisation."""

import math
import numbers
from typing import Any, Literal, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal.checks import checked_flag, is_real
from .layers import checked_fill, checked_probability, checked_range, checked_real, checked_whole
from .native_layers import ChanceLayer, DrawingLayer, NativeLayer

_LARGEST_SIDE = 2**31 - 1
LARGEST_PADDING = 16_383
LARGEST_RESIZED = 65_535
_MOST_CHANNELS = 64
_DTYPES = ("float32", "bfloat16", "float16")


def random_crop(
  size: int | Sequence[int] | None = None,
  *,
  padding: int = 0,
  padding_mode: Literal["constant", "reflect"] = "constant",
  pad_if_needed: bool = False,
) -> Any:
  """Returns a layer that crops the image at a random position, optionally after padding it.

  >>> rtf.augment.random_crop(224)(tf.zeros([256, 300, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([224, 224, 3])
  >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
  >>> rtf.augment.random_crop(padding=1)(image, seed=[7, 0]).numpy()[..., 0].tolist()
  [[0, 0], [0, 1]]

  All positions are equally likely. The arguments have the same meaning as in torchvision's `RandomCrop`, which has no
  `size=None`, but also has a `fill`, more padding modes and a padding for each side. Keras' `RandomCrop` resizes images
  that are too small.

  Args:
    size: the size of the crop, a whole number of pixels from 1 to 65,535 for a square, or `(height, width)`. None keeps
      the size of the image: there are then (2 * padding + 1)² positions.
    padding: how many pixels to add on each side first, a whole number from 0 to 16,383. Lee et al. use 3.
    padding_mode: "constant", which pads with zeros, or "reflect", which mirrors the image at its outermost pixels, as
      `numpy.pad` does, and needs a padding smaller than both sides of the image.
    pad_if_needed: whether to pad an image whose height or width is still smaller than `size`, by the difference at both
      ends. Otherwise a smaller image raises an error.

  Returns:
    A function `layer(image, seed)` of an image `[height, width, channels]`, or of a batch of them, `[batch, height,
    width, channels]`, of uint8, uint16, int16 or float32, with 1 to 64 channels, and of a seed, int32 or int64 `[2]` as
    for `tf.random.stateless_uniform`. The sides may be unknown while tracing. It returns the same dtype and, apart from
    `size`, the same shape; equal images and seeds give equal results. Image b of a batch gets the seed `seed_at(seed,
    b)`. Use `compose` for clips and for targets; inside a stage such as `refurbish` four dimensions are therefore an
    error. It raises `TypeError` for another dtype and `ValueError` for another shape, and warns if channels seem to
    come first or to be missing.

    It can also run in two steps, even on two machines or devices: `layer.draws(seed, batch_size=None)` returns int32
    `[number]`, or `[batch_size, number]`, and `layer.pixels(image, draws)` returns the result.

  Raises:
    TypeError, ValueError: an argument has the wrong type or range, or `pad_if_needed` is set without a `size`.

  Implements the random crop of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 4: many
  outcomes for little work, which suits the final augmentation.
  """
  advice = "Pass a number of pixels, such as 4; with a padding larger than the image, most crops are black."
  padding = checked_whole("padding of random_crop", padding, 0, LARGEST_PADDING, advice)
  if not isinstance(padding_mode, str) or padding_mode not in ("constant", "reflect"):
    raise ValueError(
      f"padding_mode of random_crop must be 'constant' or 'reflect', got {padding_mode!r}. Pass 'constant', as in the "
      "papers."
    )
  pad_if_needed = checked_flag("pad_if_needed of random_crop", pad_if_needed, "For a padding of 4, pass padding=4.")
  text = f"padding={padding} reflect={padding_mode == 'reflect':d}"
  shown = f"padding={padding}, padding_mode={padding_mode!r}"
  if size is None:
    if pad_if_needed:
      raise ValueError("pad_if_needed=True of random_crop needs a size, got size=None. Pass one, such as 224.")
    places = (2 * padding + 1) ** 2
    return DrawingLayer("random_crop", text, shown, outcomes=(places, places))
  height, width = checked_size(size, "random_crop")
  return DrawingLayer(
    "random_crop",
    f"{text} height={height} width={width} pad_if_needed={pad_if_needed:d}",
    f"({height}, {width}), {shown}, pad_if_needed={pad_if_needed}",
  )


def random_flip(
  mode: Literal["horizontal", "vertical", "horizontal_and_vertical"] = "horizontal", p: float = 0.5
) -> Any:
  """Returns a layer that mirrors the image left to right, top to bottom, or both, each with probability `p`.

  >>> image = tf.constant([[[1, 2, 3], [4, 5, 6]]], tf.uint8)
  >>> rtf.augment.random_flip()(image, seed=[1, 0]).numpy().tolist()
  [[[4, 5, 6], [1, 2, 3]]]

  It is torchvision's `RandomHorizontalFlip(p)` or `RandomVerticalFlip(p)`. The modes have the names of Keras'
  `RandomFlip`, whose default is "horizontal_and_vertical", always with p = 0.5.

  Args:
    mode: "horizontal", left to right; "vertical", top to bottom; or "horizontal_and_vertical", drawn for each axis.
    p: the probability of a flip, a real number from 0 to 1.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError, ValueError: there is no such mode; `p` is not a probability.

  Implements the horizontal flip of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 4.
  """
  axes = {"horizontal": 1, "vertical": 1, "horizontal_and_vertical": 2}.get(mode) if isinstance(mode, str) else None
  if axes is None:
    raise ValueError(
      f"mode of random_flip must be 'horizontal', 'vertical' or 'horizontal_and_vertical', got {mode!r}. Pass "
      "'horizontal' for photographs."
    )
  p = checked_probability("random_flip", p, "Pass 0.5 to flip half of the images.")
  if (mode, p) == ("horizontal", 0.5):
    return DrawingLayer("random_flip", outcomes=(2, 2))
  number, effective = (p > 0) + (p < 1), 1 / (p**2 + (1 - p) ** 2)
  outcomes = number**axes, effective**axes
  return DrawingLayer("random_flip", f"mode={mode} below={round(p * 2**31)}", f"{mode!r}, p={p:g}", outcomes=outcomes)


def random_resized_crop(
  size: int | Sequence[int],
  scale: Sequence[float] = (0.08, 1.0),
  ratio: Sequence[float] = (3 / 4, 4 / 3),
  antialias: bool = False,
) -> Any:
  """Returns a layer that crops a random part of the image, of random area and aspect ratio, and resizes it to a size.

  >>> rtf.augment.random_resized_crop(224)(tf.zeros([348, 500, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([224, 224, 3])

  The fraction of the area and the logarithm of width / height are drawn uniformly, up to ten times, until a part fits
  into the image; then its position is drawn. If none fits, the layer takes the largest part in the middle whose aspect
  ratio is allowed. The part is resized as by `resize(size, antialias)`.

  Args:
    size: a whole number of pixels from 1 to 65,535, or `(height, width)`.
    scale: the smallest and the largest fraction of the image's area, above 0 and at most 1.
    ratio: the smallest and the largest width / height, above 0.
    antialias: whether to average over all pixels of a part that shrinks, not over two in each direction. torchvision's
      default is True.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns, except that its result has that size.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements the crop of Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, section 6.
  """
  height, width = checked_size(size, "random_resized_crop")
  scale = checked_range("random_resized_crop", "scale", scale, 1)
  ratio = checked_range("random_resized_crop", "ratio", ratio, math.inf)
  antialias = checked_antialias(antialias, "random_resized_crop")
  return DrawingLayer(
    "random_resized_crop",
    f"height={height} width={width} {_ranges(scale, ratio)} antialias={antialias:d}",
    f"({height}, {width}), scale={scale}, ratio={ratio}, antialias={antialias}",
    outcomes=(math.inf, math.inf),
  )


def _ranges(scale, ratio):
  return f"scale={scale[0]!r},{scale[1]!r} ratio={ratio[0]!r},{ratio[1]!r}"


def resize(
  size: int | Sequence[int],
  antialias: bool = True,
  *,
  crop_to_aspect_ratio: bool = False,
  pad_to_aspect_ratio: bool = False,
  fill_value: int = 0,
) -> Any:
  """Returns a layer that resizes the image, to a shortest side of `size` pixels or to an exact size.

  >>> image = tf.zeros([300, 400, 3], tf.uint8)
  >>> rtf.augment.resize(256)(image).shape, rtf.augment.resize((224, 224), crop_to_aspect_ratio=True)(image).shape
  (TensorShape([256, 341, 3]), TensorShape([224, 224, 3]))
  >>> letterbox = rtf.augment.resize((640, 640), pad_to_aspect_ratio=True, fill_value=114)
  >>> letterbox(image)[:, 0, 0].numpy()[[0, 79, 80, 559, 560, 639]].tolist()
  [114, 114, 0, 0, 114, 114]

  It is `tf.image.resize(image, size, "bilinear", antialias=antialias)`, in the dtype of the image. uint8 is computed in
  fixed point, and no value differs by more than 1. uint16 and int16 are rounded.

  Args:
    size: a whole number of pixels from 1 to 65,535 for the shortest side, as in torchvision; the longest is rounded
      down. Or the exact `(height, width)`, whatever the aspect ratio of the image.
    antialias: whether to average over all pixels of an image that shrinks, not over two in each direction.
    crop_to_aspect_ratio: with a pair, whether to first crop the image to the aspect ratio of `size`, around its middle.
    pad_to_aspect_ratio: with a pair, whether to keep the whole image and put borders around it (letterbox). Keras pads
      before it resizes, which blends the borders into the image.
    fill_value: the value of the borders, from 0 to 255; other than 0 only for uint8 images with at most four channels.

  Returns:
    A function `layer(image)` of an image or a batch, like the one that `random_crop` returns, except that its result
    has that size. It takes no seed. Masks, maps, boxes and key points follow; masks and maps are 0 in the borders.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.
  """
  antialias, flags = checked_antialias(antialias, "resize"), (crop_to_aspect_ratio, pad_to_aspect_ratio)
  return NativeLayer("resize", *resized("resize", size, antialias, *flags, fill_value))


def resized(whose, size, antialias, crops, pads, fill_value):
  """Checks the arguments of a resize. Returns them as text for the op, and as text for users."""
  advice = "Leave it out to resize to the exact size."
  crops = checked_flag(f"crop_to_aspect_ratio of {whose}", crops, advice)
  pads = checked_flag(f"pad_to_aspect_ratio of {whose}", pads, advice)
  fill_value = checked_whole(f"fill_value of {whose}", fill_value, 0, 255, "Leave it out for black.")
  if crops and pads:
    raise ValueError(
      f"crop_to_aspect_ratio and pad_to_aspect_ratio of {whose} must not both be True. Pass the first to cut off what "
      "does not fit, or the second to keep all of the image."
    )
  if (crops or pads) and not isinstance(size, (list, tuple)):
    raise ValueError(
      f"size of {whose} must be (height, width) with crop_to_aspect_ratio or pad_to_aspect_ratio, got {size!r}, which "
      f"keeps the aspect ratio. Pass ({size}, {size}) for a square."
    )
  if fill_value and not pads:
    raise ValueError(
      f"fill_value of {whose} needs pad_to_aspect_ratio=True, got {fill_value} without it. Leave fill_value out, or "
      "pass both."
    )
  height, width = checked_size(size, whose)
  if not isinstance(size, (list, tuple)):
    return f"short={height} antialias={antialias:d}", f"{height}, antialias={antialias}"
  text = f"height={height} width={width} antialias={antialias:d}" + crops * " crop=1" + pads * f" fill={fill_value}"
  shown = f"({height}, {width}), antialias={antialias}" + crops * ", crop_to_aspect_ratio=True"
  shown += pads * ", pad_to_aspect_ratio=True" + bool(fill_value) * f", fill_value={fill_value}"
  return text, shown


def cutout(size: int) -> Any:
  """Returns a layer that blackens a square of the image, centred at any of its pixels.

  >>> rtf.augment.cutout(2)(tf.ones([3, 4, 1], tf.uint8), seed=[7, 0]).numpy()[..., 0].tolist()
  [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]

  Args:
    size: the square's side, a whole number of pixels of at least 1. The paper uses 16 for CIFAR-10, 8 for CIFAR-100.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns.

  Raises:
    TypeError, ValueError: `size` is not a whole number, or below 1.

  Implements DeVries & Taylor, *Improved Regularization of Convolutional Neural Networks with Cutout*, 2017, section 3.
  """
  size = checked_whole("size of cutout", size, 1, _LARGEST_SIDE, "To cut nothing out, leave the layer out.")
  return DrawingLayer("cutout", f"side={size}", f"{size}")


def random_erasing(
  p: float = 0.5,
  scale: Sequence[float] = (0.02, 0.33),
  ratio: Sequence[float] = (0.3, 3.3),
  value: int | Sequence[int] = 0,
) -> Any:
  """Returns a layer that, with probability `p`, fills a rectangle of random area and aspect ratio, within the image.

  >>> layer = rtf.augment.random_erasing(p=1, scale=(0.25, 0.25), ratio=(1, 1), value=7)
  >>> layer(tf.ones([4, 4, 1], tf.uint8), seed=[7, 0]).numpy()[..., 0].tolist()
  [[1, 1, 1, 1], [1, 1, 1, 1], [7, 7, 1, 1], [7, 7, 1, 1]]

  The arguments have the same meaning as in torchvision's `RandomErasing`: the fraction of the area, and the logarithm
  of height / width, are drawn uniformly, up to ten times, until the rectangle is smaller than the image on both sides;
  then its position is drawn. If none fits, the image stays as it is. The square of `cutout`, however, may cross edges.

  Args:
    p: a real number from 0 to 1.
    scale: the smallest and the largest fraction of the image's area, above 0 and at most 1.
    ratio: the smallest and the largest height / width, above 0.
    value: the value that fills the rectangle, a whole number from 0 to 255, or three, one for each channel. Before
      `normalize`, ImageNet's mean is `(124, 116, 104)`.

  Returns:
    A function `layer(image, seed)` like the one that `random_crop` returns. A `value` other than 0 needs uint8 images
    with at most four channels; three values need three channels.

  Raises:
    TypeError, ValueError: an argument has the wrong type or is out of range.

  Implements Zhong et al., *Random Erasing Data Augmentation*, AAAI 2020, algorithm 1.
  """
  scale = checked_range("random_erasing", "scale", scale, 1, "Leave it out for torchvision's default.")
  ratio = checked_range("random_erasing", "ratio", ratio, math.inf, "Leave it out for torchvision's default.")
  text = f"{_ranges(scale, ratio)} value={','.join(map(str, checked_fill('value of random_erasing', value)))}"
  return ChanceLayer("random_erasing", p, text, f"scale={scale}, ratio={ratio}, value={value!r}", outcomes=None)


def normalize(
  mean: float | Sequence[float] = (0.485, 0.456, 0.406),
  std: float | Sequence[float] = (0.229, 0.224, 0.225),
  dtype: Any = "float32",
  *,
  max_pixel_value: float | None = None,
) -> Any:
  """Returns a layer that normalises the image: `(image / max_pixel_value - mean) / std`.

  >>> rtf.augment.normalize()
  normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 'float32')
  >>> layer = rtf.augment.normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.5], dtype="bfloat16")
  >>> layer(tf.constant([[[0, 255, 51]]], tf.uint8)).numpy().tolist()
  [[[-2.0, 2.0, -0.6015625]]]

  Without `max_pixel_value`, uint8 is divided by 255 if all of mean and std are within 0 to 1, and nothing else is
  divided. With such mean and std, uint16 and int16 raise an error, because their range cannot be inferred. So does a
  float32 image with a value above 16, when the layer runs.

  It computes `image * scale + offset`, rounded to float32 after each of the two, with `scale = 1 / (max_pixel_value *
  std)` and `offset = -mean / std` as float32, and then rounds to `dtype`. NaN stays NaN. It draws no numbers. Next to
  other layers of this module it is part of their pass over the image. Policies take uint8: put them before it.

  Args:
    mean: a real number, or one for each of up to 64 channels, in units of the divided values. The default is
      ImageNet's, with which most networks for photographs were trained.
    std: the same, and above 0.
    dtype: "float32", "bfloat16" or "float16", or TensorFlow's names for them.
    max_pixel_value: the number to divide values by first, a real number above 0: 255 for floats from 0 to 255, 10,000
      for reflectance. None for the rule above.

  Returns:
    A function `layer(image)` of an image or a batch, like `random_crop`'s, which returns the same shape in `dtype`.

  Raises:
    TypeError: `mean` or `std` does not consist of real numbers, or `max_pixel_value` is not one.
    ValueError: `mean` is not finite, `std` is not finite and above 0, their numbers of channels differ,
      `max_pixel_value` is not above 0, or there is no such dtype.
  """
  name = name_of_dtype(dtype)
  if name not in _DTYPES:
    raise ValueError(
      f"dtype of normalize must be one of {', '.join(_DTYPES)}, got {dtype!r}. To keep uint8, leave the layer out."
    )
  return _Normalize(*checked_normalization(mean, std, max_pixel_value, "normalize"), name)


class _Normalize(NativeLayer):
  """Its text omits max_pixel_value if it is 255 for uint8, or not given for floats or with mean and std in 0 to 1."""

  def __init__(self, mean, std, max_pixel_value, dtype):
    texts = [f"{key}={','.join(map(repr, values))}" for key, values in (("mean", mean), ("std", std))]
    self._given, self._text = max_pixel_value, f"normalize dtype={dtype} {' '.join(texts)}"
    self._within_1 = all(0 <= each <= 1 for each in mean + std)
    of_unit = "" if max_pixel_value is None else f", max_pixel_value={max_pixel_value!r}"
    super().__init__("normalize", self.text_of(tf.uint8).partition(" ")[2], f"{mean}, {std}, {dtype!r}{of_unit}")

  def text_of(self, dtype):
    unit = self._given
    if unit is None and not self._within_1 and not dtype.is_floating:
      unit = 1.0
    return self._text if unit is None or unit == 255 and dtype == tf.uint8 else f"{self._text} max_pixel_value={unit!r}"

  def highest_of(self, dtype):
    """The highest value after the division. A given `max_pixel_value` is the highest of all dtypes but uint8."""
    if self._given is None:
      return 1 if self._within_1 else 255
    return 255 / self._given if dtype in (tf.uint8, tf.string) else 1


def name_of_dtype(dtype):
  """The name of a dtype of TensorFlow, NumPy or Keras, or None."""
  return dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", None))


def checked_normalization(mean, std, max_pixel_value, whose):
  """Returns two lists of floats of equal length, one number for all channels or one for each, and a float or None."""
  if max_pixel_value is not None:
    advice = "Pass the value that becomes 1, such as 255, or leave it out."
    max_pixel_value = checked_real(f"max_pixel_value of {whose}", max_pixel_value, 1e-30, 1e30, advice)
  checked = []
  for name, values in (("mean", mean), ("std", std)):
    channels = np.atleast_1d(values).tolist() if isinstance(values, (np.ndarray, np.number)) else values
    channels = channels if isinstance(channels, (list, tuple)) else [channels]
    if not channels or not all(map(is_real, channels)):
      raise TypeError(
        f"{name} of {whose} must be a real number, or a list with one for each channel, got {values!r}. Pass Python "
        "numbers, such as 0.5."
      )
    try:
      checked.append(np.asarray(channels, np.float64))
    except OverflowError:
      raise ValueError(
        f"{name} of {whose} must be finite, got {values!r}. Check how it was computed: something overflowed."
      ) from None
  mean, std = checked
  if not np.isfinite(mean).all():
    raise ValueError(f"mean of {whose} must be finite, got {mean.tolist()}. Check how it was computed.")
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    usable = np.isfinite(std) & (std > 0) & np.isfinite(np.float32(1 / ((max_pixel_value or 1) * std)))
  if not usable.all():
    raise ValueError(
      f"std of {whose} must be above 0, finite, and not as small as 1e-38, got {std.tolist()}. Pass 1 for a channel "
      "that is not to be scaled."
    )
  for name, values in (("mean", mean), ("std", std)):
    if len(values) > _MOST_CHANNELS:
      raise ValueError(
        f"{name} of {whose} must have at most {_MOST_CHANNELS} channels, as images have, got {len(values)}. Pass one "
        "number for all channels, or one for each."
      )
  if 1 not in (len(mean), len(std)) and len(mean) != len(std):
    raise ValueError(
      f"mean and std of {whose} must have equal numbers of channels, got {len(mean)} and {len(std)}. Pass one number "
      "for all channels, or one for each."
    )
  mean, std = np.broadcast_arrays(mean, std)
  with np.errstate(over="ignore"):
    if not np.isfinite(np.float32(-mean / std)).all():
      raise ValueError(
        f"mean / std of {whose} must be within float32, got mean={mean.tolist()} and std={std.tolist()}. Pass both in "
        "the same units."
      )
  return mean.tolist(), std.tolist(), max_pixel_value


def checked_antialias(antialias, whose):
  return checked_flag(f"antialias of {whose}", antialias, "True is smoother and slower.")


def checked_size(size, whose):
  """Returns `(height, width)`; raises unless `size` is that, or one whole number for both."""
  size = size.tolist() if isinstance(size, np.ndarray) else size
  sides = size if isinstance(size, (list, tuple)) else (size, size)
  is_size = len(sides) == 2 and all(isinstance(side, numbers.Integral) and not isinstance(side, bool) for side in sides)
  if not is_size or not all(1 <= side <= LARGEST_RESIZED for side in sides):
    raise (ValueError if is_size else TypeError)(
      f"size of {whose} must be a whole number of pixels from 1 to {LARGEST_RESIZED:,}, or (height, width), got "
      f"{size!r}. Pass 224, or (192, 256)."
    )
  return tuple(map(int, sides))
