"""`rtf.sources.data_source`: which elements a Python source may have, and the errors for others."""

import collections
import re

import h5py
import numpy as np
from PIL import Image
import pyarrow
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.python_sources import Batched, Source

data_source = rtf.sources.data_source
Point = collections.namedtuple("Point", ["x", "y"])


@pytest.mark.parametrize(
  "element, spec, expected",
  [
    (7, tf.TensorSpec([], tf.int64), 7),
    (1.5, tf.TensorSpec([], tf.float64), 1.5),
    (True, tf.TensorSpec([], tf.bool), True),
    ("é", tf.TensorSpec([], tf.string), "é".encode()),
    (b"a\0b\0\0", tf.TensorSpec([], tf.string), b"a\0b\0\0"),
    (b"", tf.TensorSpec([], tf.string), b""),
    ([1, 2], tf.TensorSpec([2], tf.int64), [1, 2]),
    ([b"a\0", b"b"], tf.TensorSpec([2], tf.string), [b"a\0", b"b"]),
    (["a", "é"], tf.TensorSpec([2], tf.string), [b"a", "é".encode()]),
    (np.array(["a", "bc"]), tf.TensorSpec([2], tf.string), [b"a", b"bc"]),
    (np.array([[b"a", b"bc"]]), tf.TensorSpec([1, 2], tf.string), [[b"a", b"bc"]]),
    (np.bytes_(b"ab"), tf.TensorSpec([], tf.string), b"ab"),
    (np.str_("ab"), tf.TensorSpec([], tf.string), b"ab"),
    (np.float16(2), tf.TensorSpec([], tf.float16), 2),
    (np.zeros([2, 0, 3], np.uint8), tf.TensorSpec([2, 0, 3], tf.uint8), np.zeros([2, 0, 3])),
    (np.arange(6).reshape(2, 3).T[::-1], tf.TensorSpec([3, 2], tf.int64), [[2, 5], [1, 4], [0, 3]]),
    (tf.constant([1, 2]), tf.TensorSpec([2], tf.int32), [1, 2]),
    (tf.constant(["a"]), tf.TensorSpec([1], tf.string), [b"a"]),
    (tf.constant([1], tf.bfloat16), tf.TensorSpec([1], tf.bfloat16), [1]),
    (Image.fromarray(np.eye(3, dtype=np.uint8)), tf.TensorSpec([3, 3], tf.uint8), np.eye(3)),
  ],
)
def test_components(element, spec, expected):
  dataset = data_source([element, element])
  assert dataset.element_spec == spec
  for value in dataset.as_numpy_iterator():
    # NumPy's own strings would lose trailing zeros.
    kind = object if spec.dtype == tf.string else None
    assert np.array(value, kind).tolist() == np.array(expected, kind).tolist()


def test_structures():
  element = {"b": (1, {"x": b"s"}), "a": Point(2.0, [3, 4])}
  dataset = data_source([element, element], batch_reads=2)
  for value in dataset.as_numpy_iterator():
    assert value["b"] == (1, {"x": b"s"}) and isinstance(value["a"], Point)
    assert value["a"].x == 2 and value["a"].y.tolist() == [3, 4]
  assert dataset.map(lambda element: element["a"].y).element_spec == tf.TensorSpec([2], tf.int64)


def test_python_numbers_become_what_the_spec_says():
  def read(values, spec):
    return [x.tolist() for x in data_source(values, element_spec=spec).as_numpy_iterator()]

  assert read([1, 2.5, True], tf.TensorSpec([], tf.float32)) == [1, 2.5, 1]
  assert read([1, [2, 3]], tf.TensorSpec(None, tf.int32)) == [1, [2, 3]]
  assert read([np.zeros(2, np.int8)], tf.TensorSpec([None], tf.int8)) == [[0, 0]]
  wrong = {tf.int32: [1.5, np.int64(1), "a"], tf.uint8: [300, -1], tf.string: [1], tf.bool: [2], tf.float32: [1j]}
  for spec, value in ((spec, value) for spec, values in wrong.items() for value in values):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Element 0 of the source of data_source: "):
      read([value], tf.TensorSpec([], spec))


