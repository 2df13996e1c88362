"""A refurbish stage is a good citizen of tf.data: structures, cardinality, options, functions, errors, threads, memory."""
import collections
import fractions
import functools
import gc
import inspect
import os
import random
import re
import threading
import time

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.kernel_tests import test_base
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.ops import test_mode

import refurbish_tf as rtf
from support import cases, waiting
from support.datasets import OPTIONS, call_in_python, fresh, resident, stats, stream

Dataset = tf.data.Dataset
Point = collections.namedtuple("Point", ["x", "y"])


def plain(value):
  """The value in Python's terms, to be compared and sorted."""
  if isinstance(value, tf.RaggedTensor):
    return "ragged", value.to_list()
  if isinstance(value, tf.SparseTensor):
    return "sparse", value.indices.numpy().tolist(), value.values.numpy().tolist(), value.dense_shape.numpy().tolist()
  if value is None:
    return None
  return value.dtype.name, np.array(value.numpy(), object).tolist()


def elements(dataset):
  """All elements, in an order that depends on nothing but their values."""
  return sorted(repr([plain(value) for value in tf.nest.flatten(element)]) for element in dataset)


def read(dataset, limit=1000):
  """Reads to the end across errors. Returns the elements and the errors."""
  iterator = iter(dataset)
  values, errors = [], []
  for _ in range(limit):
    try:
      values.append(next(iterator))
    except StopIteration:
      return values, errors
    except tf.errors.OpError as error:
      errors.append(error)
  raise AssertionError(f"No end after {limit} calls; the last error is {errors[-1:]}.")


class Switch:
  """A function of a dataset that fails for the indices in `bad`."""

  def __init__(self, *bad):
    self.bad = set(bad)

  def check(self, index):
    if int(index) in self.bad:
      raise ValueError(f"broken file {index}")
    return index

  def __call__(self, index):
    return call_in_python(tf.autograph.experimental.do_not_convert(self.check), index)


# Structures. ------------------------------------------------------------------------------------------------------------

STRUCTURES = {
    # name: (source, partial_fn, final_fn)
    "scalar": (lambda: Dataset.range(5), lambda x: x + 1, lambda x: 2 * x),
    "tuple": (
        lambda: Dataset.from_tensor_slices((np.arange(5), np.arange(5.0))), lambda x, y: (y, x, x), lambda y, x, z: (x, y + 1)),
    "tuple of one": (lambda: Dataset.from_tensor_slices((np.arange(5),)), lambda x: (x + 1,), lambda x: (2 * x,)),
    "dict": (
        lambda: Dataset.from_tensor_slices({"image": np.zeros([5, 2, 2, 3], np.uint8), "label": np.arange(5)}),
        lambda element: {"label": element["label"], "image": tf.cast(element["image"], tf.float32)},
        lambda element: (element["image"], element["label"])),
    "nest": (
        lambda: Dataset.from_tensor_slices(({"a": (np.arange(5), np.arange(5))}, np.arange(5.0))),
        lambda d, y: {"b": (d["a"][1], {"c": y}), "d": d["a"][0]}, lambda element: (element["b"], (element["d"],))),
    "named tuple": (
        lambda: Dataset.from_tensor_slices(Point(np.arange(5), np.arange(5.0))), lambda point: Point(point.y, point.x),
        lambda point: point._replace(x=point.x + 1)),
    "list": (lambda: Dataset.range(5), lambda x: [x, x + 1], lambda x, y: [x, y, x + y]),
    "list inside": (lambda: Dataset.range(5), lambda x: {"a": [x, x + 1]}, lambda d: d["a"]),
    "string": (
        lambda: Dataset.from_tensor_slices(["a", "bc", "", "def"]), lambda text: tf.strings.join([text, "!"]), tf.strings.upper),
    "ragged": (
        lambda: Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], [], [4]])), lambda x: 2 * x, lambda x: x + 1),
    "ragged, two ranks": (
        lambda: Dataset.from_tensor_slices(tf.ragged.constant([[[1], [2, 3]], [], [[4, 5, 6]]])), lambda x: 2 * x,
        lambda x: x + 1),
    "ragged made": (
        lambda: Dataset.range(5), lambda x: {"r": tf.RaggedTensor.from_row_lengths(tf.range(x), [x, 0]), "x": x},
        lambda element: element["r"].with_values(element["r"].values + 1)),
    "sparse": (
        lambda: Dataset.from_tensor_slices(tf.sparse.from_dense([[0, 1], [2, 3], [0, 0]])), lambda x: x * 2,
        tf.sparse.to_dense),
    "sparse made": (
        lambda: Dataset.range(5), lambda x: (x, tf.sparse.from_dense(tf.one_hot(x, 5))), lambda x, s: (s, x)),
    "tensor array": (
        lambda: Dataset.range(5), lambda x: tf.TensorArray(tf.int64, 2).unstack([x, x + 1]), lambda array: array.stack()),
    "dataset": (lambda: Dataset.range(5), Dataset.range, lambda numbers: numbers.reduce(np.int64(0), tf.add)),
    "optional": (
        lambda: Dataset.range(5), tf.experimental.Optional.from_value, lambda optional: optional.get_value()),
    "None": (lambda: Dataset.range(5), lambda x: (x, None), lambda x, nothing: {"x": x, "nothing": nothing}),
    "unknown size": (lambda: Dataset.range(5), lambda x: tf.fill([x, 2], x), lambda x: x + 1),
    "unknown rank": (
        lambda: Dataset.range(5), lambda x: tf.numpy_function(lambda x: np.zeros([1] * int(x), np.int64), [x], tf.int64),
        lambda x: x + 1),
    "numpy, python": (lambda: Dataset.range(5), lambda x: (np.float32(1.5), 2), lambda x, y: (x, y, "z")),
    "all types": (
        lambda: Dataset.range(3),
        lambda x: tuple(tf.cast(x, t) for t in (tf.bool, tf.uint8, tf.int16, tf.float16, tf.bfloat16, tf.complex64, tf.uint64)),
        lambda *values: values),
    "batches": (
        lambda: Dataset.range(10).batch(3), lambda x: tf.reverse(x, [0]), lambda x: x + 1),
}


def with_seed(function):
  """The same function, that also takes a seed and checks it."""

  def wrapped(*args, seed):
    assert seed.dtype == tf.int32 and seed.shape == [2]
    return function(*args)

  return wrapped


