"""Augmentation layers: functions `layer(image, seed)` whose randomness comes from `seed` alone."""
from __future__ import annotations

import functools
import math
import numbers
import operator
import sys
from typing import Any, Callable

import tensorflow as tf

from refurbish_tf._internal import native
from . import distortions

# The version of what layers draw and do: raise it whenever a layer, or `compose`, returns another result for the same
# image and seed. Stores on disk keep results for the next run, which must not mix them with other ones.
DRAWS_VERSION = 2
# AutoAugment moves images of 331 x 331 by up to 150 pixels. A fraction means the same at every size.
_LARGEST_TRANSLATION = 150 / 331
# Larger than any image that is worth cropping.
_LARGEST_PADDING = 16_383


def rand_augment_layer(magnitude: float = 9) -> Callable[..., Any]:
  """Returns a layer that applies one of RandAugment's 14 distortions, each with the same probability.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> layer = augment.rand_augment_layer(magnitude=9)
  >>> layer(tf.zeros([32, 32, 3], tf.uint8), seed=[7, 0]).shape
  TensorShape([32, 32, 3])

  Two of them in a row are the RandAugment (N = 2, M = 9) of the papers; see `compose`.

  `magnitude`, the papers' M, sets how far every distortion goes, as in the reference implementation of RandAugment:

  | Distortion                             | Parameter                      | At M = 9       | Sign   |
  | -------------------------------------- | ------------------------------ | -------------- | ------ |
  | identity, auto_contrast, equalize      | none                           |                |        |
  | rotate                                 | 30 degrees * M / 10            | 27 degrees     | random |
  | shear_x, shear_y                       | 0.3 * M / 10                   | 0.27           | random |
  | translate_x, translate_y               | 150 / 331 of the side * M / 10 | 41 % of a side | random |
  | color, contrast, brightness, sharpness | factor 0.1 + 1.8 * M / 10      | 1.72           |        |
  | solarize                               | threshold int(256 * M / 10)    | 230            |        |
  | posterize                              | bits max(1, int(4 * M / 10))   | 3              |        |

  As there, the factor grows with M from weakening (0) over no change (5) to strengthening (10) and has no random
  direction, and solarize and posterize get milder as M grows. Two things differ: translation is proportional to the
  image, not 100 pixels for every size, and posterize keeps at least one bit, while the reference keeps none below M =
  2.5 and returns a black image.

  Args:
    magnitude: a real number from 0 to 10. The papers take 9 for ImageNet and 10 for CIFAR-10.

  Returns:
    A function `layer(image, seed)` of an image, uint8 `[height, width, 3]` with sides of 1 to 32767 pixels, known while
    tracing or not, and a seed, int32 or int64 `[2]` as for `tf.random.stateless_uniform`. It returns uint8
    `[height, width, 3]` with the static shape of the image, the same for the same image and seed. It raises `TypeError`
    for another dtype and `ValueError` for another shape.

  Raises:
    TypeError: `magnitude` is not a real number.
    ValueError: `magnitude` is not between 0 and 10.

  Implements Cubuk et al., *RandAugment*, NeurIPS 2020, section 3. It is the expensive layer that Lee et al.,
  *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 7.1, put into the partial augmentation.
  """
  choices, graph_functions = _choices(_checked_magnitude(magnitude) / 10)

  @tf.autograph.experimental.do_not_convert
  def rand_augment(image, seed):
    image, seed = checked_image(image, "rand_augment_layer"), checked_seed(seed, "rand_augment_layer")
    return switch(draw([], len(choices), seed), choices, graph_functions, image)

  return rand_augment


def switch(chosen, choices, graph_functions, image, *rest):
  """Returns the result of function number `chosen` for the image and the rest.

  `graph_functions` are the same functions as `choices`, as `tf.function`s, so that layers can share them.
  """
  if tf.executing_eagerly():
    return choices[int(chosen)](image, *rest)
  # Like `tf.switch_case`, which however inlines its branches into the caller, where each operation of the branches not
  # taken is still visited. At 32 x 32 that takes longer than the chosen distortion.
  inputs = [image, *rest]
  specifications = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
  return tf.raw_ops.StatelessCase(
      branch_index=chosen, input=inputs, Tout=[image.dtype], output_shapes=[image.shape],
      branches=[function.get_concrete_function(*specifications) for function in graph_functions])[0]


