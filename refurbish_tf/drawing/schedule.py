"""The seeds and generations of a few samples: what `cc/plan/` says of all samples of an epoch."""
import fractions
import functools

import numpy as np

_EVICTION, PARTIAL_FN, FINAL_FN = 1, 4, 5
_FIRST, _SECOND, _MASK = 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 2**64 - 1
# Of more samples, or of an unknown number, the place in the eviction order is estimated.
_MOST_COUNTED = 10_000_000


def _mix(word):
  """The finalizer of SplitMix64, of a Python integer or an array of uint64."""
  # Arrays wrap around by themselves.
  mask = _MASK if isinstance(word, int) else np.uint64(_MASK)
  word = (word + 0x9e3779b97f4a7c15) & mask
  word = (word ^ word >> 30) * _FIRST & mask
  word = (word ^ word >> 27) * _SECOND & mask
  return word ^ word >> 31


def _unmix(word):
  """The inverse of `_mix`."""
  word = (word ^ word >> 31 ^ word >> 62) * pow(_SECOND, -1, 2**64) & _MASK
  word = (word ^ word >> 27 ^ word >> 54) * pow(_FIRST, -1, 2**64) & _MASK
  return (word ^ word >> 30 ^ word >> 60) - 0x9e3779b97f4a7c15 & _MASK


def _key(seed, purpose):
  return _mix(_mix(_mix(seed & _MASK) ^ purpose))


def seed_of(seed, purpose, counter, index):
  """What a function is given for a sample. The counter is the generation or the epoch."""
  word = _mix((index << 32 | counter) ^ _key(seed, purpose))
  return np.uint32([word >> 32, word & 2**32 - 1]).astype(np.int32)


def index_of(seed, purpose, given):
  """The number of the sample for which `seed_of` has made a seed."""
  first, second = (int(number) & 2**32 - 1 for number in given)
  return (_unmix(first << 32 | second) ^ _key(seed, purpose)) >> 32


@functools.lru_cache(maxsize=1024)
def generation(seed, eviction, reuse_factor, num_samples, num_kept, index, epoch):
  """How often a sample was evicted before an epoch. Its index is that in its shard. Of negative numbers all is kept."""
  key = _key(seed, _EVICTION)
  own = _mix(key ^ index)
  if 0 < num_samples <= _MOST_COUNTED:
    indices = np.arange(num_samples, dtype=np.uint64)
    keys = _mix(np.uint64(key) ^ indices) & np.uint64(_MASK - 2**32 + 1) | indices
    rank, kept = int((keys < np.uint64(own & _MASK - 2**32 + 1 | index)).sum()), num_samples if num_kept < 0 else num_kept
  else:
    rank, kept = own >> 32, 2**32 if min(num_samples, num_kept) < 0 else 2**32 * num_kept // num_samples
  if rank >= kept:
    return epoch
  factor = fractions.Fraction(reuse_factor)
  if eviction == "reference_count":
    return int(epoch / factor)
  rounds, position = divmod(int(epoch * kept / factor), kept)
  return rounds + (rank < position)