@cases.each_value
@pytest.mark.parametrize("seed", [False, True])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_structures(kind, seed):
  """Values and element_spec are those of the two functions applied by map, whatever the structure; fresh or cached."""
  source, partial_fn, final_fn = STRUCTURES[kind]
  source = source()
  expected = source.map(partial_fn)
  actual = {}
  if not seed and kind not in ("dataset", "optional", "tensor array"):  # These are no values to compare.
    actual["partial_fn alone"] = source.refurbish(partial_fn, r=2, seed=1), expected
  expected = expected.map(final_fn)
  if seed:
    actual["with seeds"] = source.refurbish(with_seed(partial_fn), with_seed(final_fn), r=2, seed=1), expected
  else:
    actual["both functions"] = source.refurbish(partial_fn, final_fn, r=2, seed=1), expected
  for refurbished, mapped in actual.values():
    assert refurbished.element_spec == mapped.element_spec
    values = elements(mapped)
    for _ in range(2):
      assert elements(refurbished) == values


SIGNATURES = {
    "takes a seed": (lambda x, seed: seed, True),
    "takes a seed as keyword only": (lambda x, *, seed: seed, True),
    "takes a seed after any": (lambda *args, seed: seed, True),
    "has a default": (lambda x, seed=None: seed, True),
    "takes none": (lambda x: tf.zeros([2], tf.int32), False),
    "takes any keyword": (lambda x, **options: tf.zeros([2], tf.int32) + len(options), False),
    "takes a component of that name": (lambda seed: tf.zeros([2], tf.int32), False),
    "partial": (functools.partial(lambda k, x, seed: seed, 3), True),
    "partial with a seed": (functools.partial(lambda x, seed: seed, seed=tf.zeros([2], tf.int32)), False),
    "function": (tf.function(lambda x, seed: seed), True),
    "without signature": (functools.partial(max, np.zeros([2], np.int32), key=lambda x: 0), False),
}


class Callable:

  def __call__(self, x, seed):
    return seed

  def method(self, x, seed):
    return seed

  @classmethod
  def of_class(cls, x, seed):
    return seed

  @staticmethod
  def static(x, seed):
    return seed


SIGNATURES.update({
    "callable": (Callable(), True), "method": (Callable().method, True), "class method": (Callable.of_class, True),
    "static method": (Callable.static, True)})


@pytest.mark.parametrize("kind", SIGNATURES)
def test_who_is_given_a_seed(kind):
  """A function is given a seed just when it has a parameter of that name which no component takes."""
  function, takes = SIGNATURES[kind]
  for dataset in (Dataset.range(4).refurbish(function), Dataset.range(4).refurbish(tf.identity, function)):
    seeds = {tuple(seed) for seed in dataset.as_numpy_iterator()}
    assert len(seeds) == (4 if takes else 1)
    assert takes or seeds == {(0, 0)}


def test_a_component_that_is_called_seed():
  """Elements may have a component `seed` themselves; it is theirs."""
  pairs = Dataset.from_tensor_slices((np.arange(4), 10 * np.arange(4)))
  assert elements(pairs.refurbish(lambda image, seed: image + seed)) == elements(pairs.map(lambda x, y: x + y))
  named = Dataset.from_tensor_slices({"seed": np.arange(4)})
  assert elements(named.refurbish(lambda element: element["seed"])) == elements(Dataset.range(4))
  both = named.refurbish(lambda element, seed: (element["seed"], seed))
  assert both.element_spec[1] == tf.TensorSpec([2], tf.int32)
  assert sorted(int(x) for x, _ in both) == [0, 1, 2, 3]


def test_functions_of_tensorflow():
  """Where `seed` is the required argument of a stateless function it is given; an optional one seeds a state of TensorFlow's
  own and is left alone."""
  images = Dataset.from_tensor_slices(np.arange(20 * 4, dtype=np.uint8).reshape(20, 1, 4, 1))
  flip = tf.image.stateless_random_flip_left_right
  flipped = [sorted(image.tobytes() for image in images.refurbish(flip, seed=seed).as_numpy_iterator()) for seed in (1, 1, 2)]
  assert flipped[0] == flipped[1] != flipped[2]
  for image in images.refurbish(tf.image.random_flip_left_right).as_numpy_iterator():
    assert image.ravel().tolist() in (sorted(image.ravel()), sorted(image.ravel(), reverse=True))
  brighter = functools.partial(tf.image.random_brightness, max_delta=0.2)
  assert len(list(images.refurbish(brighter, brighter))) == 20


@pytest.mark.filterwarnings("error")
def test_functions_are_called_as_by_map():
  """Autograph converts them; variables and tables may be captured; TensorFlow complains of nothing."""
  variable = tf.Variable(10, dtype=tf.int64)
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2], tf.int64), tf.constant([5, 6, 7], tf.int64)), -1)

  def partial_fn(x):
    if x > 1:
      return table.lookup(x)
    return x

  def final_fn(x):
    total = tf.constant(0, tf.int64)
    for i in tf.range(x):
      total += i
    return total + variable

  dataset = Dataset.range(4).refurbish(partial_fn, final_fn, r=2, seed=1)
  assert elements(dataset) == elements(Dataset.range(4).map(partial_fn).map(final_fn))
  assert sorted(dataset.as_numpy_iterator()) == [10, 10, 10, 31]
  variable.assign(0)
  assert sorted(dataset.as_numpy_iterator()) == [0, 0, 0, 21]


class RefurbishTest(test_base.DatasetTestBase, parameterized.TestCase):
  """The basic tests of tf.data's own transformations."""

  test_session = None  # Of the base, and no test.

  def tearDown(self):
    super().tearDown()
    # What the base sets for the whole process: warm start for all datasets, and a seed.
    test_mode.toggle_test_mode(False)
    tf.random.set_seed(None)

  @parameterized.product(
      [{"n": 1, "final": False}, {"n": 2, "final": True}, {"n": 10, "final": True}], r=[1, 1.5, 3], streamed=[False, True])
  def test_produces(self, n, r, streamed, final):
    source = stream(n) if streamed else Dataset.range(n)
    dataset = source.refurbish(lambda x: 2 * x, (lambda x: x + 1) if final else None, r=r, seed=1)
    self.assertDatasetProduces(
        dataset, [2 * x + final for x in range(n)], assert_items_equal=True, num_test_iterations=4)

  def test_shapes(self):
    known = Dataset.range(4).refurbish(lambda x: tf.zeros([3, 2]))
    self.assertDatasetProduces(known, [np.zeros([3, 2])] * 4, expected_shapes=tf.TensorShape([3, 2]))
    unknown = Dataset.range(1, 4).refurbish(lambda x: tf.zeros([x, 2])).padded_batch(3)
    self.assertDatasetProduces(unknown, [np.zeros([3, 3, 2])], expected_shapes=tf.TensorShape([None, None, 2]))

  def test_error(self):
    dataset = Dataset.range(4).refurbish(lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / 0.0, "NaN"))
    self.assertDatasetProduces(
        dataset, expected_error=(tf.errors.InvalidArgumentError, "Preparing sample . of the source of refurbish failed"))

  def test_name(self):
    dataset = Dataset.range(4).refurbish(tf.identity, tf.identity, name="refurbish_test")
    self.assertDatasetProduces(dataset, list(range(4)), assert_items_equal=True)
    self.assertEqual(stats(dataset).name, "refurbish_test")