@tf.autograph.experimental.do_not_convert
def seed_at(seed: Any, index: Any) -> tf.Tensor:
  """Returns the seed at `index` of many independent seeds derived from `seed`.

  >>> from refurbish_tf import augment
  >>> augment.seed_at([7, 0], 3).numpy().tolist()
  [-171796697, 266284296]
  >>> augment.seed_at([7, 0], [0, 1, 2]).shape
  TensorShape([3, 2])

  A layer treats image b of a batch like a single image with `seed_at(seed, b)`, and `compose` gives layer p the seed
  `seed_at(seed, p)`.

  Args:
    seed: int32 or int64 `[2]`, as for `tf.random.stateless_uniform`.
    index: a whole number of at least 0, or `[n]` of them, of any integer dtype.

  Returns:
    int32 `[2]`, or `[n, 2]`. Different for different indices.

  Raises:
    TypeError: the seed or the index has another dtype.
    ValueError: they have another shape, or the index is a negative Python number.
  """
  seed, index = checked_seed(seed, "seed_at"), tf.convert_to_tensor(index)
  if not index.dtype.is_integer:
    raise TypeError(
        f"index of seed_at must have an integer dtype, got dtype {index.dtype.name}. Pass the position of an image in "
        "its batch, such as 3 or tf.range(128).")
  if index.shape.rank not in (None, 0, 1):
    raise ValueError(
        f"index of seed_at must be [] or [n], got shape {index.shape}. Pass one position, or a list of them.")
  known = tf.get_static_value(index)
  if known is not None and (known < 0).any():
    raise ValueError(
        f"index of seed_at must be at least 0, got {known.tolist()}. Pass the position of an image in its batch, or of "
        "a layer among its layers.")
  return native.ops().refurbish_tf_seed_at(seed=seed, index=tf.cast(index, tf.int64))


def checked_seed(seed, whose):
  """Returns `seed` as a tensor; raises unless `tf.random.stateless_*` would take it."""
  seed = tf.convert_to_tensor(seed)
  if seed.dtype not in (tf.int32, tf.int64):
    raise TypeError(
        f"seed of {whose} must be int32 or int64, got dtype {seed.dtype.name}. Pass a seed as for "
        "tf.random.stateless_uniform, such as [7, 0].")
  if not seed.shape.is_compatible_with([2]):
    raise ValueError(
        f"seed of {whose} must be [2], got shape {seed.shape}. Pass a seed as for tf.random.stateless_uniform, such as "
        "[7, 0].")
  return seed


@functools.lru_cache
def _choices(level):
  """Returns the functions of an image to draw from, as Python functions and as graph functions.

  There are two for every distortion, which differ in the sign if there is one. With the sign as part of the choice it
  needs no draw, and parameters are constants. Layers of one magnitude share the functions, because each costs one to
  two milliseconds whenever an iterator is made.
  """
  pairs = distortions_at(level)
  del pairs["invert"]
  unsigned = [positive for positive, negative in pairs.values() if positive is negative]
  signed = [pair for pair in pairs.values() if pair[0] is not pair[1]]
  choices = unsigned + unsigned + [positive for positive, _ in signed] + [negative for _, negative in signed]
  graph_functions = {choice: tf.function(choice, autograph=False) for choice in choices}
  return choices, [graph_functions[choice] for choice in choices]


