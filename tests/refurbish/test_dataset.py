"""A refurbish stage is a good citizen of tf.data: structures, functions and their seeds, cardinality."""

import collections
import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import draw, draw_again, epochs, plain, stream

Dataset = tf.data.Dataset
Point = collections.namedtuple("Point", ["x", "y"])


def elements(dataset):
  """Returns all elements, sorted by value."""
  return sorted(repr([plain(value) for value in tf.nest.flatten(element)]) for element in dataset)


STRUCTURES = {
  # name: (source, partial_fn, final_fn)
  "scalar": (lambda: Dataset.range(5), lambda x: x + 1, lambda x: 2 * x),
  "tuple": (
    lambda: Dataset.from_tensor_slices((np.arange(5), np.arange(5.0))),
    lambda x, y: (y, x, x),
    lambda y, x, z: (x, y + 1),
  ),
  "tuple of one": (lambda: Dataset.from_tensor_slices((np.arange(5),)), lambda x: (x + 1,), lambda x: (2 * x,)),
  "dict": (
    lambda: Dataset.from_tensor_slices({"image": np.zeros([5, 2, 2, 3], np.uint8), "label": np.arange(5)}),
    lambda element: {"label": element["label"], "image": tf.cast(element["image"], tf.float32)},
    lambda element: (element["image"], element["label"]),
  ),
  "nest": (
    lambda: Dataset.from_tensor_slices(({"a": (np.arange(5), np.arange(5))}, np.arange(5.0))),
    lambda d, y: {"b": (d["a"][1], {"c": y}), "d": d["a"][0]},
    lambda element: (element["b"], (element["d"],)),
  ),
  "named tuple": (
    lambda: Dataset.from_tensor_slices(Point(np.arange(5), np.arange(5.0))),
    lambda point: Point(point.y, point.x),
    lambda point: point._replace(x=point.x + 1),
  ),
  "list": (lambda: Dataset.range(5), lambda x: [x, x + 1], lambda x, y: [x, y, x + y]),
  "list inside": (lambda: Dataset.range(5), lambda x: {"a": [x, x + 1]}, lambda d: d["a"]),
  "string": (
    lambda: Dataset.from_tensor_slices(["a", "bc", "", "def"]),
    lambda text: tf.strings.join([text, "!"]),
    tf.strings.upper,
  ),
  "ragged": (
    lambda: Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], [], [4]])),
    lambda x: 2 * x,
    lambda x: x + 1,
  ),
  "ragged, two ranks": (
    lambda: Dataset.from_tensor_slices(tf.ragged.constant([[[1], [2, 3]], [], [[4, 5, 6]]])),
    lambda x: 2 * x,
    lambda x: x + 1,
  ),
  "ragged made": (
    lambda: Dataset.range(5),
    lambda x: {"r": tf.RaggedTensor.from_row_lengths(tf.range(x), [x, 0]), "x": x},
    lambda element: element["r"].with_values(element["r"].values + 1),
  ),
  "sparse": (
    lambda: Dataset.from_tensor_slices(tf.sparse.from_dense([[0, 1], [2, 3], [0, 0]])),
    lambda x: x * 2,
    tf.sparse.to_dense,
  ),
  "sparse made": (lambda: Dataset.range(5), lambda x: (x, tf.sparse.from_dense(tf.one_hot(x, 5))), lambda x, s: (s, x)),
  "tensor array": (
    lambda: Dataset.range(5),
    lambda x: tf.TensorArray(tf.int64, 2).unstack([x, x + 1]),
    lambda array: array.stack(),
  ),
  "dataset": (lambda: Dataset.range(5), Dataset.range, lambda numbers: numbers.reduce(np.int64(0), tf.add)),
  "optional": (lambda: Dataset.range(5), tf.experimental.Optional.from_value, lambda optional: optional.get_value()),
  "None": (lambda: Dataset.range(5), lambda x: (x, None), lambda x, nothing: {"x": x, "nothing": nothing}),
  "unknown size": (lambda: Dataset.range(5), lambda x: tf.fill([x, 2], x), lambda x: x + 1),
  "unknown rank": (
    lambda: Dataset.range(5),
    lambda x: tf.numpy_function(lambda x: np.zeros([1] * int(x), np.int64), [x], tf.int64),
    lambda x: x + 1,
  ),
  "numpy, python": (lambda: Dataset.range(5), lambda x: (np.float32(1.5), 2), lambda x, y: (x, y, "z")),
  "all types": (
    lambda: Dataset.range(3),
    lambda x: tuple(
      tf.cast(x, t) for t in (tf.bool, tf.uint8, tf.int16, tf.float16, tf.bfloat16, tf.complex64, tf.uint64)
    ),
    lambda *values: values,
  ),
  "batches": (lambda: Dataset.range(10).batch(3), lambda x: tf.reverse(x, [0]), lambda x: x + 1),
}