def test_signature():
  """The parameters are those that were agreed on, by their names and with their defaults."""
  parameters = inspect.signature(Dataset.refurbish).parameters
  assert list(parameters)[1:4] == ["partial_fn", "final_fn", "r"]
  defaults = {name: parameter.default for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
  assert parameters["final_fn"].default is None and parameters["r"].default == 2
  assert defaults == {
      "store": None, "seed": None, "order_seed": None, "shuffle_buffer_size": None, "eviction": "balanced",
      "shuffle": "cache_aware", "num_parallel_calls": tf.data.AUTOTUNE, "deterministic": None, "name": None}


# Seeds. -----------------------------------------------------------------------------------------------------------------


def epochs(dataset, number=3):
  return [list(map(tuple, dataset.as_numpy_iterator())) for _ in range(number)]


def draw(index, seed):
  return index, seed


def draw_again(index, first, seed):
  return index, *tf.unstack(first), *tf.unstack(seed)


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
@pytest.mark.parametrize("options", [
    {}, {"r": 1.5}, {"eviction": "reference_count"}, {"shuffle": "uniform"}, {"shuffle_buffer_size": 4},
    {"num_parallel_calls": None}], ids=str)
def test_apply_makes_the_same_stage(source, options):
  """ds.apply(rtf.refurbish(...)) and ds.refurbish(...) of one seed give the same elements in the same order."""
  method = source.refurbish(draw, draw_again, seed=3, **options)
  applied = source.apply(rtf.refurbish(draw, draw_again, seed=3, **options))
  assert epochs(method) == epochs(applied)
  other = source.refurbish(draw, draw_again, seed=4, **options)
  assert epochs(method) != epochs(other)


def test_the_global_seed():
  """Without a seed the stage takes one from tf.random.set_seed, and a random one without that."""
  def make():
    return epochs(Dataset.range(10).refurbish(draw, draw_again))

  try:
    tf.random.set_seed(5)
    first, second = make(), make()
    assert first != second  # Two stages of one program differ.
    tf.random.set_seed(5)
    assert [make(), make()] == [first, second]
    tf.random.set_seed(6)
    assert make() != first
  finally:
    tf.random.set_seed(None)
  assert make() != make()


# Cardinality. -----------------------------------------------------------------------------------------------------------


def test_cardinality_is_that_of_the_source():
  for source in (Dataset.range(7), stream(7).apply(tf.data.experimental.assert_cardinality(7)), Dataset.range(9).skip(2)):
    dataset = source.refurbish(tf.identity, tf.identity)
    assert len(dataset) == 7 and len(dataset.batch(2)) == 4
    list(dataset)
    assert len(dataset) == 7
  assert Dataset.range(7).refurbish(tf.identity).repeat().cardinality() == tf.data.INFINITE_CARDINALITY


def test_cardinality_is_known_after_the_first_pass():
  """An unknown length stays unknown through a pass that was stopped; of it the length is known, also behind other stages."""
  dataset = stream(7).refurbish(tf.identity, tf.identity)
  batched = dataset.batch(2).prefetch(1)
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  list(dataset.take(6))
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  list(batched)
  assert len(dataset) == 7 and len(batched) == 4


# Sources. ---------------------------------------------------------------------------------------------------------------


def plus_one(x):
  return x + 1


def ranges():
  return Dataset.range(10), Dataset.range(10, 20)


SOURCES = {
    "range": lambda: Dataset.range(20),
    "range down": lambda: Dataset.range(20, 0, -1),
    "slices": lambda: Dataset.from_tensor_slices(np.arange(20)),
    "tensors": lambda: Dataset.from_tensors(np.int64(3)),
    "one": lambda: Dataset.range(1),
    "list": lambda: tf.data.experimental.from_list(list(np.arange(20))),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(20)), output_signature=tf.TensorSpec([], tf.int64)),
    "random numbers": lambda: Dataset.random(seed=1).take(9),
    "map": lambda: Dataset.range(20).map(plus_one),
    "parallel map": lambda: Dataset.range(20).map(plus_one, num_parallel_calls=4),
    "prefetch": lambda: Dataset.range(20).prefetch(3),
    "parallel map, prefetch": lambda: Dataset.range(20).map(plus_one, num_parallel_calls=4).prefetch(3).map(plus_one),
    "zip": lambda: Dataset.zip(Dataset.range(20).prefetch(2), Dataset.range(100, 130).map(plus_one, num_parallel_calls=2)),
    "enumerate": lambda: Dataset.range(5, 25).enumerate(),
    "batch": lambda: Dataset.range(20).batch(3),
    "batch, remainder dropped": lambda: Dataset.range(20).batch(3, drop_remainder=True),
    "parallel batch": lambda: Dataset.range(20).batch(3, num_parallel_calls=2),
    "padded batch": lambda: Dataset.range(6).map(lambda x: tf.fill([x], x)).padded_batch(2),
    "ragged batch": lambda: Dataset.range(6).map(lambda x: tf.fill([x], x)).ragged_batch(2),
    "rebatch": lambda: Dataset.range(20).batch(4).rebatch(3),
    "unbatch": lambda: Dataset.range(20).batch(3).unbatch(),
    "concatenate": lambda: Dataset.range(5).concatenate(Dataset.range(3)).concatenate(Dataset.range(10, 16)),
    "concatenate with threads": lambda: Dataset.range(12).map(plus_one, num_parallel_calls=3).concatenate(
        Dataset.range(50, 58).prefetch(2)).map(plus_one, num_parallel_calls=3).prefetch(2),
    "zip of concatenate": lambda: Dataset.zip(
        Dataset.range(5).concatenate(Dataset.range(7)), Dataset.range(12).prefetch(1)),
    "skip, take": lambda: Dataset.range(30).skip(3).take(9),
    "take more than there is": lambda: Dataset.range(5).take(50),
    "shard": lambda: Dataset.range(20).shard(3, 1),
    "repeat": lambda: Dataset.range(10).shard(2, 1).repeat(3),
    "repeat, batch": lambda: Dataset.range(7).repeat(3).batch(4),
    "options": lambda: Dataset.range(20).with_options(tf.data.Options()),
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
    "interleave": lambda: Dataset.range(4).interleave(lambda i: Dataset.range(5).map(lambda x: x + 10 * i), cycle_length=2),
    "parallel interleave": lambda: Dataset.range(4).interleave(
        lambda i: Dataset.range(5).map(lambda x: x + 10 * i), cycle_length=2, num_parallel_calls=2),
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


