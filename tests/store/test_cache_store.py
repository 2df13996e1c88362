"""CacheStore: a dictionary of samples, eagerly and in functions."""

import collections
import gc

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import plain
from support.stores import address

Point = collections.namedtuple("Point", ["x", "y"])

SAMPLES = {
  "scalar": tf.constant(7),
  "python number": 1.5,
  "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
  "string": tf.constant(["a", "bc", ""]),
  "bool": tf.constant([True, False]),
  "empty": tf.zeros([0, 3]),
  "tuple": (tf.constant([1, 2]), tf.constant(3.5)),
  "tuple of one": (tf.constant([1, 2]),),
  "dict": {"image": tf.zeros([2, 2, 3], tf.uint8), "label": tf.constant(1, tf.int64)},
  "nest": {"a": (tf.constant(1), {"b": tf.constant([2.0])}), "c": tf.constant("d")},
  "named tuple": Point(tf.constant(1), tf.constant([2, 3])),
  "ragged": tf.ragged.constant([[1], [2, 3], []]),
  "ragged, two ranks": tf.ragged.constant([[[1], [2, 3]], [], [[4]]]),
  "sparse": tf.sparse.from_dense([[0, 1], [2, 0]]),
  "dict of all kinds": {
    "r": tf.ragged.constant([[1.5], []]),
    "s": tf.sparse.from_dense([0, 5]),
    "t": tf.constant(["x"]),
  },
  "with None": (tf.constant(1), None),
}


def assert_same(sample, expected):
  tf.nest.assert_same_structure(sample, expected)
  for one, other in zip(tf.nest.flatten(sample), tf.nest.flatten(expected), strict=True):
    assert plain(one) == plain(other)


@pytest.mark.parametrize("kind", SAMPLES)
def test_put_and_get(kind):
  """A sample of any structure comes back as it was put, also inside tf.function, in program order."""
  store = rtf.CacheStore()
  sample = SAMPLES[kind]

  def put_and_get(index):
    before = store.contains(index)
    store.put(index, sample)
    between = store.contains(index)
    found = store.get(index)
    removed = store.remove(index)
    return before, between, found, removed, store.contains(index)

  for function in (put_and_get, tf.function(put_and_get)):
    before, between, found, removed, after = function(tf.constant(3))
    assert (bool(before), bool(between), bool(removed), bool(after)) == (False, True, True, False)
    assert_same(found, sample)
  assert len(store) == 0


def test_use_in_a_map():
  """A look-up works as the function of Dataset.map."""
  store = rtf.CacheStore()
  for i in range(4):
    store.put(i, {"x": tf.fill([i], i)})
  dataset = tf.data.Dataset.range(4).map(store.get)
  assert dataset.element_spec == {"x": tf.TensorSpec([None], tf.int32)}
  assert [element["x"].tolist() for element in dataset.as_numpy_iterator()] == [[], [1], [2, 2], [3, 3, 3]]


def test_indices():
  """Any integer from 0 to the largest int64 is an index; nothing else is."""
  store = rtf.CacheStore()
  for index in (0, 2**31, 2**62, 2**63 - 1):
    store.put(index, index % 1000)
    assert int(store.get(index)) == index % 1000
  for index in (np.int64(2**31), np.uint8(0), tf.constant(0), tf.constant(2**62, tf.int64)):
    assert index in store
  assert len(store) == 4


@pytest.mark.parametrize(
  "call",
  [
    lambda store, index: store.get(index),
    lambda store, index: store.put(index, 1),
    lambda store, index: store.remove(index),
    lambda store, index: store.contains(index),
    lambda store, index: index in store,
  ],
)
@pytest.mark.parametrize("filled", [False, True])
def test_bad_indices(call, filled):
  """A negative index is an error, and so is anything but a single integer; nothing is rounded."""
  store = rtf.CacheStore()
  if filled:
    store.put(1, 0)
  with pytest.raises(tf.errors.InvalidArgumentError, match="at least 0, got -1"):
    call(store, -1)
  for index in (1.5, "1", None):
    with pytest.raises((TypeError, ValueError)):
      call(store, index)
  with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
    call(store, [1, 1])
  assert len(store) == filled


