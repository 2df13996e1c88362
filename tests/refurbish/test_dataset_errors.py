"""Errors name the bad argument. A failing sample affects no other sample, and its error has its index."""

import fractions
import functools
import random
import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import fresh, in_python, read, stats, stream

Dataset = tf.data.Dataset


class Switch:
  """A function for datasets that fails for the indices in `bad`."""

  def __init__(self, *bad):
    self.bad = set(bad)

  def check(self, index):
    if int(index) in self.bad:
      raise ValueError(f"broken file {index}")
    return index

  def __call__(self, index):
    return in_python(self.check)(index)


@pytest.mark.parametrize(
  "r, error",
  cases.refused(
    ValueError=[(0,), (0.99,), (-1,), (float("nan"),), (np.nan,), (float("inf"),), (10**400,)],
    TypeError=[("2",), (None,), (True,), ([2],), (2j,), (tf.constant(2.0),)],
  ),
  ids=lambda value: repr(value)[:12],
)
def test_bad_reuse_factors(r, error):
  with pytest.raises(error, match=r"(?s)\br, the reuse factor, must be a .*number of at least 1.* got "):
    Dataset.range(4).refurbish(tf.identity, r=r)


@pytest.mark.parametrize("r", [1, 1.0, np.float32(1.5), np.int8(2), fractions.Fraction(3, 2), 10**6, 1e300])
def test_good_reuse_factors(r):
  dataset = Dataset.range(4).refurbish(tf.identity, r=r, seed=1)
  for _ in range(3):
    assert sorted(dataset.as_numpy_iterator()) == [0, 1, 2, 3]
  assert stats(dataset).total.fresh == 4 + int(2 * 4 / float(r))


BAD_ARGUMENTS = {
  "eviction": ({"eviction": "lru"}, ValueError, "eviction must be one of 'balanced', 'reference_count', got 'lru'"),
  "shuffle": ({"shuffle": "random"}, ValueError, "shuffle must be one of 'cache_aware', 'uniform', got 'random'"),
  "shuffle true": ({"shuffle": True}, ValueError, "shuffle must be one of .* got True"),
  "store": ({"store": 3}, TypeError, "store must be None.*a directory, or a CacheStore, got 3.*max_bytes"),
  "buffer 0": ({"shuffle_buffer_size": 0}, ValueError, "shuffle_buffer_size must be .*1.* got 0"),
  "buffer float": ({"shuffle_buffer_size": 2.5}, TypeError, "shuffle_buffer_size must be .*whole number.* got 2.5"),
  "parallel": ({"num_parallel_calls": np.zeros(0)}, TypeError, "num_parallel_calls must be a whole number.* got array"),
  "seed float": ({"seed": 1.5}, TypeError, "seed must be .* got 1.5"),
  "seed large": ({"seed": 2**64}, ValueError, "seed must be .* got 18446744073709551616"),
  "partial_fn": ({"partial_fn": None}, TypeError, "partial_fn must be a function.* got None"),
  "final_fn": ({"final_fn": 3}, TypeError, "final_fn must be a function.* got 3"),
  "unknown": ({"reuse": 3}, TypeError, "unexpected keyword argument 'reuse'"),
}


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
def test_bad_arguments(kind):
  """Both forms of the call refuse bad arguments immediately. The error says what was given and what is allowed."""
  arguments, error, message = BAD_ARGUMENTS[kind]
  arguments = {"partial_fn": tf.identity, **arguments}
  with pytest.raises(error, match=message):
    Dataset.range(4).refurbish(**arguments)
  with pytest.raises(error, match=message):
    Dataset.range(4).apply(rtf.refurbish(**arguments))


