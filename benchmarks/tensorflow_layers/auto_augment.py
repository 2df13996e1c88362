"""AutoAugment as TensorFlow operations."""

import functools

import numpy as np
import tensorflow as tf

from refurbish_tf.augment.auto_augment import CELLS
from refurbish_tf.augment.auto_augment import POLICIES
from refurbish_tf.augment.native_layers import HalfAugmented
from . import choices


def auto_augment(policy):
  first_operations, second_operations = _operations(policy)

  @tf.autograph.experimental.do_not_convert
  def first(image, seed):
    cell = choices.draw([], len(POLICIES[policy]) * CELLS, seed)
    return HalfAugmented(first_operations(cell, tf.convert_to_tensor(image)), cell // CELLS)

  @tf.autograph.experimental.do_not_convert
  def second(image, seed):
    image, sub_policy = image
    return second_operations(sub_policy * CELLS + choices.draw([], CELLS, seed), image)

  first.hands_on = second.takes_over = policy
  return [first, second]


@functools.lru_cache
def _operations(policy):
  """Returns the first and the second operations of the policy, as functions of a cell and an image.

  A sub-policy has `CELLS` equally likely cells. Each is an operation in one direction, or no operation.
  """
  choices_at = [choices.distortions_at(magnitude / 10) for magnitude in range(10)]
  graph_functions = {}

  def operations(position):
    functions, cells = [], []
    for sub_policy in POLICIES[policy]:
      name, tenths, *magnitude = sub_policy[position]
      identity = choices_at[0]["identity"][0]
      for choice in choices_at[magnitude[0] if magnitude else 0][name]:
        cells += [choice] * tenths
      cells += [identity] * (CELLS - 2 * tenths)
    functions = list(dict.fromkeys(cells))
    numbers = np.array([functions.index(choice) for choice in cells], np.int32)
    for choice in functions:
      graph_functions.setdefault(choice, tf.function(choice, autograph=False))
    shared = [graph_functions[choice] for choice in functions]
    return lambda cell, image: choices.switch(tf.gather(numbers, cell), functions, shared, image)

  return operations(0), operations(1)
