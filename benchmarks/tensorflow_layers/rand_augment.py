"""RandAugment as TensorFlow operations."""

import functools

import tensorflow as tf

from . import choices


def rand_augment(num_ops=2, magnitude=9):
  return [_layer(magnitude) for _ in range(num_ops)]


def _layer(magnitude):
  functions, graph_functions = _choices(magnitude / 10)

  @tf.autograph.experimental.do_not_convert
  def layer(image, seed):
    image, seed = tf.convert_to_tensor(image), tf.convert_to_tensor(seed)
    return choices.switch(choices.draw([], len(functions), seed), functions, graph_functions, image)

  return layer


@functools.lru_cache
def _choices(level):
  """Returns the functions of an image to draw from, as Python functions and as graph functions.

  There are two for every distortion, which differ in the sign if it has one. Because the sign is part of the choice, it
  needs no draw of its own, and parameters are constants. Layers of one magnitude share the functions, because each
  costs one to two milliseconds whenever an iterator is made.
  """
  pairs = choices.distortions_at(level)
  del pairs["invert"]
  unsigned = [positive for positive, negative in pairs.values() if positive is negative]
  signed = [pair for pair in pairs.values() if pair[0] is not pair[1]]
  functions = unsigned + unsigned + [positive for positive, _ in signed] + [negative for _, negative in signed]
  graph_functions = {choice: tf.function(choice, autograph=False) for choice in functions}
  return functions, [graph_functions[choice] for choice in functions]