@cases.each_value
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"shuffle_buffer_size": 4},
    {"num_parallel_calls": None},
    {"num_parallel_calls": 1},
    {"deterministic": False, "num_parallel_calls": 8},
  ],
  ids=str,
)
@pytest.mark.parametrize("where", ["partial_fn", "source"])
@pytest.mark.parametrize("streamed", [False, True])
def test_one_sample_fails(where, streamed, options):
  """The error has the sample's index; no other sample is lost; the next epoch tries again."""
  switch = Switch(4, 7)
  source = stream(10) if streamed else Dataset.range(10)
  if where == "source":
    source, partial_fn = source.map(switch), tf.identity
  else:
    partial_fn = switch
  dataset = source.refurbish(partial_fn, r=2, seed=1, **options)
  for _ in range(4):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == [x for x in range(10) if x not in switch.bad]
    indices = [
      int(re.search(r"Preparing sample (\d+) of the source of refurbish failed", error.message)[1]) for error in errors
    ]
    assert sorted(indices) == [4, 7]
    for index, error in zip(indices, errors, strict=True):
      assert f"broken file {index}" in error.message
  switch.bad.clear()
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == list(range(10)) and not errors
  # The failed sample was never cached, so it was prepared as soon as possible. After that the schedule holds.
  assert fresh(dataset)[-1] == 5


def test_final_fn_fails():
  """The error is the same as in `map`; the sample stays cached, and this epoch and later ones continue."""
  switch = Switch(4)
  calls = []
  dataset = Dataset.range(10).refurbish(in_python(lambda x: calls.append(x) or x), switch, r=100, seed=1)
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == [x for x in range(10) if x != 4]
    assert len(errors) == 1 and "broken file 4" in errors[0].message
  switch.bad.clear()
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))
  assert len(calls) == 10


def test_failing_elements_while_samples_are_removed():
  """Errors, removed samples and streams together: every epoch ends and has all samples that do not fail."""
  randomly = random.Random(1)
  for source_fails in (False, True):
    switch = Switch()
    store = rtf.CacheStore()
    source = Dataset.range(30).map(switch).take_while(lambda x: True) if source_fails else stream(30)
    dataset = source.refurbish(tf.identity if source_fails else switch, r=2, seed=1, store=store, shuffle_buffer_size=5)
    list(dataset)
    for _ in range(10):
      switch.bad = set(randomly.sample(range(30), randomly.randrange(4)))
      iterator, values, errors = iter(dataset), [], 0
      for _ in range(100):
        if randomly.random() < 0.05:
          store.clear()
        try:
          values.append(int(next(iterator)))
        except StopIteration:
          break
        except tf.errors.OpError:
          errors += 1
      else:
        raise AssertionError("The epoch does not end.")
      assert len(set(values)) == len(values) == 30 - errors
      assert set(range(30)) - set(values) <= switch.bad


@pytest.mark.parametrize("claimed", [[0], [None, 2]])
def test_partial_fn_changes_its_output_structure(claimed):
  """A sample whose shape is not the traced one raises an error with its index and both shapes; the others are
  yielded."""

  def partial_fn(x):
    shape = lambda x: [1 if x == 4 else 0, 3 if x == 7 else 2][: len(claimed)]
    value = tf.numpy_function(lambda x: np.zeros(shape(x), np.int64), [x], tf.int64)
    value.set_shape(claimed)
    return x, value

  dataset = Dataset.range(10).refurbish(partial_fn, r=2, seed=1)
  wrong = 4 if len(claimed) == 1 else 7
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(int(x) for x, _ in values) == [x for x in range(10) if x != wrong]
    (error,) = errors
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert re.search(
      f"partial_fn changed its output structure: component 1 of sample {wrong} is int64.*element_spec says",
      error.message,
    )


