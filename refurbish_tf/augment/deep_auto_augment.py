"""Deep AutoAugment: each layer draws an operation and its magnitude from its own distribution."""
from __future__ import annotations

import functools
import math
import numbers
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from . import deep_auto_augment_policies as policies
from . import distortions
from . import final_layers
from . import layers
from .images import height_and_width
from .images import rows_of

# The fill where a crop or a cutout removes the image: the mean colour of ImageNet.
_MEAN_COLOR = np.array([125, 123, 114], np.uint8)


def deep_auto_augment_layers(policy: str) -> list[Callable[..., Any]]:
  """Returns the layers of Deep AutoAugment, each of which applies one operation drawn from its own distribution.

  >>> import tensorflow as tf
  >>> from refurbish_tf import augment
  >>> layers = augment.deep_auto_augment_layers("cifar10")
  >>> len(layers)
  6
  >>> partial_fn, final_fn = augment.split(layers, at=2)
  >>> image = tf.zeros([32, 32, 3], tf.uint8)
  >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[8, 0]).shape
  TensorShape([32, 32, 3])

  The layers draw independently, so they can be split anywhere. The published policies need no additional crop and flip:
  the later layers do mostly that, and the first one most of the distorting.

  | Operation                                      | Parameter             | From magnitude 0 to 12 | Sign   |
  | ---------------------------------------------- | --------------------- | ---------------------- | ------ |
  | identity, auto_contrast, equalize, invert      | none                  |                        |        |
  | shear_x, shear_y                               | slope                 | -0.3 to 0.3            | random |
  | translate_x, translate_y                       | fraction of a side    | -0.45 to 0.45          | random |
  | rotate                                         | degrees               | -30 to 30              | random |
  | solarize                                       | threshold, rounded up | 0 to 256               |        |
  | posterize                                      | bits, rounded down    | 4 to 8                 |        |
  | color, contrast, brightness, sharpness         | factor                | 0.1 to 1.9             |        |
  | random_flip, random_crop_4, random_cutout_16,  |                       |                        |        |
  | random_cutout_60, random_resized_crop          | none                  |                        |        |

  As in the authors' implementation, shears, translations and rotations fill with black; crops by 4 pixels and cutouts
  fill with the mean colour (125, 123, 114). A cutout is a square, one pixel wider than its name says, centred at any
  pixel of the image. A resized crop has 8 to 100 % of the area and is 3 / 4 to 4 / 3 as wide as high; one that does not
  fit is replaced by the largest in the middle. One thing differs: it is resized to the size of the image, not to 224 x
  224. Give ImageNet's policy images of the size to train with.

  Args:
    policy: "cifar10" (six layers, for CIFAR-100, too) or "imagenet" (five), the probabilities that the authors publish
      with their code, rounded to a millionth. Or a policy of your own: a list of layers, each a list of tuples
      `(operation, magnitude, probability)`, with a name from the table, a real number from 0 to 12 or None where there
      is none, and a number above 0. The probabilities of a layer add up to 1.

  Returns:
    A list of functions `layer(image, seed)` like the one that `rand_augment_layer` returns.

  Raises:
    TypeError: `policy` is neither a string nor a list or tuple.
    ValueError: there is no such policy, or a policy of your own is not of this form.

  Implements Zheng et al., *Deep AutoAugment*, ICLR 2022, section 3, with the policies of their section 4.
  """
  if isinstance(policy, str):
    return _published_layers(policy)
  if not isinstance(policy, (list, tuple)):
    raise TypeError(
        f"policy of deep_auto_augment_layers must be 'cifar10', 'imagenet' or a list of layers, got {policy!r}. Pass "
        "the name of the data set that is most like yours.")
  if not policy:
    raise ValueError(
        f"policy of deep_auto_augment_layers must have at least one layer, got {policy!r}. Without layers, leave the "
        "augmentation out.")
  return [_layer(outcomes, position) for position, outcomes in enumerate(policy)]


class _Operation(NamedTuple):
  """An operation, with the values of its parameter, if it has one, at the magnitudes 0 and 12."""
  function: Callable  # (image, parameter, seed) -> image
  lowest: Optional[float] = None
  highest: Optional[float] = None
  signed: bool = False
  whole: Callable = float


_LARGEST_MAGNITUDE = 12


def _fixed(distortion):
  return _Operation(lambda image, parameter, seed: distortion(image))


def _graded(distortion, lowest, highest, **keywords):
  return _Operation(lambda image, parameter, seed: distortion(image, parameter), lowest, highest, **keywords)


def _mirrored(distortion, largest):
  distortion = functools.partial(distortion, fill=0)
  return _Operation(lambda image, parameter, seed: distortion(image, parameter), -largest, largest, signed=True)