# Their threads would read ahead before the stage has said what it wants.
WITH_THREADS = [
    "map", "parallel map", "prefetch", "parallel map, prefetch", "zip", "concatenate with threads", "zip of concatenate",
    "enumerate", "map, cache", "filter, prefetch", "parallel interleave"]


@pytest.mark.parametrize("kind, warm_start", [
    *((kind, False) for kind in SOURCES), *((kind, True) for kind in WITH_THREADS)])
def test_sources(kind, warm_start):
  """From any source each epoch is whole, and what is cached as sample i is what partial_fn made of the i-th element."""
  source = SOURCES[kind]()
  expected = list(source.map(to_text).as_numpy_iterator())
  store = rtf.CacheStore()
  options = tf.data.Options()
  options.experimental_warm_start = warm_start
  dataset = source.refurbish(to_text, r=2, seed=1, store=store).with_options(options)
  for _ in range(3):
    assert sorted(dataset.as_numpy_iterator()) == sorted(expected)
    for i, sample in enumerate(expected):
      assert i not in store or store.get(i) == sample
  found = stats(dataset)
  assert len(found.epochs) == 3 and found.total.absent == 0
  assert found.epochs[0].fresh == len(expected)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("parallel", [None, 2])
def test_a_cached_stream_is_read_to_its_end(capfd, parallel, final):
  """Who knows the number of batches takes just these and never asks for one more; a cache() upstream is complete all the
  same, reads its own source once and does not complain."""
  read_from_source = tf.Variable(0)

  def count(x):
    read_from_source.assign_add(1)
    return x

  # Because of the filter the cache does not know how many elements come, so only the end tells it that it has all.
  source = Dataset.range(64).map(count).filter(lambda x: True).cache().apply(tf.data.experimental.assert_cardinality(64))
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False  # It would read to the end, most of the time.
  dataset = source.refurbish(
      tf.identity, tf.identity if final else None, r=2, seed=1, num_parallel_calls=parallel).batch(16).with_options(options)
  for _ in range(4):
    iterator = iter(dataset)
    assert sorted(np.concatenate([next(iterator) for _ in range(4)])) == list(range(64))
    del iterator
  assert int(read_from_source) == 64
  assert "did not fully read" not in capfd.readouterr().err


# Behind the stage. ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
def test_transformations_behind_the_stage(source):
  dataset = source.refurbish(lambda x: 10 * x, r=2, seed=1)
  whole = [10 * x for x in range(10)]
  assert sorted(np.concatenate(list(dataset.batch(3).as_numpy_iterator()))) == whole
  assert [len(batch) for batch in dataset.batch(3, drop_remainder=True).as_numpy_iterator()] == [3, 3, 3]
  assert sorted(dataset.prefetch(3).map(tf.identity, num_parallel_calls=2).as_numpy_iterator()) == whole
  assert sorted(dataset.shuffle(10).as_numpy_iterator()) == whole
  assert sorted(dataset.enumerate().map(lambda i, x: x - 0 * i).as_numpy_iterator()) == whole
  assert sorted(dataset.filter(lambda x: x > 30).as_numpy_iterator()) == whole[4:]
  assert sorted(x for x, _ in Dataset.zip(dataset, Dataset.range(10)).as_numpy_iterator()) == whole
  assert sorted(dataset.concatenate(Dataset.range(2)).as_numpy_iterator()) == sorted(whole + [0, 1])
  assert int(dataset.reduce(np.int64(0), tf.add)) == sum(whole)
  cached = dataset.cache()
  assert list(cached.as_numpy_iterator()) == list(cached.as_numpy_iterator())
  assert sorted(cached.as_numpy_iterator()) == whole
  assert sorted(dataset.ignore_errors().as_numpy_iterator()) == whole
  # All of these are epochs of the one stage, and none began one that it did not read.
  assert all(epoch.fresh + epoch.cached == 10 for i, epoch in enumerate(stats(dataset).epochs) if i != 1)


@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
def test_repeat(source):
  """The epochs of .repeat() are epochs of the stage."""
  dataset = source.refurbish(tf.identity, r=2, seed=1).repeat(4)
  values = np.reshape(list(dataset.as_numpy_iterator()), [4, 10])
  assert np.array_equal(np.sort(values), [range(10)] * 4)
  assert len({tuple(epoch) for epoch in values}) == 4
  assert fresh(dataset) == [10, 5, 5, 5]
  forever = source.refurbish(tf.identity, r=2, seed=1).repeat()
  assert np.array_equal(np.reshape(list(forever.take(40).as_numpy_iterator()), [4, 10]), values)


def test_take():
  """Epochs that are stopped early count as epochs, in which nothing comes twice."""
  dataset = Dataset.range(10).refurbish(tf.identity, r=2, seed=1)
  for stop in (0, 1, 4, 9, 10, 11):
    values = list(dataset.take(stop).as_numpy_iterator())
    assert len(values) == min(stop, 10) == len(set(values))
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))
  assert len(stats(dataset).epochs) == 6  # take(0) reads nothing.


def test_an_iterator_that_is_made_but_not_read_begins_no_epoch():
  source = Dataset.range(10)
  for dataset in (source.refurbish(tf.identity), source.refurbish(tf.identity, tf.identity).batch(2).prefetch(2)):
    iterators = [iter(dataset) for _ in range(5)]
    del iterators
    assert stats(dataset).epochs == ()


def test_two_iterators_at_once():
  """Each has an epoch of its own, whole, whichever is ahead."""
  for source in (Dataset.range(20), stream(20)):
    dataset = source.refurbish(tf.identity, tf.identity, r=2, seed=1)
    randomly = random.Random(1)
    for _ in range(5):
      values = [[], []]
      iterators = [iter(dataset), iter(dataset)]
      while iterators[0] or iterators[1]:
        which = randomly.randrange(2)
        if iterators[which]:
          value = next(iterators[which], None)
          if value is None:
            iterators[which] = None
          else:
            values[which].append(int(value))
      assert [sorted(each) for each in values] == [list(range(20))] * 2


@pytest.mark.parametrize("source", [Dataset.range(50), stream(50)], ids=["range", "stream"])
@pytest.mark.parametrize("options", [
    {"r": 2.7, "shuffle_buffer_size": 7}, {"deterministic": False, "max_bytes": 160}, {"num_parallel_calls": None}], ids=str)