def with_seed(function):
  """Returns the function with an additional parameter `seed`, which it checks."""

  def wrapped(*args, seed):
    assert seed.dtype == tf.int32 and seed.shape == [2]
    return function(*args)

  return wrapped


@cases.each_value
@pytest.mark.parametrize("seed", [False, True])
@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")  # Batches are intended here.
def test_structures(kind, seed):
  """Values and element_spec are as if `map` applied both functions, for any structure, fresh or cached."""
  source, partial_fn, final_fn = STRUCTURES[kind]
  source = source()
  expected = source.map(partial_fn)
  actual = {}
  if not seed and kind not in ("dataset", "optional", "tensor array"):  # These cannot be compared.
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
  "callable": (Callable(), True),
  "method": (Callable().method, True),
  "class method": (Callable.of_class, True),
  "static method": (Callable.static, True),
}


@cases.each_value
@pytest.mark.parametrize("place", ["partial_fn", "final_fn"])
@pytest.mark.parametrize("kind", SIGNATURES)
def test_functions_with_a_seed_parameter_get_a_seed(kind, place):
  """A function gets a seed if and only if it has a parameter `seed` that no component is passed to."""
  function, takes = SIGNATURES[kind]
  dataset = Dataset.range(4).refurbish(**{"partial_fn": tf.identity, place: function})
  seeds = {tuple(seed) for seed in dataset.as_numpy_iterator()}
  assert len(seeds) == (4 if takes else 1)
  assert takes or seeds == {(0, 0)}


def test_seeds_that_functions_return_stay_as_they_are():
  """This includes seeds in the store and in elements that the consumer still holds."""

  def held(kept):
    dataset = Dataset.range(64).refurbish(
      lambda x, seed: (x, kept(seed)), lambda x, partial, seed: (x, partial, kept(seed)), r=2, seed=1
    )
    return [element for _ in range(3) for element in dataset]

  returned = held(lambda seed: seed)
  computed = held(lambda seed: seed + 0)
  for elements_of_both in zip(returned, computed, strict=True):
    for a, b in zip(*elements_of_both, strict=True):
      np.testing.assert_array_equal(a, b)


def test_a_component_named_seed_is_passed_as_the_seed():
  """Elements may have a component `seed`; the function gets that one."""
  pairs = Dataset.from_tensor_slices((np.arange(4), 10 * np.arange(4)))
  assert elements(pairs.refurbish(lambda image, seed: image + seed)) == elements(pairs.map(lambda x, y: x + y))
  named = Dataset.from_tensor_slices({"seed": np.arange(4)})
  assert elements(named.refurbish(lambda element: element["seed"])) == elements(Dataset.range(4))
  both = named.refurbish(lambda element, seed: (element["seed"], seed))
  assert both.element_spec[1] == tf.TensorSpec([2], tf.int32)
  assert sorted(int(x) for x, _ in both) == [0, 1, 2, 3]


def test_functions_of_tensorflow():
  """A required `seed` (stateless functions) is passed; an optional `seed`, which seeds TensorFlow's own state, is
  not."""
  images = Dataset.from_tensor_slices(np.arange(20 * 4, dtype=np.uint8).reshape(20, 1, 4, 1))
  flip = tf.image.stateless_random_flip_left_right
  flipped = [
    sorted(image.tobytes() for image in images.refurbish(flip, seed=seed).as_numpy_iterator()) for seed in (1, 1, 2)
  ]
  assert flipped[0] == flipped[1] != flipped[2]
  for image in images.refurbish(tf.image.random_flip_left_right).as_numpy_iterator():
    assert image.ravel().tolist() in (sorted(image.ravel()), sorted(image.ravel(), reverse=True))
  brighter = functools.partial(tf.image.random_brightness, max_delta=0.2)
  assert len(list(images.refurbish(brighter, brighter))) == 20