def _random(function):
  # Another seed than the one that drew the operation, so that the draws are independent.
  return _Operation(lambda image, parameter, seed: function(image, tf.bitwise.invert(seed)))


def _crop(image, seed, padding):
  """Pads with the mean colour and crops back at a random place."""
  height, width = height_and_width(image)
  color = _colors(width)
  # The colour is subtracted, as padding with zeros is cheap, and added again. uint8 sums wrap around.
  padded = tf.pad(rows_of(image) - color, [[padding, padding], [3 * padding, 3 * padding]])
  corner = layers.draw([2], 2 * padding + 1, seed) * [1, 3]
  return tf.reshape(tf.slice(padded, corner, [height, 3 * width]) + color, tf.shape(image))


def _cutout(image, seed, width):
  """Puts a square of the mean colour over a random place."""
  height, image_width = height_and_width(image)
  draws = layers.draw([2], 2**31 - 1, seed)
  inside_rows = tf.abs(tf.range(height) - draws[0] % height) <= width // 2
  inside_columns = tf.abs(tf.range(image_width) - draws[1] % image_width) <= width // 2
  inside_columns = tf.repeat(tf.cast(inside_columns, tf.uint8), 3)
  inside = tf.cast(inside_rows, tf.uint8)[:, tf.newaxis] * inside_columns
  rows = rows_of(image)
  return tf.reshape(rows + inside * (_colors(image_width) - rows), tf.shape(image))


def _colors(width):
  return tf.tile(_MEAN_COLOR, [width])


def _resized_crop(image, seed):
  """Resizes a random part of the image to the image's size, by bicubic interpolation (`Image.resize`).

  Pillow's values may differ, as it rounds and clips after each of the two directions.
  """
  size = tf.cast(tf.shape(image)[:2], tf.float32)
  height, width = size[0], size[1]
  draws = tf.raw_ops.StatelessRandomUniform(shape=[4], seed=seed)
  area = height * width * (0.08 + 0.92 * draws[0])
  aspect_ratio = tf.exp(math.log(4 / 3) * (2 * draws[1] - 1))
  drawn = tf.round(tf.sqrt(tf.stack([area / aspect_ratio, area * aspect_ratio])))
  fits = tf.reduce_all((drawn <= size) & (drawn > 0))
  largest = tf.minimum(size, tf.round(tf.stack([width, height]) * (4 / 3)))
  part = tf.where(fits, drawn, largest)
  corner = tf.floor(tf.where(fits, draws[2:], 0.5) * (size - part + tf.cast(fits, tf.float32)))
  scale = size / part
  resized = tf.raw_ops.ScaleAndTranslate(
      images=image[tf.newaxis], size=tf.shape(image)[:2], scale=scale, translation=-corner * scale,
      kernel_type="keyscubic", antialias=True)[0]
  return tf.cast(tf.clip_by_value(tf.floor(resized + 0.5), 0.0, 255.0), tf.uint8)


_OPERATIONS = {
    "identity": _fixed(distortions.identity),
    "shear_x": _mirrored(distortions.shear_x, 0.3),
    "shear_y": _mirrored(distortions.shear_y, 0.3),
    "translate_x": _mirrored(distortions.translate_x, 0.45),
    "translate_y": _mirrored(distortions.translate_y, 0.45),
    "rotate": _mirrored(distortions.rotate, 30.0),
    "auto_contrast": _fixed(distortions.auto_contrast),
    "invert": _fixed(distortions.invert),
    "equalize": _fixed(distortions.equalize),
    "solarize": _graded(distortions.solarize, 0.0, 256.0, whole=math.ceil),
    "posterize": _graded(distortions.posterize, 4.0, 8.0, whole=math.floor),
    "contrast": _graded(distortions.contrast, 0.1, 1.9),
    "color": _graded(distortions.color, 0.1, 1.9),
    "brightness": _graded(distortions.brightness, 0.1, 1.9),
    "sharpness": _graded(distortions.sharpness, 0.1, 1.9),
    "random_flip": _random(final_layers.random_flip()),
    "random_crop_4": _random(functools.partial(_crop, padding=4)),
    "random_cutout_16": _random(functools.partial(_cutout, width=16)),
    "random_cutout_60": _random(functools.partial(_cutout, width=60)),
    "random_resized_crop": _random(_resized_crop),
}


@functools.lru_cache
def _graph_function(name):
  """Returns the operation as a graph function.

  All magnitudes and all layers share it, with the parameter as an input: there would be 130 functions otherwise, and
  each costs one to two milliseconds whenever an iterator is made.
  """
  return tf.function(_OPERATIONS[name].function, autograph=False)


def _published_layers(name):
  tables = {"cifar10": policies.CIFAR, "imagenet": policies.IMAGENET}
  if name not in tables:
    raise ValueError(
        f"policy of deep_auto_augment_layers must be one of {sorted(tables)}, or a list of layers, got {name!r}. Pass "
        "the data set that is most like yours: 'cifar10' for small images, else 'imagenet'.")
  return [_layer(_outcomes(table), position) for position, table in enumerate(tables[name])]


