"""Counts the outcomes of a layer: how many different outputs it has for one input."""

import collections
import hashlib
import math

import tensorflow as tf

# Outcomes are counted with at least this many seeds. If no two draws are the same, there are hundreds of outcomes.
FEWEST_DRAWS = 64
# A layer without a seed mostly has one outcome; a few draws show whether it is random in another way.
FEWEST_WITHOUT_SEED = 8
# If no two of these draws are the same, there are many thousands of outcomes.
UNBOUNDED_DRAWS = 1024
# All outcomes count as seen when each was drawn this often.
EACH_DRAWN = 4
# Outcomes count as equally likely if their effective number is more than this fraction of their number.
ALMOST_EQUAL = 0.8
# The most draws. Further outcomes make no difference to a training run of hundreds of epochs.
MOST_DRAWS = 4096


def count_distinct(draws, fewest, is_time_up):
  """Returns how many values an iterator of draws can yield, whether there may be more, and the effective number.

  All count as seen when each has come several times; if no two draws are the same, the number is unbounded. If as many
  values as the effective number were equally likely, two draws would be the same as often as here.
  """
  seen, number = collections.Counter(), 0
  end = fewest
  for value in draws:
    number += 1
    seen[value] += 1
    if number < end:
      continue
    time_is_up = is_time_up()
    if len(seen) == number and (number >= UNBOUNDED_DRAWS or time_is_up and number >= FEWEST_DRAWS):
      return math.inf, False, math.inf
    if time_is_up or number >= MOST_DRAWS or min(seen.values()) >= EACH_DRAWN:
      break
    end += fewest
  all_seen = min(seen.values()) >= EACH_DRAWN
  same = sum(times * (times - 1) for times in seen.values())
  effective = number * (number - 1) / same if same else math.inf
  # Values that are this close to equally likely may well be equally likely.
  if effective > ALMOST_EQUAL * len(seen):
    effective = len(seen)
  return len(seen), not all_seen, effective


def contents(element):
  """The tensors of an element as bytes."""
  return [tf.io.serialize_tensor(tensor).numpy() for tensor in tf.nest.flatten(element, expand_composites=True)]


def digest(element):
  """A digest by which outputs are compared."""
  return hashlib.blake2b(b"".join(contents(element)), digest_size=16).digest()
