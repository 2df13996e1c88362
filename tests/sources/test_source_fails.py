"""A source by index that fails once: whatever was read by then, every element that is yielded or kept is right."""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import in_python, read, with_options

Dataset = tf.data.Dataset
N, BATCH = 12, 3


class FailsOnce:
  """A function of an element that fails the first time it meets one of these."""

  def __init__(self, *bad):
    self.bad = set(bad)

  def __call__(self, x):
    def check(x):
      if int(x) in self.bad:
        self.bad.remove(int(x))
        raise OSError("once")
      return x

    return in_python(check)(x)


def reads_ahead(dataset):
  return dataset.prefetch(5)


# For each name: a function that makes a source of N numbers and calls `check` for each, and the numbers per element.
SOURCES = {
  "elements": (lambda check: Dataset.range(N).map(check), 1),
  "threads": (lambda check: reads_ahead(Dataset.range(N).map(check, num_parallel_calls=2)), 1),
  "batches": (lambda check: Dataset.range(N).map(check).batch(BATCH, drop_remainder=True), BATCH),
  "batches ahead": (
    lambda check: reads_ahead(Dataset.range(N).map(check, num_parallel_calls=2).batch(BATCH, drop_remainder=True)),
    BATCH,
  ),
  "batches of cached": (
    lambda check: rtf.sources.cached(Dataset.range(N).map(check)).batch(BATCH, drop_remainder=True),
    BATCH,
  ),
  "two": (lambda check: Dataset.range(5).map(check).concatenate(Dataset.range(5, N).map(check)), 1),
  "Python": (lambda check: rtf.sources.data_source(range(N)).map(check), 1),
}
STAGES = {
  "cached": rtf.sources.cached,
  "refurbish": lambda source: source.refurbish(tf.identity, r=2, seed=3),
  "both": lambda source: rtf.sources.cached(source).refurbish(tf.identity, r=2, seed=3),
}
FAIL_AT = [(i,) for i in range(N)] + [(0, 1), (2, 3), (0, 7, 8), (9, 10, 11)]


def epoch_of(dataset):
  """Returns the elements of an epoch, and how many errors came between them."""
  elements, errors = read(dataset, 3 * N)
  assert all(isinstance(error, tf.errors.UnknownError) for error in errors)
  return sorted(np.ravel(element).tolist() for element in elements), len(errors)


@pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")  # Batches, and a source without random order.
@cases.each_value
@pytest.mark.parametrize("bad", FAIL_AT, ids=str)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("source", SOURCES)
def test_an_error_loses_only_its_own_element(source, stage, bad):
  make, size = SOURCES[source]
  # Fused with `map`, a batch would be read as a stream.
  dataset = with_options(
    STAGES[stage](make(FailsOnce(*bad))), "experimental_optimization", apply_default_optimizations=False
  )
  whole = [list(range(i, i + size)) for i in range(0, N, size)]
  elements, errors = epoch_of(dataset)
  lost = [element for element in whole if element not in elements]
  assert sorted(elements + lost) == whole
  assert 1 <= len(lost) == errors <= len(bad)
  assert all(set(element) & set(bad) for element in lost)
  while errors:  # An element with several bad numbers fails at the next one.
    elements, errors = epoch_of(dataset)
    assert all(element in whole for element in elements)
  assert epoch_of(dataset) == (whole, 0)


def test_an_error_of_a_skipped_element_is_ignored():
  source = reads_ahead(Dataset.range(N).map(FailsOnce(*range(1, N, 2)), num_parallel_calls=2))
  assert [int(x) for x in rtf.sources.cached(source).shard(2, 0)] == list(range(0, N, 2))


def test_an_error_arrives_while_the_source_waits_to_read_ahead():
  """The source's thread waits because it has read too far ahead. It ends when the input is dropped."""
  size = 4 << 20  # A few of these exceed the limit of reading ahead.
  check = FailsOnce()
  dataset = (
    Dataset.range(40)
    .map(check)
    .prefetch(20)
    .refurbish(lambda i: tf.fill([size], tf.cast(i, tf.uint8)), r=8, seed=3, num_parallel_calls=1)
  )
  for _ in range(2):
    assert sorted(int(x[0]) for x in dataset) == list(range(40))
  check.bad.update(range(40))
  seen, errors = read(dataset)
  assert len(errors) == 5 and len({int(x[0]) for x in seen}) == len(seen) == 35
  assert all(isinstance(error, tf.errors.UnknownError) for error in errors)
