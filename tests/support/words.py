"""The random numbers of a seed, from which layers compute their draws."""

import numpy as np

BITS = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
# Makes the random numbers of a seed independent of the seeds derived from it.
WORDS = 0x6A09E667F3BCC909


def _mix(x):
  x ^= x >> 30
  x = x * 0xBF58476D1CE4E5B9 & BITS
  x ^= x >> 27
  x = x * 0x94D049BB133111EB & BITS
  return x ^ x >> 31


def _key(seed):
  first, second = (int(number) & BITS for number in seed)
  return _mix(_mix(first + GOLDEN & BITS) + second & BITS)


def seed_at(seed, index):
  """The seed of the layer at position `index`, or of the image at it: two int32."""
  mixed = _mix(_key(seed) + (index + 1) * GOLDEN & BITS)
  return np.array([mixed & 0xFFFFFFFF, mixed >> 32], np.uint32).astype(np.int32)


def word(seed, k):
  """The k-th random number of a seed, from 0 to 2**32 - 1."""
  return _mix((_key(seed) ^ WORDS) + (k + 1) * GOLDEN & BITS) >> 32


def below(seed, k, end):
  return word(seed, k) * end >> 32


def fraction(seed, k):
  """A random fraction in units of 2**-31."""
  return word(seed, k) >> 1