class _NoArray:
  def __array__(self, *_, **__):
    raise RuntimeError("on another device")


@pytest.mark.parametrize(
  "odd, match",
  [
    (None, "is None, .*Leave"),
    (object(), "is a object"),
    ({1, 2}, "is a set"),
    ([1, [2, 3]], "is a list.*return a tuple"),
    ([1, None], "NoneType"),
    (_NoArray(), "on another device"),
    (np.datetime64("2020-01-01"), "dtype datetime64"),
    (np.ma.masked_array([1], [True]), "masked array"),
    (np.zeros(2, [("a", int)]), "dtype"),
    (np.array([1, None]), "NoneType"),
  ],
)
def test_odd_elements(odd, match):
  with pytest.raises(TypeError, match=match):
    data_source([odd])
  with pytest.raises(TypeError, match="its component"):
    data_source([{"x": odd}])
  dataset = data_source([1, odd, 3], element_spec=tf.TensorSpec(None, tf.int64))
  iterator = iter(dataset)
  assert int(next(iterator)) == 1
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)Element 1 of the source of data_source: .*{match}"):
    next(iterator)
  assert int(next(iterator)) == 3


@pytest.mark.parametrize(
  "other, match",
  [
    (np.zeros([3], np.uint8), r"shape \(2,\).*got \(3,\).*None"),
    (np.zeros([2], np.int8), "dtype uint8.*got int8"),
    ((1, 2), "one component.*got a tuple"),
    (b"x", "dtype uint8.*got string"),
  ],
)
def test_elements_unlike_the_first(other, match):
  good = np.ones([2], np.uint8)
  iterator = iter(data_source([good, good, other, good]))
  assert np.array_equal(next(iterator), good) and np.array_equal(next(iterator), good)
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)Element 2 of the source of data_source: .*({match})"):
    next(iterator)
  assert np.array_equal(next(iterator), good)


def test_elements_of_another_structure():
  iterator = iter(data_source([(1, {"a": 2}), (1, {"b": 2}), [1, {"a": 2}], (1, {"a": "x"}), (1, {"a": 3})]))
  assert int(next(iterator)[0]) == 1
  for i, match in ((1, "structure"), (2, "structure"), (3, "its component '1/a' .*dtype int64.*got string")):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Element {i} of the source of data_source: .*{match}"):
      next(iterator)
  assert int(next(iterator)[1]["a"]) == 3


def test_varying_shapes_are_allowed_with_element_spec():
  rows = [np.arange(i) for i in range(5)]
  dataset = data_source(rows, element_spec=tf.TensorSpec([None], tf.int64))
  assert [x.tolist() for x in dataset.as_numpy_iterator()] == [row.tolist() for row in rows]


def test_elements_are_copied_out_of_a_reused_buffer():
  # TensorFlow could use the memory of an array at such an address without a copy.
  memory = np.zeros([8064], np.uint8)
  begin = -memory.ctypes.data % 64
  buffer = memory[begin : begin + 8000].view(np.int64)

  class OneBuffer(Source):
    def element(self, index):
      buffer[:] = index
      return buffer

  (batch,) = data_source(OneBuffer(10)).batch(10)
  assert batch.numpy()[:, 0].tolist() == list(range(10))


def test_error_messages_are_on_one_line():
  with pytest.raises(tf.errors.InvalidArgumentError) as raised:
    list(data_source([1, "x"]))
  assert re.search(
    r"Element 1 of the source of data_source: it must have dtype int64 .*got string", raised.value.message
  )


class _Shaped:
  """Like an array of zarr: it has a shape but no length."""

  shape = (3, 2)

  def __getitem__(self, index):
    return np.full([2], index, np.uint8)