def _outcomes(table):
  """Returns a list of `(operation, magnitude, probability)` for a layer of a published policy."""
  outcomes = []
  for name, millionths in table.items():
    if isinstance(millionths, int):
      outcomes.append((name, None, millionths))
    else:
      unchanged = 12 if name in ("solarize", "posterize") else 6
      magnitudes = [magnitude for magnitude in range(_LARGEST_MAGNITUDE + 1) if magnitude != unchanged]
      outcomes += [(name, *both) for both in zip(magnitudes, millionths)]
  total = sum(millionths for _, _, millionths in outcomes)  # Not exactly a million, because of rounding.
  return [(name, magnitude, millionths / total) for name, magnitude, millionths in outcomes if millionths]


def _layer(outcomes, position):
  names, parameters, probabilities = [], [], []
  for name, magnitude, probability in _checked_outcomes(outcomes, position):
    parameter = _parameter(_OPERATIONS[name], magnitude)
    signed = _OPERATIONS[name].signed
    for value in (parameter, -parameter) if signed else (parameter,):
      names.append(name)
      parameters.append(value)
      probabilities.append(probability / (2 if signed else 1))
  different_names = list(dict.fromkeys(names))
  choices = [_OPERATIONS[name].function for name in different_names]
  graph_functions = [_graph_function(name) for name in different_names]
  numbers_of_choices = np.array([different_names.index(name) for name in names], np.int32)
  parameters = np.array(parameters, np.float64)
  # An outcome has the whole numbers from the edge before it up to its own.
  end = 2**31 - 1
  edges = np.floor(np.cumsum(probabilities)[:-1] / sum(probabilities) * end).astype(np.int32)

  @tf.autograph.experimental.do_not_convert
  def deep_auto_augment(image, seed):
    image = layers.checked_image(image, "deep_auto_augment_layers")
    seed = layers.checked_seed(seed, "deep_auto_augment_layers")
    outcome = tf.raw_ops.UpperBound(sorted_inputs=edges[np.newaxis], values=layers.draw([1, 1], end, seed))[0, 0]
    return layers.switch(
        tf.gather(numbers_of_choices, outcome), choices, graph_functions, image, tf.gather(parameters, outcome), seed)

  # For the table of `rtf.recommend_split`.
  deep_auto_augment.__name__ = f"deep_auto_augment_{position + 1}"
  return deep_auto_augment


def _parameter(operation, magnitude):
  if magnitude is None:
    return 0.0
  share = magnitude / _LARGEST_MAGNITUDE
  return float(operation.whole(operation.lowest + (operation.highest - operation.lowest) * share))


def _checked_outcomes(outcomes, position):
  where = f"policy of deep_auto_augment_layers, layer {position}:"
  if not isinstance(outcomes, (list, tuple)) or not outcomes:
    raise ValueError(
        f"{where} {outcomes!r}; it must be a list of tuples (operation, magnitude, probability), at least one. Pass "
        "[('identity', None, 1.0)] for a layer that does nothing.")
  for outcome in outcomes:
    if not isinstance(outcome, (list, tuple)) or len(outcome) != 3:
      raise ValueError(
          f"{where} {outcome!r}; it must be (operation, magnitude, probability). Pass None for an operation without a "
          "magnitude.")
    name, magnitude, probability = outcome
    if not isinstance(name, str) or name not in _OPERATIONS:
      raise ValueError(
          f"{where} the operation {name!r}; it must be one of {sorted(_OPERATIONS)}. For another one write your own "
          "layer: compose and split take any function layer(image, seed).")
    if _OPERATIONS[name].lowest is None:
      if magnitude is not None:
        raise ValueError(f"{where} {outcome!r}; {name} has no magnitude. Pass None in its place.")
    elif not _is_real(magnitude) or not 0 <= magnitude <= _LARGEST_MAGNITUDE:
      raise ValueError(
          f"{where} {outcome!r}; the magnitude of {name} must be a real number from 0 to {_LARGEST_MAGNITUDE}. Pass 6 "
          "for the middle of its range.")
    if not _is_real(probability) or not 0 < probability <= 1:
      raise ValueError(
          f"{where} {outcome!r}; the probability must be a number above 0 and at most 1. Leave out operations that "
          "never happen.")
  total = sum(probability for _, _, probability in outcomes)
  if abs(total - 1) > 1e-3:
    raise ValueError(
        f"{where} its probabilities must add up to 1, got a sum of {total:g}. Divide each of them by {total:g}.")
  return outcomes


def _is_real(value):
  return isinstance(value, numbers.Real) and not isinstance(value, bool)