def test_many_threads(source, options):
  """Iterators in several threads, some of them stopped early, while samples are removed: all epochs are whole."""
  options = dict(options)
  store = rtf.CacheStore(max_bytes=options.pop("max_bytes", None))
  dataset = source.refurbish(tf.identity, tf.identity, store=store, seed=1, **options)
  failures = []

  def work(number):
    randomly = random.Random(number)
    try:
      for _ in range(6):
        stop = randomly.choice([None, None, randomly.randrange(50)])
        values = [int(value) for value in (dataset if stop is None else dataset.take(stop))]
        assert sorted(values) == list(range(50)) if stop is None else len(set(values)) == stop
        store.clear()
    except BaseException as error:  # pylint: disable=broad-exception-caught
      failures.append(error)

  threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert not failures and not any(thread.is_alive() for thread in threads)


# Graphs and options. ----------------------------------------------------------------------------------------------------


def rebuilt(dataset):
  """The dataset that TensorFlow makes from the graph of this one, as when it rewrites it."""
  graph = dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL)
  return dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), dataset.element_spec)


@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
def test_rebuilt_from_its_graph(source):
  """A dataset rebuilt from its graph is the same stage: it goes on where the first one stopped and shares its samples."""
  kinds = dict(r=2, seed=1, shuffle_buffer_size=3)
  original = source.refurbish(draw, draw_again, **kinds)
  copy = rebuilt(original)
  alternating = [list(map(tuple, dataset.as_numpy_iterator())) for dataset in (original, copy, copy, original)]
  assert alternating == epochs(source.refurbish(draw, draw_again, **kinds), 4)
  assert fresh(original) == [10, 5, 5, 5]
  # It outlives the first one, with its samples.
  calls = []
  dataset = source.refurbish(lambda x: call_in_python(lambda x: calls.append(x) or x, x), r=100, seed=1)
  list(dataset)
  copy = dataset_ops._VariantDataset(
      tf.raw_ops.DatasetFromGraph(graph_def=dataset._as_serialized_graph(
          external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)), dataset.element_spec)
  del dataset
  gc.collect()
  assert sorted(copy.as_numpy_iterator()) == list(range(10))
  assert len(calls) == 10


@cases.each_value
@pytest.mark.parametrize("source", [lambda: Dataset.range(20).skip(0), lambda: stream(20)], ids=["random access", "stream"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, source):
  """With any option of the pipeline epochs are whole and the stage counts as without; the rewritten copies are one stage."""
  options = tf.data.Options()
  OPTIONS[name](options)
  dataset = source().refurbish(lambda x: 2 * x, lambda x: x + 1, r=2, seed=1).map(tf.identity).map(
      tf.identity).repeat(1).batch(3).prefetch(2).with_options(options)
  for _ in range(3):
    assert sorted(np.concatenate(list(dataset.as_numpy_iterator()))) == [2 * x + 1 for x in range(20)]
  assert fresh(dataset) == [20, 10, 10]
  assert stats(dataset).total.absent == 0


def shuffled_by_time(x):
  """The later the sample, the sooner it is ready."""
  return call_in_python(lambda x: time.sleep(0.002 * (3 - int(x) % 4)) or x, x)


def test_deterministic_false():
  """Both maps may then give elements in any order, by argument or by option; identity and epochs stay."""
  options = tf.data.Options()
  options.deterministic = False
  for source in (Dataset.range(24), stream(24)):
    for options_of_stage, whole in (({"deterministic": False}, tf.data.Options()), ({}, options)):
      store = rtf.CacheStore()
      dataset = source.refurbish(
          shuffled_by_time, shuffled_by_time, store=store, r=3, seed=1, num_parallel_calls=8, **options_of_stage).with_options(whole)
      for _ in range(3):
        assert sorted(dataset.as_numpy_iterator()) == list(range(24))
        assert all(int(store.get(i)) == i for i in range(24) if i in store)
      assert fresh(dataset) == [24, 8, 8]


def test_an_option_that_lets_the_source_change_its_order_is_refused():
  """Also when it is set behind the stage, where it is noticed when an iterator is made."""
  options = tf.data.Options()
  options.deterministic = False
  dataset = Dataset.range(10).map(plus_one, num_parallel_calls=2).refurbish(shuffled_by_time, r=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match="deterministic=False.*argument of refurbish"):
    list(dataset.with_options(options))
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))


# In functions. ----------------------------------------------------------------------------------------------------------


def test_iterated_in_a_function():
  """Each call of a function that loops over the dataset is an epoch."""
  dataset = Dataset.range(10).refurbish(tf.identity, r=2, seed=1)

  @tf.function
  def total():
    result, number = tf.constant(0, tf.int64), 0
    for value in dataset:
      result += value
      number += 1
    return result, number

  for _ in range(3):
    assert tuple(map(int, total())) == (45, 10)
  assert fresh(dataset) == [10, 5, 5]
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))
  assert fresh(dataset) == [10, 5, 5, 5]


def test_built_in_a_function():
  """A stage that a function builds is another one at each call; within a call it is one for all loops."""
  calls = tf.Variable(0)

  def count(x):
    calls.assign_add(1)
    return x

  @tf.function
  def total():
    dataset = Dataset.range(10).refurbish(count, r=100)
    result = tf.constant(0, tf.int64)
    for value in dataset:
      result += value
    for value in dataset:
      result += 100 * value
    return result

  for call in range(1, 4):
    assert int(total()) == 45 + 4500
    assert int(calls) == 10 * call


@pytest.mark.parametrize("parallel", [None, 2])
def test_built_in_a_function_of_a_dataset(parallel):
  """In flat_map and interleave each inner stage is one by itself, which lives as long as its inner dataset: whole, right,
  and of no use, as it is never iterated twice."""
  def inner(i):
    return Dataset.range(i + 2).map(lambda x: x + 10 * i).refurbish(tf.identity, r=2, seed=1)

  expected = [x + 10 * i for i in range(4) for x in range(i + 2)]
  datasets = [Dataset.range(4).interleave(inner, cycle_length=3, num_parallel_calls=parallel)]
  if parallel is None:
    datasets.append(Dataset.range(4).flat_map(inner))
  for dataset in datasets:
    for _ in range(3):
      assert sorted(dataset.as_numpy_iterator()) == expected
    assert rtf.stats(dataset) == []


def test_a_stage_captured_by_a_function_of_a_dataset():
  """One stage that an outer function iterates once for each of its elements: these are its epochs."""
  calls = []
  stage = Dataset.range(5).refurbish(lambda x: call_in_python(lambda x: calls.append(x) or x, x), r=100, seed=1)
  outer = Dataset.range(3).flat_map(lambda i: stage.map(lambda x: x + 10 * i))
  assert sorted(outer.as_numpy_iterator()) == [x + 10 * i for i in range(3) for x in range(5)]
  assert len(calls) == 5
  assert fresh(stage) == [5, 0, 0]