def test_an_array_without_a_length_has_a_shape():
  assert [x.tolist() for x in data_source(_Shaped()).as_numpy_iterator()] == [[0, 0], [1, 1], [2, 2]]
  scalar = _Shaped()
  scalar.shape = ()
  with pytest.raises(TypeError, match="source must have elements, got an array of shape"):
    data_source(scalar)


def _named(module, name):
  """Returns an object of a class like a library's. The library need not be installed."""
  return type(name, (list,), {"__module__": module})([1, 2])


class _Table(list):
  """A user's own class."""


BY_NAME = {
  "a path": ("train.h5", "got a str: 'train.h5'. Open the file"),
  "bytes": (b"train.h5", "got a bytes"),
  "a path as an object": (lambda path: path, "got a PosixPath: .*Open the file"),
  "arrays": ((np.zeros([3, 2]), np.zeros(3)), "a tuple of 2 arrays has array i there.*zip"),
  "a sequence of batches": (
    _named("keras.src.trainers.data_adapters.py_dataset_adapter", "PyDataset"),
    "a keras PyDataset is a batch",
  ),
  "another": (_named("tf_keras.src.utils.data_utils", "Sequence"), "a tf_keras Sequence is a batch"),
  "a group": (_named("zarr.core.group", "Group"), "a zarr Group is an array"),
  "a bytearray": (bytearray(b"a"), "got a bytearray"),
  "columns": ({"image": np.zeros(3), "label": [1, 2, 3]}, "a dict is read by name: 'image', 'label'. Pass one"),
  "many columns": (dict.fromkeys("abcdef", 1), "'d', 'e', [.]{3}[.] Pass"),
  "an archive": (
    lambda path: np.savez(path / "a.npz", x=np.zeros(3)) or np.load(path / "a.npz"),
    "a NpzFile is read by name: 'x'",
  ),
  "a file": (lambda path: _file(path)[1], "a File is read by name: 'x'"),
  "a frame": (_named("pandas.core.frame", "DataFrame"), "a pandas DataFrame is a column.*from_tensor_slices"),
  "a frame of another": (
    type("GeoFrame", (type(_named("pandas", "DataFrame")),), {})([1]),
    "a pandas DataFrame is a column",
  ),
  "a series": (_named("pandas.core.series", "Series"), "a pandas Series is the row with label i.*to_numpy"),
  "a table": (pyarrow.table({"a": [1, 2], "b": [3, 4]}), "a pyarrow Table is a column.*as_py"),
  "a batch": (pyarrow.record_batch({"a": [1, 2], "b": [3, 4]}), "a pyarrow RecordBatch is a column.*as_py"),
}


def _file(path):
  with h5py.File(path / "a.h5", "w") as file:
    file["x"] = np.zeros(3)
  return None, h5py.File(path / "a.h5")


@pytest.mark.parametrize("case", BY_NAME)
def test_sources_that_have_no_element_at_an_index(case, tmp_path):
  """Columns, characters or rows with other numbers would be taken for elements, mostly silently."""
  source, match = BY_NAME[case]
  with pytest.raises(TypeError, match=f"^source .*{match}"):
    data_source(source(tmp_path) if callable(source) else source, element_spec=tf.TensorSpec([], tf.int64))


def test_sources_that_only_look_unsupported_are_accepted():
  for source in (
    {0: 1, 1: 2},
    _Table([1, 2]),
    (1, 2),
    np.array([1, 2]),
    (np.int64(1), np.int64(2)),
    _named("pandas.mine", "Frame"),
  ):
    assert [int(x) for x in data_source(source)] == [1, 2]
  assert len(data_source({}, element_spec=tf.TensorSpec([], tf.int64))) == 0