def distortions_at(level):
  """Returns a dict from name to the distortion at a level from 0 to 1, in either direction.

  The values are pairs of functions of an image, twice the same function if there is only one direction.
  """
  factor = 0.1 + 1.8 * level
  parameters = {
      "identity": {},
      "auto_contrast": {},
      "equalize": {},
      "invert": {},
      "color": {"factor": factor},
      "contrast": {"factor": factor},
      "brightness": {"factor": factor},
      "sharpness": {"factor": factor},
      "solarize": {"threshold": int(256 * level)},
      "posterize": {"bits": max(1, int(4 * level))},
  }
  signed = {
      "rotate": ("degrees", 30),
      "shear_x": ("slope", 0.3),
      "shear_y": ("slope", 0.3),
      "translate_x": ("fraction", _LARGEST_TRANSLATION),
      "translate_y": ("fraction", _LARGEST_TRANSLATION),
  }
  pairs = {}
  for name, keywords in parameters.items():
    pairs[name] = (functools.partial(getattr(distortions, name), **keywords),) * 2
  for name, (keyword, largest) in signed.items():
    pairs[name] = tuple(
        functools.partial(getattr(distortions, name), **{keyword: sign * largest * level}) for sign in (1, -1))
  return pairs


def draw(shape, end, seed):
  """Returns int32 numbers drawn uniformly from 0 to `end - 1`. `shape` is a list or a tensor.

  One operation, while `tf.random.stateless_uniform` takes several and chooses its algorithm by the device.
  """
  shape = tf.convert_to_tensor(shape, tf.int32)
  return tf.raw_ops.StatelessRandomUniformInt(shape=shape, seed=seed, minval=0, maxval=end)


def checked_image(image, whose):
  """Returns `image` as a tensor; raises unless a layer can take it."""
  image = tf.convert_to_tensor(image)
  if image.dtype != tf.uint8:
    raise TypeError(
        f"image of {whose} must be uint8, got dtype {image.dtype.name}. Put the layer before any conversion to float, "
        "or convert with tf.cast(image, tf.uint8).")
  if not image.shape.is_compatible_with([None, None, 3]):
    raise ValueError(
        f"image of {whose} must be [height, width, 3], got shape {image.shape}. Decode images with channels=3, and put "
        "the layer before batch.")
  if image.shape.rank is None or image.shape[2] is None:
    image = tf.ensure_shape(image, [None, None, 3])
  return image


def _checked_magnitude(magnitude):
  if isinstance(magnitude, bool) or not isinstance(magnitude, numbers.Real):
    raise TypeError(
        f"magnitude of rand_augment_layer must be a real number from 0 to 10, got {magnitude!r}. Pass a Python number, "
        "such as 9.")
  if not 0 <= magnitude <= 10:
    raise ValueError(
        f"magnitude of rand_augment_layer must be a real number from 0 to 10, got {magnitude!r}. Pass 9 for the "
        "strength that the papers use for ImageNet, 10 for that for CIFAR-10.")
  return float(magnitude)


def checked_padding(padding, whose):
  """Returns `padding` as a Python integer; raises unless it is a whole number from 0 to 16,383."""
  if isinstance(padding, bool) or not isinstance(padding, numbers.Integral):
    raise TypeError(
        f"padding of {whose} must be a whole number of pixels, at least 0, got {padding!r}. Pass a Python integer, "
        "such as 4.")
  if padding < 0:
    raise ValueError(
        f"padding of {whose} must be a whole number of pixels, at least 0, got {padding!r}. Pass 0 for a crop that "
        "changes nothing.")
  if padding > _LARGEST_PADDING:
    raise ValueError(
        f"padding of {whose} must be a whole number of pixels, at most {_LARGEST_PADDING:,}, got {padding!r}. A "
        "padding beyond the size of the image mostly yields black ones.")
  return operator.index(padding)


def checked_range(whose, name, values, highest):
  """Returns `values` as two floats; raises unless they are above 0, at most `highest` and in order."""
  allowed = f"two numbers above 0{'' if highest == math.inf else f' and at most {highest}'}, the second not the smaller one"
  is_pair = isinstance(values, (list, tuple)) and len(values) == 2
  if not is_pair or any(isinstance(value, bool) or not isinstance(value, numbers.Real) for value in values):
    raise TypeError(
        f"{name} of {whose} must be {allowed}, got {values!r}. Leave it out for that of Inception.")
  low, high = map(float, values)
  # The op takes smaller, denormal numbers for 0.
  if not sys.float_info.min <= low <= high <= highest or math.isinf(high):
    raise ValueError(
        f"{name} of {whose} must be {allowed}, got {values!r}. Leave it out for that of Inception.")
  return low, high
