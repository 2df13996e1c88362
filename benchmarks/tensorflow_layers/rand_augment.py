"""RandAugment as TensorFlow operations, in a graph and for images of a known size."""

import functools

import tensorflow as tf

from . import distortions


def rand_augment(num_ops=2, magnitude=9):
  return [_layer(magnitude) for _ in range(num_ops)]


def _layer(magnitude):
  choices = _choices(magnitude / 10)

  @tf.autograph.experimental.do_not_convert
  def layer(image, seed):
    specification = tf.TensorSpec(image.shape, image.dtype)
    # One operation, while `tf.random.stateless_uniform` takes several and chooses its algorithm by the device.
    chosen = tf.raw_ops.StatelessRandomUniformInt(
      shape=tf.constant([], tf.int32), seed=seed, minval=0, maxval=len(choices)
    )
    # Not `tf.switch_case`, which inlines its branches into the caller, where each operation of the other branches is
    # still visited. At 32 x 32 that takes longer than the chosen distortion.
    return tf.raw_ops.StatelessCase(
      branch_index=chosen,
      input=[image],
      Tout=[image.dtype],
      output_shapes=[image.shape],
      branches=[choice.get_concrete_function(specification) for choice in choices],
    )[0]

  return layer


@functools.lru_cache
def _choices(level):
  """Returns the graph functions of an image to draw from, for a level from 0 to 1.

  There are two for every distortion, which differ in the sign if it has one. Because the sign is part of the choice, it
  needs no draw of its own, and parameters are constants. Layers of one magnitude share the functions, because each
  costs one to two milliseconds whenever an iterator is made.
  """
  factor = 0.1 + 1.8 * level
  unsigned = {
    "identity": (),
    "auto_contrast": (),
    "equalize": (),
    "color": (factor,),
    "contrast": (factor,),
    "brightness": (factor,),
    "sharpness": (factor,),
    "solarize": (int(256 * level),),
    "posterize": (max(1, int(4 * level)),),
  }
  # AutoAugment moves images of 331 x 331 by up to 150 pixels. A fraction means the same at every size.
  signed = {"rotate": 30, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 150 / 331, "translate_y": 150 / 331}
  graph_function = lambda name, *parameter: tf.function(
    lambda image: getattr(distortions, name)(image, *parameter), autograph=False
  )
  functions = [graph_function(name, *parameter) for name, parameter in unsigned.items()]
  return functions * 2 + [
    graph_function(name, sign * largest * level) for sign in (1, -1) for name, largest in signed.items()
  ]