def test_absent():
  """`get` of a missing sample raises NotFoundError with its index; `remove` and `in` return False."""
  store = rtf.CacheStore()
  for _ in range(2):
    with pytest.raises(tf.errors.NotFoundError, match="index 3"):
      store.get(3)
    assert 3 not in store and not bool(store.contains(3)) and not bool(store.remove(3))
    store.put(4, 0)
  with pytest.raises(tf.errors.NotFoundError, match="index 3"):
    tf.function(lambda: store.get(3))()


def test_one_structure_to_a_store():
  """The first sample fixes the structure; an error about another one names both. Sizes may differ, like those of
  images."""
  store = rtf.CacheStore()
  store.put(0, {"image": tf.zeros([2, 3]), "label": 1})
  for other in (
    tf.zeros([2, 3]),
    {"image": tf.zeros([2, 3])},
    {"image": tf.zeros([2, 3]), "label": 1.5},
    {"image": tf.zeros([2, 3, 1]), "label": 1},
    (tf.zeros([2, 3]), 1),
  ):
    with pytest.raises(ValueError, match="^sample .*structure"):
      store.put(1, other)
  store.put(1, {"image": tf.zeros([4, 5]), "label": 1})
  assert store.get(1)["image"].shape == [4, 5]
  assert store.element_spec == {"image": tf.TensorSpec([None, None]), "label": tf.TensorSpec([], tf.int32)}


@pytest.mark.parametrize(
  "samples",
  [
    [tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[1, 1, 1]]), tf.ragged.constant([[]], dtype=tf.int32)],
    [tf.sparse.from_dense([0, 1]), tf.sparse.from_dense([0, 1, 2]), tf.sparse.from_dense([0])],
    [{"r": tf.ragged.constant([[1]])}, {"r": tf.ragged.constant([[1], [2]])}],
  ],
  ids=["ragged", "sparse", "dict"],
)
@pytest.mark.parametrize("told", [False, True])
def test_ragged_and_sparse_samples_of_different_size(samples, told):
  """Ragged and sparse samples may also differ in size."""
  spec = None
  if told:
    spec = {"ragged": tf.RaggedTensorSpec([None, None], tf.int32), "sparse": tf.SparseTensorSpec([None], tf.int32)}[
      "sparse" if isinstance(samples[0], tf.SparseTensor) else "ragged"
    ]
    spec = {"r": spec} if isinstance(samples[0], dict) else spec
  store = rtf.CacheStore(element_spec=spec)
  for index, sample in enumerate(samples):
    store.put(index, sample)
  for index, sample in enumerate(samples):
    assert_same(store.get(index), sample)
  assert_same(tf.function(store.get)(1), samples[1])


def test_a_refused_put_fixes_nothing():
  """A failed put leaves the store and its structure unchanged."""
  store = rtf.CacheStore(max_bytes=8)
  with pytest.raises(tf.errors.InvalidArgumentError):
    store.put(-1, "a string")
  with pytest.raises(tf.errors.ResourceExhaustedError):
    store.put(0, "a long string that takes more room than there is")
  assert store.element_spec is None and len(store) == 0
  store.put(0, tf.constant(5))
  assert int(store.get(0)) == 5


def test_element_spec():
  """A function can be traced before the first put if the store has an element_spec; otherwise the error says what to
  do."""
  untold = rtf.CacheStore()
  with pytest.raises(ValueError, match="element_spec"):
    tf.function(lambda: untold.get(0))()
  store = rtf.CacheStore(element_spec={"x": tf.TensorSpec([None], tf.int32)})
  get = tf.function(store.get)
  with pytest.raises(tf.errors.NotFoundError):
    get(0)
  store.put(0, {"x": tf.constant([1, 2])})
  assert get(0)["x"].numpy().tolist() == [1, 2]
  for wrong in ({"x": tf.constant([1.5])}, {"x": tf.constant(1)}, {"y": tf.constant([1])}):
    with pytest.raises(ValueError, match="^sample .*structure"):
      store.put(0, wrong)


def test_put_of_a_tensor_of_unknown_rank_in_a_function():
  store = rtf.CacheStore()

  @tf.function(input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec(None, tf.int32)])
  def put(index, value):
    store.put(index, value)

  put(0, tf.constant([1, 2]))
  put(1, tf.constant(3))
  assert store.get(0).numpy().tolist() == [1, 2] and int(store.get(1)) == 3


class Model:
  """A dictionary that behaves like a CacheStore of int64 vectors."""

  def __init__(self, max_bytes):
    self.max_bytes = max_bytes
    self.samples = {}
    self.hits = self.misses = 0

  @property
  def bytes(self):
    return 8 * sum(map(len, self.samples.values()))


