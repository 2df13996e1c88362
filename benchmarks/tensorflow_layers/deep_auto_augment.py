"""Deep AutoAugment as TensorFlow operations."""

import functools
import math
from typing import Callable, NamedTuple

import numpy as np
import tensorflow as tf

from refurbish_tf.augment import final_layers
from refurbish_tf.augment.deep_auto_augment import outcomes_of
from . import distortions
from . import choices
from .images import height_and_width
from .images import rows_of

# The colour of pixels that a crop or a cutout removes: the mean colour of ImageNet.
_MEAN_COLOR = np.array([125, 123, 114], np.uint8)


def deep_auto_augment(policy):
  return [_layer(outcomes) for outcomes in outcomes_of(policy)]


class _Operation(NamedTuple):
  """An operation, with the values of its parameter, if it has one, at the magnitudes 0 and 12."""

  function: Callable  # (image, parameter, seed) -> image
  lowest: float | None = None
  highest: float | None = None
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
  # A different seed from the one that drew the operation, so that the draws are independent.
  return _Operation(lambda image, parameter, seed: function(image, tf.bitwise.invert(seed)))


def _crop(image, seed, padding):
  """Pads with the mean colour and crops back at a random place."""
  height, width = height_and_width(image)
  color = _colors(width)
  # The colour is subtracted and added again, because padding with zeros is cheap. uint8 sums wrap around.
  padded = tf.pad(rows_of(image) - color, [[padding, padding], [3 * padding, 3 * padding]])
  corner = choices.draw([2], 2 * padding + 1, seed) * [1, 3]
  return tf.reshape(tf.slice(padded, corner, [height, 3 * width]) + color, tf.shape(image))


def _cutout(image, seed, width):
  """Puts a square of the mean colour over a random place."""
  height, image_width = height_and_width(image)
  draws = choices.draw([2], 2**31 - 1, seed)
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

  Pillow's values may differ, because it rounds and clips after each of the two directions.
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
    images=image[tf.newaxis],
    size=tf.shape(image)[:2],
    scale=scale,
    translation=-corner * scale,
    kernel_type="keyscubic",
    antialias=True,
  )[0]
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

  All magnitudes and all layers share it, with the parameter as an input. Otherwise there would be 130 functions, each
  of which costs one to two milliseconds whenever an iterator is made.
  """
  return tf.function(_OPERATIONS[name].function, autograph=False)


def _layer(outcomes):
  names, parameters, probabilities = [], [], []
  for name, magnitude, probability in outcomes:
    parameter = _parameter(_OPERATIONS[name], magnitude)
    signed = _OPERATIONS[name].signed
    for value in (parameter, -parameter) if signed else (parameter,):
      names.append(name)
      parameters.append(value)
      probabilities.append(probability / (2 if signed else 1))
  different_names = list(dict.fromkeys(names))
  functions = [_OPERATIONS[name].function for name in different_names]
  graph_functions = [_graph_function(name) for name in different_names]
  numbers_of_choices = np.array([different_names.index(name) for name in names], np.int32)
  parameters = np.array(parameters, np.float64)
  # A draw chooses outcome i if it is at least edges[i - 1] and less than edges[i].
  end = 2**31 - 1
  edges = np.floor(np.cumsum(probabilities)[:-1] / sum(probabilities) * end).astype(np.int32)

  @tf.autograph.experimental.do_not_convert
  def layer(image, seed):
    image, seed = tf.convert_to_tensor(image), tf.convert_to_tensor(seed)
    outcome = tf.raw_ops.UpperBound(sorted_inputs=edges[np.newaxis], values=choices.draw([1, 1], end, seed))[0, 0]
    return choices.switch(
      tf.gather(numbers_of_choices, outcome), functions, graph_functions, image, tf.gather(parameters, outcome), seed
    )

  return layer


def _parameter(operation, magnitude):
  if magnitude is None:
    return 0.0
  share = magnitude / _LARGEST_MAGNITUDE
  return float(operation.whole(operation.lowest + (operation.highest - operation.lowest) * share))
