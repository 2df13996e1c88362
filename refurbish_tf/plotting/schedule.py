"""The seeds of a few samples, as `cc/plan/random.h` makes them."""

import numpy as np

PARTIAL_FN, FINAL_FN = 4, 5
_FIRST, _SECOND, _MASK = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def _mix(word):
  """The finalizer of SplitMix64."""
  word = (word + 0x9E3779B97F4A7C15) & _MASK
  word = (word ^ word >> 30) * _FIRST & _MASK
  word = (word ^ word >> 27) * _SECOND & _MASK
  return word ^ word >> 31


def _key(seed, purpose):
  return _mix(_mix(_mix(seed & _MASK) ^ purpose))


def seed_of(seed, purpose, counter, index):
  """The seed that a function is given for a sample. The counter is the generation or the epoch."""
  word = _mix((index << 32 | counter) ^ _key(seed, purpose))
  return np.uint32([word >> 32, word & 2**32 - 1]).astype(np.int32)


def index_of(seed, purpose, given):
  """The number of the sample for which `seed_of` has made a seed."""
  first, second = (int(number) & 2**32 - 1 for number in given)
  word = first << 32 | second
  # The inverse of `_mix`.
  word = (word ^ word >> 31 ^ word >> 62) * pow(_SECOND, -1, 2**64) & _MASK
  word = (word ^ word >> 27 ^ word >> 54) * pow(_FIRST, -1, 2**64) & _MASK
  word = (word ^ word >> 30 ^ word >> 60) - 0x9E3779B97F4A7C15 & _MASK
  return (word ^ _key(seed, purpose)) >> 32