@pytest.mark.filterwarnings("error")
def test_functions_are_called_as_by_map():
  """Autograph converts them; variables and tables may be captured; TensorFlow logs no warnings."""
  variable = tf.Variable(10, dtype=tf.int64)
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2], tf.int64), tf.constant([5, 6, 7], tf.int64)), -1
  )

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


@pytest.mark.parametrize("kind", ["partial_fn", "final_fn", "ragged final_fn", "echo", "echo by index"])
def test_python_may_write_into_its_argument(kind):
  """Python gets a copy, not the memory of the source or the store. tf.data itself does not copy an aligned element."""

  def write(x):
    x += 1
    return x

  zeros = tf.data.Dataset.from_tensor_slices(np.zeros([10, 64], np.int64))
  in_python = functools.partial(tf.numpy_function, write, Tout=tf.int64)
  functions = [tf.identity, lambda x: tf.ensure_shape(in_python([x]), [64])]
  if kind == "ragged final_fn":
    functions = [
      lambda x: tf.RaggedTensor.from_row_lengths(x, [60, 4]),
      lambda x: tf.ensure_shape(in_python([x.flat_values]), [64]),
    ]
  if kind.startswith("echo"):
    dataset = zeros.echo(2, "before_augment", augment_fn=functions[1], batch_size=4, shuffle_buffer_size=8)
  else:
    dataset = zeros.refurbish(*functions[:: -1 if kind == "partial_fn" else 1], r=3)
  for _ in range(4):
    if kind == "echo by index":
      dataset = zeros.echo(2, "before_augment", augment_fn=functions[1], batch_size=2)
      assert all(np.all(tf.data.experimental.at(dataset, i) == 1) for i in range(10))
    else:
      assert all(np.all(value == 1) for value in dataset.as_numpy_iterator())


def test_signature():
  """The parameters have the agreed names and defaults."""
  parameters = inspect.signature(Dataset.refurbish).parameters
  assert list(parameters)[1:4] == ["partial_fn", "final_fn", "r"]
  defaults = {
    name: parameter.default for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
  }
  assert parameters["final_fn"].default is None and parameters["r"].default == 3
  assert defaults == {
    "store": None,
    "seed": None,
    "order_seed": None,
    "shuffle_buffer_size": None,
    "eviction": "balanced",
    "shuffle": "cache_aware",
    "num_parallel_calls": tf.data.AUTOTUNE,
    "deterministic": None,
    "targets": None,
    "name": None,
  }


# Seeds. ---------------------------------------------------------------------------------------------------------------


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"r": 1.5},
    {"eviction": "reference_count"},
    {"shuffle": "uniform"},
    {"shuffle_buffer_size": 4},
    {"num_parallel_calls": None},
  ],
  ids=str,
)
def test_apply_makes_the_same_stage(source, options):
  """With one seed, ds.apply(rtf.refurbish(...)) and ds.refurbish(...) yield the same elements in the same order."""
  method = source.refurbish(draw, draw_again, seed=3, **options)
  applied = source.apply(rtf.refurbish(draw, draw_again, seed=3, **options))
  assert epochs(method) == epochs(applied)


def test_the_global_seed():
  """Without a seed the stage derives one from tf.random.set_seed, if that was called, and otherwise draws one."""

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


def test_cardinality_is_that_of_the_source():
  for source in (
    Dataset.range(7),
    stream(7).apply(tf.data.experimental.assert_cardinality(7)),
    Dataset.range(9).skip(2),
  ):
    dataset = source.refurbish(tf.identity, tf.identity)
    assert len(dataset) == 7 and len(dataset.batch(2)) == 4
    list(dataset)
    assert len(dataset) == 7
  assert Dataset.range(7).refurbish(tf.identity).repeat().cardinality() == tf.data.INFINITE_CARDINALITY


def test_cardinality_is_known_after_the_first_pass():
  """An unknown length stays unknown after a partial pass. After a whole pass, later operations also know the length."""
  dataset = stream(7).refurbish(tf.identity, tf.identity)
  batched = dataset.batch(2).prefetch(1)
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  list(dataset.take(6))
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  list(batched)
  assert len(dataset) == 7 and len(batched) == 4