def test_initializable_iterator_in_a_graph():
  """In a graph of TensorFlow 1, too."""
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    dataset = Dataset.range(10).refurbish(lambda x: 2 * x, r=2, seed=1)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    value = iterator.get_next()
    for _ in range(3):
      session.run(iterator.initializer)
      assert sorted(session.run(value) for _ in range(10)) == list(range(0, 20, 2))
      with pytest.raises(tf.errors.OutOfRangeError):
        session.run(value)


# Threads and memory. ----------------------------------------------------------------------------------------------------


def threads():
  return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("prefetch", [False, True])
def test_an_iterator_is_dropped_while_partial_fn_is_blocked(prefetch):
  """It is gone as soon as the calls under way have returned; no further one begins."""
  began, go = threading.Semaphore(0), threading.Event()
  calls = []

  def block(x):
    calls.append(x)
    if len(calls) > 3:
      began.release()
      go.wait(60)
    return x

  dataset = Dataset.range(1000).refurbish(
      lambda x: call_in_python(tf.autograph.experimental.do_not_convert(block), x), r=2, seed=1, num_parallel_calls=2)
  dataset = dataset.prefetch(2) if prefetch else dataset
  iterator = iter(dataset)
  next(iterator)
  assert began.acquire(timeout=60)
  time.sleep(0.05)  # So that the prefetching thread waits, too.
  under_way = len(calls)
  this = threading.current_thread()

  def let_go():
    waiting.until_asleep(this)
    go.set()

  other = threading.Thread(target=let_go)
  other.start()
  before = time.monotonic()
  del iterator
  gc.collect()
  assert time.monotonic() - before < 30
  other.join()
  assert len(calls) <= under_way + 1
  assert sorted(dataset.as_numpy_iterator()) == list(range(1000))


def test_iterators_dropped_at_any_time():
  """200 iterators of several pipelines, dropped after a few elements: no thread is left, and no epoch is harmed."""
  randomly = random.Random(1)

  def slow(x):
    return call_in_python(lambda x: time.sleep(0.003 if int(x) % 9 == 0 else 0) or x, x)

  datasets = [
      Dataset.range(40).refurbish(slow, r=2, seed=1),
      Dataset.range(40).refurbish(slow, slow, r=2, seed=1).prefetch(2),
      stream(40).refurbish(slow, slow, r=2, seed=1, shuffle_buffer_size=5).batch(4).prefetch(2),
      stream(40).refurbish(slow, r=2, seed=1, deterministic=False),
      Dataset.range(40).map(slow, num_parallel_calls=2).prefetch(2).refurbish(tf.identity, r=3, seed=1).batch(4),
  ]
  base = None
  for repetition in range(200):
    dataset = randomly.choice(datasets)
    iterator = iter(dataset)
    for _ in range(randomly.randrange(6)):
      next(iterator, None)
    time.sleep(randomly.random() * 0.002)
    del iterator
    if repetition == 30:
      base = threads()
  deadline = time.monotonic() + 30
  while threads() > base + 4 and time.monotonic() < deadline:
    time.sleep(0.05)
  assert threads() <= base + 4
  for dataset in datasets:
    values = list(dataset.as_numpy_iterator())
    assert sorted(np.concatenate(values) if np.ndim(values[0]) else values) == list(range(40))


def test_a_dropped_dataset_frees_its_samples():
  """They go with the last dataset or iterator that uses them, and until then there is one copy of each."""
  mebibyte = 2**20

  def use():
    dataset = Dataset.range(10).refurbish(lambda x: tf.fill([8 * mebibyte], tf.cast(x, tf.uint8)), r=100, seed=1)
    for _ in range(2):
      for _ in dataset:
        pass
    assert stats(dataset).total.bytes == 80 * mebibyte
    iterator = iter(dataset)
    next(iterator)
    del dataset
    for _ in iterator:
      pass

  before = resident()
  use()
  once = resident()
  assert once - before < 140 * mebibyte  # 80, and what is under way.
  # What was freed may stay with the process, but it is used again.
  for _ in range(5):
    use()
  assert resident() - once < 60 * mebibyte


def test_many_datasets_take_no_memory():
  """What one leaves behind that is made, read and dropped would add up."""
  options = tf.data.Options()  # Rewriting costs most of the time and is not what this is about.
  options.experimental_optimization.apply_default_optimizations = False
  options.autotune.enabled = False
  partial_fn = tf.autograph.experimental.do_not_convert(lambda x: tf.fill([1_000_000], tf.cast(x, tf.uint8)))
  make = lambda: Dataset.range(2).refurbish(partial_fn, r=2, num_parallel_calls=None).with_options(options)
  # Most are made from a graph: that leaves out the tracing, where only TensorFlow's memory is at stake.
  dataset = make()
  spec, graph = dataset.element_spec, dataset._as_serialized_graph()
  del dataset

  def make_and_read(number):
    for i in range(number):
      dataset = make() if i % 5 == 0 else dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)
      for _ in dataset:
        pass

  make_and_read(200 if cases.exhaustive else 50)
  base = resident()
  make_and_read(800 if cases.exhaustive else 400)
  # The one sample that each of them caches would make 400 MB, and 80 MB if it were only those that Python made.
  assert resident() - base < 60 * 2**20


def test_a_blocked_epoch_takes_no_lock():
  """While partial_fn of one iterator is blocked, another one reads its epoch of cached samples, and stats can be asked."""
  go, blocked = threading.Event(), threading.Event()
  armed = []

  def block(x):
    if armed:
      blocked.set()
      go.wait(60)
    return x

  store = rtf.CacheStore()
  dataset = Dataset.range(10).refurbish(
      lambda x: call_in_python(tf.autograph.experimental.do_not_convert(block), x), r=1000, seed=1, store=store)
  list(dataset)
  store.remove(3)
  armed.append(True)
  reader = threading.Thread(target=lambda: list(dataset), daemon=True)
  reader.start()
  assert blocked.wait(60)
  store.put(3, tf.constant(3, tf.int64))
  result = []
  read_and_ask = lambda: result.append((sorted(dataset.as_numpy_iterator()), len(stats(dataset).epochs)))
  other = threading.Thread(target=read_and_ask, daemon=True)
  other.start()
  other.join(30)
  finished = not other.is_alive()
  go.set()
  reader.join(30)
  assert finished and not reader.is_alive()
  assert result == [(list(range(10)), 3)]


