"""A function without a return value is an error that says so; two lambdas in one line are not a mistake."""

import logging

import pytest
import tensorflow as tf

import refurbish_tf as rtf

Dataset = tf.data.Dataset


def forgets(x):
  tf.add(x, 1)


@pytest.mark.parametrize(
  "build",
  [
    lambda: Dataset.range(3).refurbish(forgets),
    lambda: Dataset.range(3).refurbish(lambda x, *, seed: None),
    lambda: Dataset.range(3).apply(rtf.refurbish(forgets, lambda x: x)),
  ],
  ids=["plain", "seed", "apply"],
)
def test_partial_fn_that_returns_none(build):
  with pytest.raises(TypeError, match="^partial_fn .*None"):
    build()


def test_other_functions_that_return_none():
  with pytest.raises(TypeError, match="^final_fn .*None"):
    Dataset.range(3).refurbish(lambda x: x, forgets)
  with pytest.raises(TypeError, match="^augment_fn .*None"):
    Dataset.range(3).echo(2, "before_augment", augment_fn=forgets, batch_size=2)
  # None is a valid component.
  assert len(list(Dataset.range(3).refurbish(lambda x: (x, None)))) == 3


class Log(logging.Handler):
  """Collects what TensorFlow logs within the context."""

  def __init__(self):
    super().__init__()
    self.lines = []

  def emit(self, record):
    self.lines.append(record.getMessage())

  def __enter__(self):
    logging.getLogger("tensorflow").addHandler(self)
    return self.lines

  def __exit__(self, *error):
    logging.getLogger("tensorflow").removeHandler(self)


def test_two_lambdas_in_a_line():
  """AutoGraph cannot distinguish them, but does not warn, because neither needs conversion."""
  with Log() as lines:
    dataset = Dataset.range(6).refurbish(lambda x: 10 * x, lambda x: x + 1, r=3, seed=7)
    assert sorted(map(int, dataset)) == [1, 11, 21, 31, 41, 51]
    seeded = Dataset.range(6).refurbish(lambda x, seed: 10 * x, lambda x, seed: x + 1, r=3, seed=7)
    assert sorted(map(int, seeded)) == [1, 11, 21, 31, 41, 51]
    echoed = Dataset.range(4).echo(2, "after_augment", augment_fn=lambda x: x + 1, batch_size=2), lambda x: x
    assert len(list(echoed[0])) == 4
  assert not [line for line in lines if "AutoGraph" in line]


def test_a_lambda_of_its_own_line_is_converted():
  def positive(x):
    if x > 2:
      return x
    return -x

  dataset = Dataset.range(4).refurbish(lambda x: positive(x), r=2, seed=1)
  assert sorted(map(int, dataset)) == [-2, -1, 0, 3]
