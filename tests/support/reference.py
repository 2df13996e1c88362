"""`refurbish` in forty lines, with only tf.data's primitives and look-ups in the cache store: slow, but easy to read.

This is the specification. For a source with random access and functions that take a seed and a number, the stage yields
the same elements in the same order, bit for bit.
"""

import numpy as np
import tensorflow as tf

from support import schedule


class Refurbish:
  """`source.refurbish(partial_fn, final_fn, r, seed=seed)` on `store`. Each call of `epoch` yields the next epoch."""

  def __init__(self, source, partial_fn, final_fn, r, *, seed, store, **options):
    self.source, self.partial_fn, self.final_fn, self.seed, self.store = source, partial_fn, final_fn, seed, store
    self.schedule = schedule.Schedule(seed, len(source), r, **options)
    self.number = 0
    self.element = tf.function(self._element)

  def epoch(self):
    """The elements of the next epoch. An epoch that is not read to its end counts as well."""
    number, self.number = self.number, self.number + 1
    for index in self.schedule.epoch(number):
      generation = self.schedule.generation(index, number)
      partial_seed = schedule.stateless_seed(self.seed, schedule.PARTIAL_FN, generation, index)
      final_seed = schedule.stateless_seed(self.seed, schedule.FINAL_FN, number, index)
      yield self.element(
        tf.constant(index, tf.int64),
        tf.constant(generation, tf.int64),
        tf.constant(number, tf.int64),
        tf.constant(self.schedule.kept(index)),
        *(tf.constant(np.array(seed, np.uint32).astype(np.int32)) for seed in (partial_seed, final_seed)),
      ).numpy()

  def _element(self, index, generation, number, kept, partial_seed, final_seed):
    """The element at one place: final_fn of the stored sample of this generation, or of one prepared now."""
    is_stored = False
    if self.store.contains(index):
      is_stored = self.store.get(index)[0] == generation
    if is_stored:
      sample = self.store.get(index)[1]
    else:
      element = self.source.skip(index).take(1).get_single_element()
      sample = self.partial_fn(element, seed=partial_seed, generation=generation)
      if kept:
        self.store.put(index, (generation, sample))
    return self.final_fn(sample, seed=final_seed, epoch=number)
