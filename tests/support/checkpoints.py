"""A stage for checkpoint tests, and how it is saved and restored."""

import itertools

import tensorflow as tf

from support import cases
from support.datasets import with_options
from support.pipelines import make_source

EPOCHS = 4


def partial_fn(index, seed):
  return tf.concat([[index], tf.cast(seed, tf.int64)], axis=0)


def final_fn(sample, seed):
  return tf.concat([sample, tf.cast(seed, tf.int64)], axis=0)


def with_checkpoints(dataset, symbolic=True):
  """The dataset with symbolic checkpoints, which record positions instead of buffered elements where possible."""
  return with_options(dataset, experimental_symbolic_checkpoint=symbolic)


def make(kind="range", n=7, r=2, *, symbolic=False, parallel=None, buffer=None, seed=1, epochs=EPOCHS, **options):
  """Elements are (index, seed of partial_fn, seed of final_fn), so they show index, generation and epoch.

  Each call makes a new stage without the state of earlier ones, as in a new process.
  """
  dataset = make_source(kind, n).refurbish(
    partial_fn, final_fn, r, seed=seed, num_parallel_calls=parallel, shuffle_buffer_size=buffer, **options
  )
  if epochs is not None:
    dataset = dataset.repeat(epochs)
  return with_checkpoints(dataset, symbolic)


def save(iterator, directory):
  return tf.train.Checkpoint(iterator=iterator).write(str(directory / "checkpoint"))


def restore(dataset, path):
  iterator = iter(dataset)
  tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
  return iterator


def take(iterator, number=None):
  return [element.numpy().tolist() for element in itertools.islice(iterator, number)]


def assert_restored_at_every_step(make, directory, number=3):
  """Checks that a dataset, made again and restored after some of its elements, yields the others. Samples `number`
  steps."""
  expected = take(iter(make()))
  for step in cases.some(range(len(expected) + 1), number):
    iterator = iter(make())
    before = take(iterator, step)
    assert before + take(restore(make(), save(iterator, directory))) == expected


def assert_epochs(elements, n):
  for begin in range(0, len(elements), n):
    assert sorted(index for index, *_ in elements[begin : begin + n]) == list(range(n))
