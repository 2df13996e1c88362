"""Shared by the policies: draws, and the choice of a function."""

import functools

import tensorflow as tf

from . import distortions

# AutoAugment moves images of 331 x 331 by up to 150 pixels. A fraction means the same at every size.
_LARGEST_TRANSLATION = 150 / 331


def switch(chosen, choices, graph_functions, image, *rest):
  """Returns the result of function number `chosen` for the image and the rest.

  `graph_functions` are the same functions as `choices`, as `tf.function`s, so that layers can share them.
  """
  if tf.executing_eagerly():
    return choices[int(chosen)](image, *rest)
  # Not `tf.switch_case`, which inlines its branches into the caller, where each operation of the other branches is
  # still visited. At 32 x 32 that takes longer than the chosen distortion.
  inputs = [image, *rest]
  specifications = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
  return tf.raw_ops.StatelessCase(
    branch_index=chosen,
    input=inputs,
    Tout=[image.dtype],
    output_shapes=[image.shape],
    branches=[function.get_concrete_function(*specifications) for function in graph_functions],
  )[0]


def distortions_at(level):
  """Returns a dict from name to the distortion at a level from 0 to 1, in either direction.

  The values are pairs of functions of an image, one for each direction. If there is only one, both are the same.
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
      functools.partial(getattr(distortions, name), **{keyword: sign * largest * level}) for sign in (1, -1)
    )
  return pairs


def draw(shape, end, seed):
  """Returns int32 numbers drawn uniformly from 0 to `end - 1`. `shape` is a list or a tensor.

  One operation, while `tf.random.stateless_uniform` takes several and chooses its algorithm by the device.
  """
  shape = tf.convert_to_tensor(shape, tf.int32)
  return tf.raw_ops.StatelessRandomUniformInt(shape=shape, seed=seed, minval=0, maxval=end)
