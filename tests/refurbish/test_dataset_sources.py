"""Epochs are whole with any source. Sources that are infinite or empty, or change their order, are refused with a
remedy."""

import contextlib
import itertools
import os
import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import fresh, in_python, plus_one, read, stats, stream, with_options, without_prefetch

Dataset = tf.data.Dataset


def ranges():
  return Dataset.range(10), Dataset.range(10, 20)


SOURCES = {
  "range": lambda: Dataset.range(20),
  "range down": lambda: Dataset.range(20, 0, -1),
  "slices": lambda: Dataset.from_tensor_slices(np.arange(20)),
  "tensors": lambda: Dataset.from_tensors(np.int64(3)),
  "one": lambda: Dataset.range(1),
  "counter": lambda: Dataset.counter().take(4),
  "files": lambda: Dataset.list_files(os.path.join(os.path.dirname(__file__), "*.py"), shuffle=False),
  "list": lambda: tf.data.experimental.from_list(list(np.arange(20))),
  "generator": lambda: Dataset.from_generator(lambda: iter(range(20)), output_signature=tf.TensorSpec([], tf.int64)),
  "random numbers": lambda: Dataset.random(seed=1).take(9),
  "map": lambda: Dataset.range(20).map(plus_one),
  "parallel map": lambda: Dataset.range(20).map(plus_one, num_parallel_calls=4),
  "prefetch": lambda: Dataset.range(20).prefetch(3),
  "parallel map, prefetch": lambda: Dataset.range(20).map(plus_one, num_parallel_calls=4).prefetch(3).map(plus_one),
  "zip": lambda: Dataset.zip(
    Dataset.range(20).prefetch(2), Dataset.range(100, 130).map(plus_one, num_parallel_calls=2)
  ),
  "enumerate": lambda: Dataset.range(5, 25).enumerate(),
  "batch": lambda: Dataset.range(20).batch(3),
  "batch, remainder dropped": lambda: Dataset.range(20).batch(3, drop_remainder=True),
  "parallel batch": lambda: Dataset.range(20).batch(3, num_parallel_calls=2),
  "padded batch": lambda: Dataset.range(6).map(lambda x: tf.fill([x], x)).padded_batch(2),
  "ragged batch": lambda: Dataset.range(6).map(lambda x: tf.fill([x], x)).ragged_batch(2),
  "rebatch": lambda: Dataset.range(20).batch(4).rebatch(3),
  "unbatch": lambda: Dataset.range(20).batch(3).unbatch(),
  "concatenate": lambda: Dataset.range(5).concatenate(Dataset.range(3)).concatenate(Dataset.range(10, 16)),
  "concatenate with threads": lambda: (
    Dataset.range(12)
    .map(plus_one, num_parallel_calls=3)
    .concatenate(Dataset.range(50, 58).prefetch(2))
    .map(plus_one, num_parallel_calls=3)
    .prefetch(2)
  ),
  "zip of concatenate": lambda: Dataset.zip(
    Dataset.range(5).concatenate(Dataset.range(7)), Dataset.range(12).prefetch(1)
  ),
  "skip, take": lambda: Dataset.range(30).skip(3).take(9),
  "take more than there is": lambda: Dataset.range(5).take(50),
  "shard": lambda: Dataset.range(20).shard(3, 1),
  "repeat": lambda: Dataset.range(10).shard(2, 1).repeat(3),
  "repeat, batch": lambda: Dataset.range(7).repeat(3).batch(4),
  "concatenate of repeat": lambda: Dataset.range(10).concatenate(Dataset.range(3).repeat(2)),
  "concatenate of echo": lambda: Dataset.range(10).concatenate(Dataset.range(3).echo(2)),
  "repeat of concatenate": lambda: Dataset.range(3).concatenate(Dataset.range(4)).repeat(2),
  "repeat of zip": lambda: Dataset.zip(Dataset.range(1), Dataset.range(3)).repeat(3),
  "map, batch": lambda: Dataset.range(10).map(plus_one).batch(3, drop_remainder=True),  # TensorFlow fuses them.
  "options": lambda: Dataset.range(20).with_options(tf.data.Options()),
  "option without an effect": lambda: with_options(Dataset.range(4), deterministic=False),
  "cache": lambda: Dataset.range(20).cache(),
  "map, cache": lambda: Dataset.range(20).map(plus_one).cache(),
  "parallel map, cache, map": lambda: Dataset.range(20).map(plus_one, num_parallel_calls=4).cache().map(plus_one),
  "prefetch, cache": lambda: Dataset.range(20).prefetch(2).cache(),
  "skip, cache": lambda: Dataset.range(20).skip(3).cache(),
  "stream, cache": lambda: stream(20).cache(),
  "zip of cache": lambda: Dataset.zip(Dataset.range(20).cache(), Dataset.range(20).map(plus_one).cache()),
  "shuffle once": lambda: Dataset.range(20).shuffle(5, seed=1, reshuffle_each_iteration=False),
  "filter": lambda: Dataset.range(20).filter(lambda x: x % 3 > 0),
  "filter, prefetch": lambda: stream(20).prefetch(4),
  "flat_map": lambda: Dataset.range(4).flat_map(Dataset.range),
  "interleave": lambda: Dataset.range(4).interleave(
    lambda i: Dataset.range(5).map(lambda x: x + 10 * i), cycle_length=2
  ),
  "parallel interleave": lambda: Dataset.range(4).interleave(
    lambda i: Dataset.range(5).map(lambda x: x + 10 * i), cycle_length=2, num_parallel_calls=2
  ),
  "window": lambda: Dataset.range(20).window(2).flat_map(lambda window: window.batch(2)),
  "scan": lambda: Dataset.range(20).scan(np.int64(0), lambda state, x: (state + x, state + x)),
  "take_while": lambda: Dataset.range(20).take_while(lambda x: x < 9),
  "unique": lambda: Dataset.range(20).map(lambda x: x // 2).unique(),
  "choose_from_datasets": lambda: Dataset.choose_from_datasets(ranges(), Dataset.range(2).repeat(10)),
  "sample_from_datasets": lambda: Dataset.sample_from_datasets(ranges(), seed=1),
  "group_by_window": lambda: Dataset.range(20).group_by_window(lambda x: x % 2, lambda _, d: d.batch(2), window_size=4),
}


def to_text(*element):
  parts = [part.to_tensor() if isinstance(part, tf.RaggedTensor) else part for part in tf.nest.flatten(element)]
  return tf.strings.join([tf.strings.format("{}", part) for part in parts], ",")


# The threads of these sources would read ahead before the stage requests elements.
WITH_THREADS = (
  "map; parallel map; prefetch; parallel map, prefetch; zip; concatenate with threads; zip of concatenate; enumerate; "
  "map, cache; filter, prefetch; parallel interleave"
).split("; ")


@pytest.mark.parametrize(
  "kind, warm_start", [*((kind, False) for kind in SOURCES), *((kind, True) for kind in cases.some(WITH_THREADS, 5))]
)
def test_sources(kind, warm_start):
  """With any source each epoch is whole, and sample i in the cache is partial_fn of the i-th element."""
  source = SOURCES[kind]()
  expected = list(source.map(to_text).as_numpy_iterator())
  store = rtf.CacheStore()
  # Building a stage on batches causes a warning, which test_pipeline_warnings_in_sources.py covers.
  with pytest.warns(rtf.PipelineWarning) if "batch" in kind and kind != "unbatch" else contextlib.nullcontext():
    dataset = with_options(source.refurbish(to_text, r=2, seed=1, store=store), experimental_warm_start=warm_start)
  for _ in range(2):
    assert sorted(dataset.as_numpy_iterator()) == sorted(expected)
  assert all(store.get(i) == sample for i, sample in enumerate(expected) if i in store)
  found = stats(dataset)
  assert len(found.epochs) == 2 and found.total.missing == 0
  assert found.epochs[0].fresh == len(expected)


STAGES = {
  "batch": lambda source: source.batch(2, drop_remainder=True).map(lambda x: x[0] + 100 * x[1]),
  "concatenate": lambda source: source.concatenate(Dataset.range(50, 53).map(plus_one)),
  "concatenate after": lambda source: Dataset.range(50, 53).prefetch(1).concatenate(source),
  "echo": lambda source: source.echo(2),
  "map": lambda source: source.map(plus_one),
  "parallel map": lambda source: source.map(plus_one, num_parallel_calls=2),
  "prefetch": lambda source: source.prefetch(2),
  "repeat": lambda source: source.repeat(2),
  "shard": lambda source: source.shard(2, 1),
  "skip": lambda source: source.skip(1),
  "take": lambda source: source.take(7),
  "zip": lambda source: Dataset.zip(source, Dataset.range(9)).map(lambda x, y: x + 1000 * y),
}


def test_stages_in_any_order():
  """Each epoch is whole, whatever TensorFlow's random access yields through several datasets."""
  for names in cases.some(itertools.product(STAGES, repeat=3), 12):
    source = Dataset.range(24)
    for name in names:
      source = STAGES[name](source)
    expected = sorted(source.as_numpy_iterator())
    dataset = source.refurbish(tf.identity, r=2, seed=1, num_parallel_calls=None)
    for _ in range(2):
      assert sorted(dataset.as_numpy_iterator()) == expected, names


@cases.each_value
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("parallel", [None, 2])
def test_a_cached_stream_is_read_to_its_end(capfd, parallel, final):
  """A reader that knows the number of batches requests no further one. A cache() upstream is complete all the same,
  reads its source once and logs no warning."""
  read_from_source = tf.Variable(0)

  def count(x):
    read_from_source.assign_add(1)
    return x

  # Because of the filter, the cache knows only at the end that it has all elements.
  source = (
    Dataset.range(64).map(count).filter(lambda x: True).cache().apply(tf.data.experimental.assert_cardinality(64))
  )
  # With a prefetch or a larger shuffle buffer, the stage would usually read the source to its end by itself.
  dataset = without_prefetch(
    source.refurbish(
      tf.identity, tf.identity if final else None, r=2, seed=1, num_parallel_calls=parallel, shuffle_buffer_size=1
    ).batch(16)
  )
  for _ in range(4):
    iterator = iter(dataset)
    assert sorted(np.concatenate([next(iterator) for _ in range(4)])) == list(range(64))
    del iterator
  assert int(read_from_source) == 64
  assert "did not fully read" not in capfd.readouterr().err


RESHUFFLES = "changes its order .*reshuffle_each_iteration"
NOT_ALLOWED = "changes its order .*deterministic=False"

WAY_OUT = {
  "infinite": (lambda: Dataset.range(4).repeat(), r"infinite.*repeat\(\) after"),
  "infinite counter": (lambda: Dataset.counter(), r"infinite.*take\(n\)"),
  "infinite, filtered": (
    lambda: Dataset.counter().filter(lambda x: x > 3).map(plus_one).prefetch(1),
    r"infinite.*take",
  ),
  "empty": (lambda: Dataset.range(0), "no elements. Check"),
  "empty slices": (lambda: Dataset.from_tensor_slices([]), "no elements"),
  "skipped over": (lambda: Dataset.range(4).skip(9), "no elements"),
  "shuffle": (lambda: Dataset.range(4).shuffle(4), f"{RESHUFFLES}.*after"),
  "shuffle before map": (lambda: Dataset.range(4).shuffle(4, seed=1).map(plus_one).batch(2), RESHUFFLES),
  "shuffle and repeat": (lambda: Dataset.range(4).shuffle(4).repeat(2), RESHUFFLES),
  "shuffle in one of two": (lambda: Dataset.zip(Dataset.range(4), Dataset.range(4).shuffle(4)), RESHUFFLES),
  "shuffle in flat_map": (lambda: Dataset.range(3).flat_map(lambda x: Dataset.range(3).shuffle(3)), RESHUFFLES),
  "list_files": (lambda: Dataset.list_files(os.path.join(os.path.dirname(__file__), "*.py")), RESHUFFLES),
  "map": (lambda: Dataset.range(4).map(plus_one, num_parallel_calls=2, deterministic=False), NOT_ALLOWED),
  "interleave": (
    lambda: Dataset.range(4).interleave(Dataset.range, num_parallel_calls=2, deterministic=False),
    NOT_ALLOWED,
  ),
  "option": (
    lambda: with_options(Dataset.range(4).map(plus_one, num_parallel_calls=2), deterministic=False),
    NOT_ALLOWED,
  ),
  "random numbers": (
    lambda: Dataset.random(rerandomize_each_iteration=True).take(4),
    "rerandomize_each_iteration=False",
  ),
  "samples": (
    lambda: Dataset.sample_from_datasets(ranges(), rerandomize_each_iteration=True),
    "rerandomize_each_iteration=False",
  ),
  "refurbish": (lambda: Dataset.range(4).refurbish(tf.identity).batch(2), "one partial_fn"),
}


@pytest.mark.parametrize("kind", WAY_OUT)
def test_bad_sources(kind):
  """A source that has no epochs, or changes its order between them, is refused with a remedy when the stage is
  built."""
  source, message = WAY_OUT[kind]
  with pytest.raises(ValueError, match=f"(?s){message}") as caught:
    source().refurbish(lambda *elements: elements)
  assert "Op:" not in str(caught.value) and "{{" not in str(caught.value)  # TensorFlow's decoration is removed.
  assert caught.value.__suppress_context__


def test_an_empty_source_of_unknown_length():
  """Reading it raises an error instead of yielding an empty epoch. Once it has elements, epochs are whole."""
  number = [0]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  dataset = source.refurbish(tf.identity, r=2, seed=1)
  for _ in range(2):
    with pytest.raises(tf.errors.InvalidArgumentError, match="no elements. Check"):
      list(dataset)
  number[0] = 10
  for _ in range(3):
    assert sorted(dataset.as_numpy_iterator()) == list(range(10))
  assert fresh(dataset)[2:] == [10, 5, 5]


@cases.each_value
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shuffle_buffer_size", [None, 4])
def test_a_source_whose_length_changes(known, shuffle_buffer_size):
  """DataLossError names the former length. With that length the next epoch is whole again, except for an error at its
  end."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  if known:
    # The source reports a wrong length. With assert_cardinality, TensorFlow would detect it.
    source = Dataset.zip(source, Dataset.range(10)).map(lambda x, _: x)
    source = source if source.cardinality() == 10 else source.map(tf.identity)
  dataset = source.refurbish(tf.identity, r=2, seed=1, shuffle_buffer_size=shuffle_buffer_size)
  at_end = False
  for length in (10, 10, 7, 10, 10, 12, 10, 0, 10, 9, 11, 10, 10):
    number[0] = length
    if at_end:
      with pytest.raises(tf.errors.DataLossError, match="than the 10 elements it had before"):
        next(iter(dataset))
    values, errors = read(dataset)
    at_end = len(values) == 10 and len(errors) == 1
    values = [int(value) for value in values]
    assert len(set(values)) == len(values) and set(values) <= set(range(10))
    if length == 10 or (known and length > 10):  # zip stops at the shortest.
      assert not errors and sorted(values) == list(range(10))
    else:
      assert {type(error) for error in errors} == {tf.errors.DataLossError}
      for error in errors:
        comparison = "fewer" if length < 10 else "more"
        assert re.search(f"{comparison} than the 10 elements", error.message)


def test_a_source_that_has_grown_while_samples_are_removed():
  """The epoch ends with the error, and the next one begins with it, once."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  store = rtf.CacheStore()
  dataset = source.refurbish(tf.identity, r=2, seed=1, store=store)
  list(dataset)
  for stop in cases.some(range(10), 4):
    number[0] = 12
    iterator, values, errors = iter(dataset), [], []
    for position in range(30):
      if position == stop:
        store.clear()
      try:
        values.append(int(next(iterator)))
      except StopIteration:
        break
      except tf.errors.DataLossError as error:
        errors.append(error)
    else:
      raise AssertionError("The epoch does not end.")
    assert 1 <= len(errors) <= 2 and len(set(values)) == len(values)
    number[0] = 10
    with contextlib.suppress(tf.errors.DataLossError):  # There is no error if an element has already raised it.
      next(iter(dataset))
    assert sorted(dataset.as_numpy_iterator()) == list(range(10))


@pytest.mark.parametrize("ahead", [0, 4])
def test_growth_is_noticed_by_readers_that_stop_at_the_known_length(ahead):
  """An example is fit, which knows the number of batches and so misses an error that `prefetch` has read after them.
  The next epoch begins with the error, once."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  dataset = source.refurbish(tf.identity, r=2, seed=1, num_parallel_calls=None).batch(5)
  list(dataset)
  dataset = dataset.prefetch(ahead) if ahead else dataset

  def batches():
    iterator = iter(dataset)
    return sorted(np.concatenate([next(iterator) for _ in range(2)]))

  number[0] = 12
  assert batches() == list(range(10))
  number[0] = 10
  with pytest.raises(tf.errors.DataLossError, match="more than the 10 elements it had before"):
    batches()
  for _ in range(2):
    assert batches() == list(range(10))


def test_first_passes_of_different_length():
  """A source of unknown length yields different numbers of elements to two iterators at the same time."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  dataset = source.refurbish(tf.identity, r=2, seed=1)
  first, second = iter(dataset), iter(dataset)
  next(first)
  number[0] = 8
  next(second)
  assert len(list(first)) == 9
  with pytest.raises(tf.errors.DataLossError, match="8 elements.* 10"):
    list(second)
  number[0] = 10
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))