# Bad input. -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, error", [
    (0, ValueError), (0.99, ValueError), (-1, ValueError), (float("nan"), ValueError), (np.nan, ValueError),
    (float("inf"), ValueError), (10**400, ValueError), ("2", TypeError), (None, TypeError), (True, TypeError),
    ([2], TypeError), (2j, TypeError), (tf.constant(2.0), TypeError)], ids=lambda value: repr(value)[:12])
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
    "seed float": ({"seed": 1.5}, TypeError, "seed must be .* got 1.5"),
    "seed large": ({"seed": 2**64}, ValueError, "seed must be .* got 18446744073709551616"),
    "partial_fn": ({"partial_fn": None}, TypeError, "partial_fn must be a function.* got None"),
    "final_fn": ({"final_fn": 3}, TypeError, "final_fn must be a function.* got 3"),
    "unknown": ({"reuse": 3}, TypeError, "unexpected keyword argument 'reuse'"),
}


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
def test_bad_arguments(kind):
  """What is wrong with the arguments is said when the stage is built, in both forms: what was given, what is allowed."""
  arguments, error, message = BAD_ARGUMENTS[kind]
  arguments = {"partial_fn": tf.identity, **arguments}
  with pytest.raises(error, match=message):
    Dataset.range(4).refurbish(**arguments)
  with pytest.raises(error, match=message):
    Dataset.range(4).apply(rtf.refurbish(**arguments))


BY_ITSELF = "refurbish shuffles by itself"
NOT_ALLOWED = "deterministic=False out of"

WAY_OUT = {
    "infinite": (lambda: Dataset.range(4).repeat(), r"infinite.*repeat\(\) behind"),
    "infinite counter": (lambda: Dataset.counter(), r"infinite.*take\(n\)"),
    "infinite, filtered": (lambda: Dataset.counter().filter(lambda x: x > 3).map(plus_one).prefetch(1), r"infinite.*take"),
    "empty": (lambda: Dataset.range(0), "no elements. Check"),
    "empty slices": (lambda: Dataset.from_tensor_slices([]), "no elements"),
    "skipped over": (lambda: Dataset.range(4).skip(9), "no elements"),
    "shuffle": (lambda: Dataset.range(4).shuffle(4), f"reshuffle_each_iteration.*{BY_ITSELF}.*behind"),
    "shuffle before map": (lambda: Dataset.range(4).shuffle(4, seed=1).map(plus_one).batch(2), BY_ITSELF),
    "shuffle and repeat": (lambda: Dataset.range(4).shuffle(4).repeat(2), BY_ITSELF),
    "shuffle in one of two": (lambda: Dataset.zip(Dataset.range(4), Dataset.range(4).shuffle(4)), BY_ITSELF),
    "shuffle in flat_map": (lambda: Dataset.range(3).flat_map(lambda x: Dataset.range(3).shuffle(3)), BY_ITSELF),
    "list_files": (lambda: Dataset.list_files(os.path.join(os.path.dirname(__file__), "*.py")), BY_ITSELF),
    "map": (lambda: Dataset.range(4).map(plus_one, num_parallel_calls=2, deterministic=False), NOT_ALLOWED),
    "interleave": (
        lambda: Dataset.range(4).interleave(Dataset.range, num_parallel_calls=2, deterministic=False), NOT_ALLOWED),
    "option": (
        lambda: Dataset.range(4).map(plus_one, num_parallel_calls=2).with_options(not_deterministic()), NOT_ALLOWED),
    "random numbers": (
        lambda: Dataset.random(rerandomize_each_iteration=True).take(4), "rerandomize_each_iteration=False"),
    "samples": (
        lambda: Dataset.sample_from_datasets(ranges(), rerandomize_each_iteration=True),
        "rerandomize_each_iteration=False"),
    "refurbish": (lambda: Dataset.range(4).refurbish(tf.identity).batch(2), "one partial_fn"),
}


def not_deterministic():
  options = tf.data.Options()
  options.deterministic = False
  return options


@pytest.mark.parametrize("kind", WAY_OUT)
def test_bad_sources(kind):
  """A source without epochs, or whose order changes between them, is refused when the stage is built, with the way out."""
  source, message = WAY_OUT[kind]
  with pytest.raises(ValueError, match=f"(?s){message}") as caught:
    source().refurbish(lambda *elements: elements)
  assert "Op:" not in str(caught.value) and "{{" not in str(caught.value)  # None of TensorFlow's own decoration.
  assert caught.value.__suppress_context__


@pytest.mark.parametrize("source", [
    lambda: Dataset.range(4).shuffle(4, reshuffle_each_iteration=False),
    lambda: Dataset.range(4).map(plus_one, num_parallel_calls=2),
    lambda: Dataset.range(4).with_options(not_deterministic()),
    lambda: Dataset.counter().take(4),
    lambda: Dataset.list_files(os.path.join(os.path.dirname(__file__), "*.py"), shuffle=False)])
def test_sources_that_keep_their_order_are_not_refused(source):
  list(source().refurbish(tf.identity))


def test_an_empty_source_of_unknown_length():
  """It is found empty when it is read, which is an error and not an epoch of nothing; once it has elements, all is well."""
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


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shuffle_buffer_size", [None, 4])
def test_a_source_whose_length_changes(known, shuffle_buffer_size):
  """DataLossError with the length it had, once; with the old length the next epoch is whole again."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  if known:
    # A source that states its length wrongly: assert_cardinality would find it by itself.
    source = Dataset.zip(source, Dataset.range(10)).map(lambda x, _: x)
    source = source if source.cardinality() == 10 else source.map(tf.identity)
  dataset = source.refurbish(tf.identity, r=2, seed=1, shuffle_buffer_size=shuffle_buffer_size)
  for length in (10, 10, 7, 10, 10, 12, 10, 0, 10, 9, 11, 10, 10):
    number[0] = length
    values, errors = read(dataset)
    values = [int(value) for value in values]
    assert len(set(values)) == len(values) and set(values) <= set(range(10))
    if length == 10 or (known and length > 10):  # zip stops at the shortest.
      assert not errors and sorted(values) == list(range(10))
    else:
      assert {type(error) for error in errors} == {tf.errors.DataLossError}
      for error in errors:
        comparison = "fewer" if length < 10 else "more"
        assert re.search(f"{comparison} than the 10 elements it had before.*same in every epoch", error.message)


def test_a_source_that_has_grown_while_samples_are_removed():
  """The epoch ends, and the error comes once."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  store = rtf.CacheStore()
  dataset = source.refurbish(tf.identity, r=2, seed=1, store=store)
  list(dataset)
  for stop in range(10):
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
    assert sorted(dataset.as_numpy_iterator()) == list(range(10))


def test_first_passes_of_different_length():
  """Two iterators at once over a source whose length nobody knows yet, and which gives them different numbers."""
  number = [10]
  source = Dataset.from_generator(lambda: iter(range(number[0])), output_signature=tf.TensorSpec([], tf.int64))
  dataset = source.refurbish(tf.identity, r=2, seed=1)
  first, second = iter(dataset), iter(dataset)
  next(first)
  number[0] = 8
  next(second)
  assert len(list(first)) == 9
  with pytest.raises(tf.errors.DataLossError, match="8 elements and, to another iterator, 10.*same in every epoch"):
    list(second)
  number[0] = 10
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))