@given(
  max_bytes=st.sampled_from([None, 64]),
  operations=st.lists(
    st.tuples(
      st.sampled_from(["put", "put", "put", "get", "get", "remove", "contains", "clear"]),
      st.integers(0, 3),
      st.integers(0, 6),
    ),
    max_size=25,
  ),
)
@settings(max_examples=cases.examples(12), derandomize=True)
def test_behaves_as_a_dictionary(max_bytes, operations):
  """Within max_bytes, any sequence of calls acts as on a dictionary, and the counts are exact."""
  store = rtf.CacheStore(max_bytes=max_bytes, element_spec=tf.TensorSpec([None], tf.int64))
  model = Model(max_bytes)
  for step, (operation, index, size) in enumerate(operations):
    if operation == "put":
      model.samples.pop(index, None)
      sample = [step] * size
      if max_bytes is None or model.bytes + 8 * size <= max_bytes:
        store.put(index, tf.constant(sample, tf.int64))
        model.samples[index] = sample
      else:
        with pytest.raises(tf.errors.ResourceExhaustedError, match=f"{8 * size} bytes.*max_bytes=64"):
          store.put(index, tf.constant(sample, tf.int64))
    elif operation == "get":
      if index in model.samples:
        assert store.get(index).numpy().tolist() == model.samples[index]
        model.hits += 1
      else:
        with pytest.raises(tf.errors.NotFoundError):
          store.get(index)
        model.misses += 1
    elif operation == "remove":
      assert bool(store.remove(index)) == (index in model.samples)
      model.samples.pop(index, None)
    elif operation == "contains":
      assert (index in store) == (index in model.samples)
    else:
      store.clear()
      model.samples.clear()
    assert store.stats() == rtf.CacheStoreStats(len(model.samples), model.bytes, model.hits, model.misses, evictions=0)
    assert len(store) == len(model.samples)


def test_bytes_of_all_kinds():
  """The bytes of ragged, sparse and string components are counted, not those of their handles."""
  sizes = {}
  for kind, sample in {
    "ragged": tf.ragged.constant([[1] * 1000], dtype=tf.int64),
    "string": "x" * 8000,
    "sparse": tf.sparse.SparseTensor([[0]] * 500, [1.0] * 500, [1]),
    "dense": tf.zeros([2000]),
  }.items():
    store = rtf.CacheStore()
    store.put(0, sample)
    sizes[kind] = store.stats().bytes
    store.remove(0)
    assert store.stats().bytes == 0
  assert sizes["dense"] == 8000
  for kind in ("ragged", "string"):
    assert 8000 <= sizes[kind] <= 8400
  assert 500 * (8 + 4) <= sizes["sparse"] <= 500 * (8 + 4) + 400


def test_samples_are_not_copied():
  """The store keeps and returns the same buffers that were put."""
  store = rtf.CacheStore()
  sample = {"a": tf.zeros([1000]), "b": tf.ones([1000])}
  store.put(0, sample)
  for name in "ab":
    assert address(store.get(0)[name]) == address(sample[name])


def test_bad_arguments():
  """Errors about bad arguments of CacheStore say what is allowed."""
  for max_bytes in (0, -5):
    with pytest.raises(ValueError, match=f"^max_bytes .*positive, got {max_bytes}"):
      rtf.CacheStore(max_bytes=max_bytes)
  for max_bytes in (2**63, 2**70):
    with pytest.raises(ValueError, match=rf"^max_bytes .*2\*\*63 - 1.*got {max_bytes}"):
      rtf.CacheStore(max_bytes=max_bytes)
  assert rtf.CacheStore(max_bytes=np.int64(100)).max_bytes == 100
  assert rtf.CacheStore(max_bytes=2**63 - 1).max_bytes == 2**63 - 1
  assert "max_bytes=100" in repr(rtf.CacheStore(max_bytes=100))


def test_a_store_that_is_gone():
  """A function that outlives its store raises an error that says so."""
  store = rtf.CacheStore(element_spec=tf.TensorSpec([], tf.int32))
  get = tf.function(store.get).get_concrete_function(tf.TensorSpec([], tf.int64))
  store.put(0, 5)
  assert int(get(tf.constant(0, tf.int64))) == 5
  del store
  gc.collect()
  with pytest.raises(tf.errors.NotFoundError, match="CacheStore"):
    get(tf.constant(0, tf.int64))