def test_rows_of_pandas_are_read_by_label():
  """The message says how to read pandas' rows by position."""
  pandas = pytest.importorskip("pandas", reason="not installed: pandas; pip install -e '.[exhaustive]' does it")
  series = pandas.Series([5, 6, 7])[[2, 0]]
  for source in (series, pandas.DataFrame(np.zeros([3, 3]))):
    with pytest.raises(TypeError, match="^source .*pandas"):
      data_source(source)
  assert [int(x) for x in data_source(series.to_numpy())] == [7, 5]


@pytest.mark.parametrize(
  "value, match",
  [
    (pyarrow.scalar(b"\xff\xd8"), "a BinaryScalar of pyarrow. Return its as_py"),
    ([pyarrow.scalar(b"\xff")], "a BinaryScalar of pyarrow"),
    (pyarrow.array([1.0, None]), "a DoubleArray of pyarrow with nulls"),
    (pyarrow.py_buffer(b"\xff"), "a Buffer .*to_pybytes"),
    (None, "None, which tensors cannot hold. Leave"),
  ],
)
def test_values_that_numpy_would_misinterpret_are_refused(value, match):
  """For example, bytes of pyarrow would become numbers from -128 to 127."""
  for source, name in (([value], "data_source"), ([{"image": {"bytes": value}}], "its component 'image/bytes'")):
    with pytest.raises(TypeError, match=f"^Element 0 .*{name}.* is {match}"):
      data_source(source)
  iterator = iter(data_source([b"a", value], element_spec=tf.TensorSpec([], tf.string)))
  next(iterator)
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f"Element 1 of the source of data_source: (an item of )?it is {match}"
  ):
    next(iterator)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_structures_of_pyarrow(value):
  with pytest.raises(TypeError, match="Element 0 .* is a (List|Struct)Scalar of pyarrow. Return its as_py"):
    data_source(pyarrow.array([value, value]))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_buffers_of_bytes_are_strings(kind):
  """LMDB returns such buffers. To tf.data they are sequences of whole numbers."""
  Row = collections.namedtuple("Row", ["file", "label"])
  for wrap in (
    lambda value: value,
    lambda value: (value, 1),
    lambda value: {"b": (2, value), "a": 1},
    lambda value: Row(value, 1),
  ):
    source = data_source([wrap(kind(b"\xff\x00")), wrap(b"xyz"), wrap(kind(b"")[:0])])
    assert source.element_spec == data_source([wrap(b"")]).element_spec
    assert list(source.as_numpy_iterator()) == [wrap(b"\xff\x00"), wrap(b"xyz"), wrap(b"")]
  (element,) = data_source([[kind(b"ab"), kind(b"cd")]]).as_numpy_iterator()
  assert element.tolist() == [b"ab", b"cd"]


def test_buffers_of_numbers_are_arrays():
  for array in (np.float32([1, 2]), np.zeros([2, 2], np.uint8), np.int64([])):
    (element,) = data_source([(memoryview(array), 1)]).as_numpy_iterator()
    assert element[0].dtype == array.dtype
    np.testing.assert_array_equal(element[0], array)


@pytest.mark.parametrize(
  "returned, match",
  [
    (lambda elements: iter(elements), "returned list_iterator"),
    (lambda elements: None, "returned NoneType"),
    (lambda elements: elements[:-1], r" 2, but returned 1 elements"),
    (lambda elements: elements + [1], r" 2, but returned 3 elements"),
    (lambda elements: dict(enumerate(elements)), "returned dict"),
  ],
)
def test_bad_results_of_getitems_are_refused(returned, match):
  class Odd(Batched):
    def __getitems__(self, indices):
      return returned(super().__getitems__(indices))

  iterator = iter(data_source(Odd(4)))
  next(iterator)
  for i in (1, 2):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Element {i} .*__getitems__ of Odd .*{match}"):
      next(iterator)
  assert int(next(iterator)) == 9


def test_big_endian_arrays_are_converted():
  array = np.arange(6, dtype=">i4").reshape(3, 2)
  assert [x.tolist() for x in data_source(array).as_numpy_iterator()] == array.tolist()