@cases.each_value
@pytest.mark.parametrize("options", [
    {}, {"shuffle_buffer_size": 4}, {"num_parallel_calls": None}, {"num_parallel_calls": 1}], ids=str)
@pytest.mark.parametrize("where", ["partial_fn", "source"])
@pytest.mark.parametrize("streamed", [False, True])
def test_one_sample_fails(where, streamed, options):
  """The error carries the index of the sample; it costs this sample and no other; the next epoch tries again."""
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
        int(re.search(r"Preparing sample (\d+) of the source of refurbish failed", error.message)[1]) for error in errors]
    assert sorted(indices) == [4, 7]
    for index, error in zip(indices, errors):
      assert f"broken file {index}" in error.message
  switch.bad.clear()
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == list(range(10)) and not errors
  # What failed was never cached, so it was prepared at the first chance; from then on all goes by schedule.
  assert fresh(dataset)[-1] == 5


def test_one_sample_fails_out_of_order():
  """Also when samples come as they are ready the error names the one that it was."""
  def slow_but_for_one(x):
    if x == 4:
      raise ValueError("broken file 4")
    time.sleep(0.01)
    return x

  function = tf.autograph.experimental.do_not_convert(slow_but_for_one)
  dataset = Dataset.range(16).refurbish(
      lambda x: call_in_python(function, x), r=2, seed=1, deterministic=False, num_parallel_calls=8)
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == [x for x in range(16) if x != 4]
    error, = errors
    assert "Preparing sample 4 of" in error.message


def test_a_function_that_ends_early():
  """OutOfRange from partial_fn is an error of that sample and not the end of the epoch."""
  def stop(x):
    if x == 4:
      raise StopIteration
    return x

  dataset = Dataset.range(10).refurbish(
      lambda x: call_in_python(tf.autograph.experimental.do_not_convert(stop), x), seed=1)
  values, errors = read(dataset)
  assert len(values) == 9 and len(errors) == 1
  assert "Preparing sample 4" in errors[0].message


def test_final_fn_fails():
  """The error is that of map; the sample stays cached, and the epoch and the next ones go on."""
  switch = Switch(4)
  calls = []
  dataset = Dataset.range(10).refurbish(
      lambda x: call_in_python(lambda x: calls.append(x) or x, x), switch, r=100, seed=1)
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(map(int, values)) == [x for x in range(10) if x != 4]
    assert len(errors) == 1 and "broken file 4" in errors[0].message
  switch.bad.clear()
  assert sorted(dataset.as_numpy_iterator()) == list(range(10))
  assert len(calls) == 10


def test_ignore_errors():
  """The bad sample is left out, epoch after epoch."""
  for source in (Dataset.range(10), stream(10)):
    dataset = source.refurbish(Switch(4), r=2, seed=1).ignore_errors()
    for _ in range(3):
      assert sorted(dataset.as_numpy_iterator()) == [x for x in range(10) if x != 4]


def test_failing_elements_while_samples_are_removed():
  """Errors, removed samples and streams together: every epoch ends, and has everything that does not fail."""
  randomly = random.Random(1)
  for source_fails in (False, True):
    switch = Switch()
    store = rtf.CacheStore()
    source = Dataset.range(30).map(switch).take_while(lambda x: True) if source_fails else stream(30)
    dataset = source.refurbish(
        tf.identity if source_fails else switch, r=2, seed=1, store=store, shuffle_buffer_size=5)
    list(dataset)
    for _ in range(20):
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
  """A sample of another shape than was traced is refused, by index, with both shapes; the others come."""
  def partial_fn(x):
    shape = lambda x: [1 if x == 4 else 0, 3 if x == 7 else 2][:len(claimed)]
    value = tf.numpy_function(lambda x: np.zeros(shape(x), np.int64), [x], tf.int64)
    value.set_shape(claimed)
    return x, value

  dataset = Dataset.range(10).refurbish(partial_fn, r=2, seed=1)
  wrong = 4 if len(claimed) == 1 else 7
  for _ in range(3):
    values, errors = read(dataset)
    assert sorted(int(x) for x, _ in values) == [x for x in range(10) if x != wrong]
    error, = errors
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert re.search(
        f"partial_fn changed its output structure: component 1 of sample {wrong} is int64.*element_spec says", error.message)


def test_partial_fn_changes_its_output_type():
  """TensorFlow finds that; the stage tells the sample."""
  dataset = Dataset.range(10).refurbish(
      lambda x: tf.numpy_function(lambda x: x if x != 4 else np.float32(x), [x], tf.int64), r=2, seed=1)
  for _ in range(2):
    values, errors = read(dataset)
    assert len(values) == 9
    assert len(errors) == 1 and "sample 4" in errors[0].message


PARAMETERS = {
    "too few": (lambda: 0, tf.identity, "partial_fn cannot be called with an element of the source, which has one component: "
                "too many positional arguments"),
    "too many": (lambda x, y: x, tf.identity, "one component: missing a required argument: 'y'.*As with.*map"),
    "too few beside a seed": (lambda seed: 0, tf.identity, None),
    "one that has to be named": (lambda x, *, y: x, tf.identity, "missing a required argument: 'y'"),
    "of the final function": (lambda x: (x, x), lambda x: x, "final_fn cannot be called with what partial_fn returns, which "
                              "has 2 components.*too many positional arguments"),
    "a list is a tuple": (lambda x: [x, x], lambda x: x, "final_fn .*2 components"),
    "of a partial": (functools.partial(lambda x, y: x, y=1), lambda x, y: x, "final_fn .*missing a required argument: 'y'"),
    "any": (lambda *x: x[0], lambda *x, **others: x[0], None),
    "a dict is one": (lambda x: {"x": x, "y": x}, lambda sample: sample["x"], None),
    "with defaults": (lambda x, y=1, *, z=2: x, lambda x, seed, y=1: x, None),
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_of_functions(kind):
  """Which function cannot be called, and with what, is said before any of them is."""
  partial_fn, final_fn, message = PARAMETERS[kind]
  if message is None:
    assert len(list(Dataset.range(4).refurbish(partial_fn, final_fn))) == 4
  else:
    with pytest.raises(TypeError, match=message):
      Dataset.range(4).refurbish(partial_fn, final_fn)


def test_errors_in_tracing_are_those_of_the_function():
  """A mistake in a function is shown as by map, where it is."""
  with pytest.raises(AttributeError, match="numpy"):
    Dataset.range(4).refurbish(tf.identity, lambda x: x.numpy())