PARAMETERS = {
  "too few": (
    lambda: 0,
    tf.identity,
    "partial_fn cannot be called with an element of the source: too many positional "
    "arguments.*with one argument, TensorSpec",
  ),
  "too many": (lambda x, y: x, tf.identity, "missing a required argument: 'y'. As in .*map, it is called with one"),
  "one that has to be named": (lambda x, *, y: x, tf.identity, "missing a required argument: 'y'"),
  "of the final function": (
    lambda x: (x, x),
    lambda x: x,
    "final_fn cannot be called with what partial_fn returns: too many positional arguments.*the 2 components of",
  ),
  "a list is a tuple": (lambda x: [x, x], lambda x: x, "final_fn .*the 2 components"),
  "a dict is one": (lambda x: {"x": x, "y": x}, lambda x, y: x, "final_fn .*with one argument, {'x'"),
  "a layer of images": (
    lambda x: (tf.zeros([4, 4, 3], tf.uint8), x),
    rtf.augment.random_flip(),
    "final_fn has a parameter that what partial_fn returns already filled: .*'seed'. Pass layers in a list",
  ),
  "of a partial": (
    functools.partial(lambda x, y: x, y=1),
    lambda x, y: x,
    "final_fn .*missing a required argument: 'y'",
  ),
  "of TensorFlow's function": (
    tf.function(lambda x, y: x),
    tf.identity,
    "partial_fn .*missing a required argument: 'y'",
  ),
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_functions_that_cannot_be_called(kind):
  """The error names the function and its arguments."""
  partial_fn, final_fn, message = PARAMETERS[kind]
  with pytest.raises(TypeError, match=message):
    Dataset.range(4).refurbish(partial_fn, final_fn)


def of_the_image(function):
  """A decorator that claims the parameters of the decorated function, but has different ones."""

  @functools.wraps(function)
  def of_both(*sample):
    return function(sample[0]), sample[-1]

  return of_both


def with_a_seed_of_its_own(function):
  @functools.wraps(function)
  def seeded(image, label):
    return function(image, label, seed=[1, 2])

  return seeded


def any_arguments(function):
  @functools.wraps(function)
  def handed_on(*arguments, **named):
    return function(*arguments, **named)

  return handed_on


def any_names(function):
  @functools.wraps(function)
  def handed_on(image, label, **named):
    return function(image, label, **named)

  return handed_on


def drawn(image, label, seed):
  return image + tf.random.stateless_uniform([], seed, maxval=100, dtype=tf.int64), label


class Drawing:
  @any_arguments
  def __call__(self, image, label, seed):
    return drawn(image, label, seed)


DECORATED = {
  "of a part": (of_the_image(lambda image: 2 * image), False),
  "of TensorFlow's own": (of_the_image(tf.square), False),
  "of TensorFlow's function": (of_the_image(tf.function(lambda image: 2 * image)), False),
  "left alone by AutoGraph": (tf.autograph.experimental.do_not_convert(of_the_image(lambda image: 2 * image)), False),
  "with a seed of its own": (with_a_seed_of_its_own(drawn), False),
  "handing on": (any_arguments(drawn), True),
  "handing on what is named": (any_names(drawn), True),
  "handing on twice": (any_arguments(any_names(drawn)), True),
  "a decorated call": (Drawing(), True),
}


@cases.each_value
@pytest.mark.parametrize(
  "build",
  [
    lambda source, function: source.refurbish(function, seed=1),
    lambda source, function: source.refurbish(lambda *x: x, function, seed=1),
    lambda source, function: source.echo(1, "before_augment", augment_fn=function, batch_size=1, seed=1).unbatch(),
  ],
)
@pytest.mark.parametrize("kind", DECORATED)
def test_decorated_functions(kind, build):
  """The functions are called as `map` calls them, whatever signature they claim. Those that can take a seed get one."""
  function, is_seeded = DECORATED[kind]
  source = Dataset.range(8).map(lambda x: (x, x))
  found = {int(label): int(image) for image, label in build(source, function)}
  assert sorted(found) == list(range(8))
  if not is_seeded:
    assert found == {int(label): int(image) for image, label in source.map(function)}
  else:
    # Each sample has its own draw.
    assert len({image - label for label, image in found.items()}) > 4


def test_errors_in_tracing_are_those_of_the_function():
  """An error in a function is shown at its place, as `map` shows it."""
  with pytest.raises(AttributeError, match="numpy"):
    Dataset.range(4).refurbish(tf.identity, lambda x: x.numpy())
