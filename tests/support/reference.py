"""`refurbish` in forty lines, of tf.data's primitives and the lookup of the cache store alone: slow, and to be read.

It is the specification. For a source with random access and functions that take a seed, the stage yields the same elements
in the same order, bit for bit.
"""
import numpy as np
import tensorflow as tf

from support import schedule


class Refurbish:
  """`source.refurbish(partial_fn, final_fn, r, seed=seed)`, whose store is `store`: each call of `epoch` is the next one."""

  def __init__(self, source, partial_fn, final_fn, r, *, seed, store, **options):
    self.source, self.partial_fn, self.final_fn, self.seed, self.store = source, partial_fn, final_fn, seed, store
    self.schedule = schedule.Schedule(seed, len(source), r, **options)
    self.number = 0

  def epoch(self):
    """A dataset of the elements of this epoch. One that is not read to its end counts as well."""
    number, self.number = self.number, self.number + 1
    indices = self.schedule.epoch(number)
    generations = [self.schedule.generation(index, number) for index in indices]
    partial_seeds = [schedule.stateless_seed(self.seed, schedule.PARTIAL_FN, g, i) for g, i in zip(generations, indices)]
    final_seeds = [schedule.stateless_seed(self.seed, schedule.FINAL_FN, number, i) for i in indices]
    return tf.data.Dataset.from_tensor_slices((
        np.array(indices, np.int64), np.array(generations, np.int64), [self.schedule.kept(index) for index in indices],
        np.array(partial_seeds, np.uint32).astype(np.int32), np.array(final_seeds, np.uint32).astype(np.int32),
    )).map(self._element)

  def _element(self, index, generation, kept, partial_seed, final_seed):
    """What comes at one place: what is stored of this generation, or what is prepared now; then augmented to the end."""
    is_stored = False
    if self.store.contains(index):
      is_stored = self.store.get(index)[0] == generation
    if is_stored:
      sample = self.store.get(index)[1]
    else:
      sample = self.partial_fn(self.source.skip(index).take(1).get_single_element(), seed=partial_seed)
      if kept:
        self.store.put(index, (generation, sample))
    return self.final_fn(sample, seed=final_seed)