def counted(elements, n, element=lambda x: x, broken=None):
  """A stream that records its elements in `elements` when they are read."""

  def note(x):
    if x == broken:
      raise ValueError("broken")
    elements.append(int(x))
    return x

  return Dataset.range(n).map(in_python(note)).map(element).filter(lambda x: True)


def in_the_buffer(dataset, elements, number):
  """Returns the number of elements in the buffer after `number` elements were handed out."""
  elements.clear()
  iterator = iter(dataset)
  for _ in range(number):
    next(iterator)
  return len(elements) - number


@pytest.mark.parametrize("size, held", [(None, 999), (1, 0), (7, 6), (5000, 1199)])
def test_shuffle_buffer_size(size, held):
  elements = []
  dataset = counted(elements, 1200).refurbish(
    tf.identity, r=2, seed=1, num_parallel_calls=None, shuffle_buffer_size=size
  )
  for number in (1, 10):
    assert in_the_buffer(dataset, elements, number) == min(held, 1200 - number)


def test_shuffle_buffer_of_large_elements():
  """The default is 256 MB: no element is read after the third one of 100 MB. A given size is always used."""
  elements = []
  source = counted(elements, 6, lambda x: tf.fill([100_000_000], tf.cast(x, tf.uint8)))
  for size, held in ((None, 2), (4, 3)):
    dataset = source.refurbish(lambda x: x[0], r=2, seed=1, num_parallel_calls=None, shuffle_buffer_size=size)
    assert in_the_buffer(dataset, elements, 2) == held
    assert size or sorted(dataset.as_numpy_iterator()) == list(range(6))


def test_shuffle_buffer_of_a_seed():
  """The order depends on the seed, and differs in each epoch."""

  def epochs(seed, **options):
    dataset = stream(60).refurbish(tf.identity, r=1, seed=seed, **options)
    return [list(map(int, dataset)) for _ in range(3)]

  first = epochs(1)
  assert first == epochs(1) != epochs(2)
  assert all(sorted(epoch) == list(range(60)) for epoch in first)
  assert len(set(map(tuple, first))) == 3
  assert epochs(1, shuffle_buffer_size=1) == 3 * [list(range(60))]


def test_elements_in_the_shuffle_buffer_before_an_error_are_kept():
  """Only elements read after the error have an unknown position in the source."""
  store = rtf.CacheStore()
  dataset = counted([], 10, broken=5).refurbish(
    tf.identity, r=100, seed=1, num_parallel_calls=None, store=store, shuffle_buffer_size=7
  )
  values, errors = read(dataset)
  assert sorted(map(int, values)) == [0, 1, 2, 3, 4, 6, 7, 8, 9] and len(errors) == 1
  assert {index for index in range(10) if index in store} == set(range(5))
