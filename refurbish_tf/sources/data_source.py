"""A Python source whose elements are read by index: `rtf.sources.data_source`."""

import collections.abc
import contextlib
import itertools
import numbers
import operator
import os
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops, gen_script_ops, nest, script_ops
from refurbish_tf._internal.tensorflow_internals import structured_function
from . import elements

# TensorFlow's limit on the outputs of an operation: one operation returns all components of a batch.
_MOST_OUTPUTS = 65_536
# Error codes, as in tf.errors.
_OK, _UNKNOWN, _INVALID_ARGUMENT, _DATA_LOSS = 0, tf.errors.UNKNOWN, tf.errors.INVALID_ARGUMENT, tf.errors.DATA_LOSS


def data_source(
  source: Any, *, element_spec: Any = None, batch_reads: int = 64, num_parallel_reads: int = 1
) -> tf.data.Dataset[Any]:
  """Returns a `tf.data.Dataset` of the elements of a Python source, read by index.

  >>> squares = rtf.sources.data_source([(float(i), i * i) for i in range(6)])
  >>> squares.element_spec
  (TensorSpec(shape=(), dtype=tf.float64, name=None), TensorSpec(shape=(), dtype=tf.int64, name=None))
  >>> train = squares.refurbish(lambda x, y: (x / 2, y), r=3, seed=7)
  >>> sorted(int(y) for _, y in train)
  [0, 1, 4, 9, 16, 25]

  A source is any object with `__len__` and `__getitem__`: the result of `tfds.data_source`, ArrayRecord's and Grain's
  data sources, PyTorch's map-style datasets, arrays of `numpy.memmap`, h5py and zarr, a list of elements. `refurbish`
  reads only fresh samples from it, and `tf.data.experimental.at` reads a single element.

  If the source also has `__getitems__`, the dataset reads the elements that it will need next in batches: of 1, then 2,
  then 4, and so on up to `batch_reads`. Otherwise it reads each element when it is needed.

  An element is a tensor, or a tuple or dict of components, possibly nested. A component is anything that
  `numpy.asarray` turns into an array of numbers or strings: a number, `str`, `bytes`, an array, a TensorFlow or PyTorch
  tensor, a PIL image; or a `bytearray` or `memoryview` of bytes, such as LMDB's buffers, which become a string. A list
  is one component, as everywhere in `tf.data`.

  **Threads.** By default only one thread at a time reads a source, even for several datasets, and a parallel `map`
  after the source does not change that. `num_parallel_reads=64` lets up to 64 threads call the source at once and read
  ahead. This pays if a read waits for a disk or a service; Python code that computes still runs in one thread at a
  time. It is safe only if the source is: if several threads use one file handle, one thread moves the position before
  another one reads, and elements silently have wrong contents. Open a handle in each call or for each thread, or use
  positioned reads such as `os.pread`.

  A source may use other datasets, and `tf.data.experimental.at` of its own dataset. A source that iterates over its own
  dataset deadlocks, because `tf.data` reads in another thread.

  **Lifetime.** The source lives as long as its dataset, the datasets made from it, and their iterators. It must not
  change during this time, because its elements are identified by their index. It stays in this process: a worker of a
  `tf.data` service cannot read it.

  Args:
    source: an object with `__len__`, or a `shape`, and `__getitem__`, for whole numbers from 0. It may also have
      `__getitems__`, which takes a list of them and returns a list of as many elements.
    element_spec: the `tf.TensorSpec` of an element, or a tuple or dict of them, possibly nested. None reads the first
      element and uses its spec; if shapes vary, pass a spec with None for the dimensions that do. Python numbers are
      converted to its dtype, arrays must have it. Without a spec they become int64 and float64.
    batch_reads: the largest number of elements that one call of `__getitems__` gets.
    num_parallel_reads: how many threads may call the source at once, at most 1,024; tf.data.AUTOTUNE is 16. Above 1,
      elements are read ahead, and each thread reads batches of its own. Only for a source that is safe for several
      threads.

  Returns:
    A `tf.data.Dataset` with as many elements as the source has.

  Raises:
    TypeError: `source` lacks a method, or has something other than an element at an index, such as a
      `pandas.DataFrame`, a path, a dict or tuple of columns, or a source of batches like `keras.utils.PyDataset`; its
      first element, or `element_spec`, has something that tensors cannot hold; `batch_reads` or `num_parallel_reads` is
      not a whole number.
    ValueError: `source` is empty and `element_spec` is not given; `batch_reads` or `num_parallel_reads` is below 1 or
      too large.
    Errors of the source, when its first element is read.
    tf.errors.UnknownError: when it runs, the source raised an exception, which is in the message with the index. The
      iterator continues with the next element, as after the errors below. If `__getitems__` raised it, its elements are
      read one by one, with a warning.
    tf.errors.InvalidArgumentError: when it runs, an element does not match `element_spec`, or `__getitems__` did not
      return a list of as many elements as requested.
    tf.errors.DataLossError: when it runs, the source has grown or shrunk since the dataset was made.
    tf.errors.FailedPreconditionError: the dataset is sent to a `tf.data` service, or saved as a graph.
  """
  _check_source(source)
  checks.check_whole_number("batch_reads", batch_reads, 1)
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  if element_spec is None:
    element_spec = _first_spec(source)
  else:
    elements.check_spec(element_spec)
  num_components = len(nest.flatten(element_spec))
  if batch_reads * num_components > _MOST_OUTPUTS:
    raise ValueError(
      f"batch_reads must be at most {_MOST_OUTPUTS // num_components:,} for elements of {num_components} components, "
      f"got {batch_reads:,}."
    )
  return _DataSourceDataset(source, element_spec, operator.index(batch_reads), num_parallel_reads)


def _check_source(source):
  """Raises TypeError if `source[i]` cannot be its element i."""
  if isinstance(source, tf.data.Dataset):
    raise TypeError("source must be a Python source, got a tf.data.Dataset. Use the dataset itself.")
  if isinstance(source, (str, bytes, bytearray, os.PathLike)):
    raise TypeError(
      f"source must be a Python source, got a {type(source).__name__}: {str(source)[:80]!r}. Open the file, and pass "
      "the object that its library returns. For TFRecord files use rtf.sources.tfrecord, for image files "
      "rtf.sources.image_folder."
    )
  if getattr(source, "shape", None) == ():
    raise TypeError(f"source must have elements, got an array of shape (): {source!r}.")
  for method in ("__len__", "__getitem__"):
    if not hasattr(type(source), method) and not (method == "__len__" and getattr(source, "shape", ())):
      raise TypeError(
        f"source must have __len__ and __getitem__, but {type(source).__name__} has no {method}. For a stream use "
        "tf.data.Dataset.from_generator."
      )
  # For the classes in `_BY_NAME`, source[i] is not element i, and few of them would raise an error.
  for each in type(source).__mro__:
    library = str(each.__module__).partition(".")[0]
    if (library, each.__name__) in _BY_NAME:
      raise TypeError(
        f"source must have element i at source[i], but source[i] of a {library} {each.__name__} is "
        f"{_BY_NAME[library, each.__name__]}"
      )
  if isinstance(source, collections.abc.Mapping) and not isinstance(next(iter(source), 0), numbers.Integral):
    names = [repr(name) for name in itertools.islice(source, 5)]
    raise TypeError(
      f"source must have element i at source[i], but a {type(source).__name__} is read by name: {', '.join(names)}"
      f"{', ...' if len(source) > 5 else ''}. Pass one of these, or tf.data.Dataset.zip of a data_source of each."
    )
  if isinstance(source, tuple) and source and all(len(getattr(each, "shape", ())) > 0 for each in source):
    raise TypeError(
      f"source must have element i at source[i], but a tuple of {len(source)} arrays has array i there. For elements "
      "with one row of each, use tf.data.Dataset.from_tensor_slices if the arrays fit into memory, otherwise "
      "tf.data.Dataset.zip of a data_source of each. If the arrays are the elements, pass a list."
    )


_OF_BATCHES = "a batch, which layers would treat as a clip. Pass what it reads: the arrays, or the files."
# What source[i] is instead of an element, and what to do.
_BY_NAME = {
  ("pandas", "DataFrame"): "a column. Columns that fit into memory are a source already: "
  "tf.data.Dataset.from_tensor_slices(dict(frame)).",
  ("pandas", "Series"): "the row with label i, which is another row after a selection. Pass series.to_numpy().",
  ("pyarrow", "Table"): "a column. Write a class whose __getitem__(i) returns "
  "tuple(column[i].as_py() for column in table.columns).",
  ("pyarrow", "RecordBatch"): "a column. Write a class whose __getitem__(i) returns "
  "tuple(column[i].as_py() for column in batch.columns).",
  ("zarr", "Group"): "an array. Pass one of its arrays, or tf.data.Dataset.zip of a data_source of each.",
  ("keras", "PyDataset"): _OF_BATCHES,
  ("tf_keras", "Sequence"): _OF_BATCHES,
}


def _length(source):
  """The number of elements. Arrays such as zarr's have a shape, but no `__len__`."""
  return len(source) if hasattr(type(source), "__len__") else int(source.shape[0])


class _DataSourceDataset(dataset_ops.DatasetSource):
  """Yields the elements of a source, by index."""

  def __init__(self, source, element_spec, batch_reads, num_parallel_reads):
    self._name = None
    self._element_spec = element_spec
    batch_reads = batch_reads if hasattr(type(source), "__getitems__") else 1
    reader = _Reader(source, element_spec, batch_reads, exclusive=num_parallel_reads == 1)
    # TensorFlow has only the names of these functions, and weak references to them, so the source is freed with the
    # last reference to this dataset.
    self._reads = [reader.read_one, reader.read_many]
    if not tf.executing_eagerly():
      # A dataset built in a function lives as long as the graph, not only during the call.
      graph = tf.compat.v1.get_default_graph()
      graph._refurbish_tf_functions = [*getattr(graph, "_refurbish_tf_functions", ()), *self._reads]
    read_one, read_many = (script_ops._py_funcs.insert(function) for function in self._reads)
    self._traced = [_traced(read_one, element_spec, 1), _traced(read_many, element_spec, batch_reads)]
    variant = native.ops().refurbish_tf_data_source_dataset(
      num_elements=tf.constant(reader.num_elements, tf.int64),
      num_parallel_reads=num_parallel_reads,
      batch_reads=batch_reads,
      read_one=self._traced[0].function,
      read_many=self._traced[1].function,
      **self._common_args,
    )
    super().__init__(variant)

  def _functions(self):
    return self._traced

  @property
  def element_spec(self):
    return self._element_spec


def _traced(name, element_spec, num_elements):
  """A TensorFlow function of indices that calls the Python function registered as `name`."""
  types = [spec.dtype for spec in nest.flatten(element_spec)]

  # Not tf.numpy_function, which keeps its function, and with it the source, for the life of the process.
  @tf.autograph.experimental.do_not_convert
  def read(indices):
    return tuple(gen_script_ops.py_func(input=[indices], token=name, Tout=[tf.int32, tf.string, *num_elements * types]))

  return structured_function.StructuredFunctionWrapper(
    read, "data_source", input_structure=tf.TensorSpec([None], tf.int64)
  )


class _Owner:
  """A source and the lock that its readers hold, unless several may read it at once."""

  # By the id of the source, which is unique while an owner holds the source.
  _owners = weakref.WeakValueDictionary()
  _owners_lock = threading.Lock()

  def __init__(self, source):
    self.source = source
    # Reentrant, because a source may read itself through a dataset.
    self.lock = threading.RLock()

  @classmethod
  def of(cls, source):
    with cls._owners_lock:
      owner = cls._owners.get(id(source))
      if owner is None:
        owner = cls._owners[id(source)] = cls(source)
      return owner


class _OtherLength(Exception):
  """The source has grown or shrunk."""


class _Reader:
  """Reads elements for TensorFlow: returns their codes, their messages, then the arrays of all of them."""

  def __init__(self, source, element_spec, batch_reads, exclusive):
    self._owner = _Owner.of(source)
    self._lock = self._owner.lock if exclusive else contextlib.nullcontext()
    self.num_elements = _length(source)
    self._element_spec = element_spec
    self._batch_reads = batch_reads
    self._has_warned = False
    self._components = [
      elements.Component(*each) for each in zip(nest.flatten(element_spec), elements.names(element_spec))
    ]
    self._no_arrays = [component.nothing for component in self._components]

  # Both readers catch every exception, even one that should end the program, because TensorFlow could not name the
  # element that raised it.

  def read_one(self, indices):
    index = int(indices[0])
    with self._lock:
      try:
        self._check_length()
        if index == self.num_elements:  # A read at the end only checks the length.
          return _returned([(_OK, "", self._no_arrays)])
        element = self._owner.source[index]
      except BaseException as error:
        return _returned([self._failed(index, error)])
      return _returned([self._converted(index, element)])

  def read_many(self, indices):
    """Returns no codes if `__getitems__` raised: each element is then read alone, to find the faulty one."""
    indices = indices.tolist()
    with self._lock:
      try:
        self._check_length()
        # A copy, because the source may change the list.
        found = self._owner.source.__getitems__(list(indices))
      except BaseException as error:
        if not isinstance(error, _OtherLength):  # `read_one` raises it again.
          self._warn(error)
        return _returned([], self._batch_reads * self._no_arrays)
      is_list = isinstance(found, (list, tuple, np.ndarray))
      if not is_list or len(found) != len(indices):
        got = f"{len(found):,} elements" if is_list else type(found).__name__
        message = (
          f"__getitems__ of {type(self._owner.source).__name__} must return a list of as many elements as requested, "
          f"{len(indices):,}, but returned {got}."
        )
        results = [self._wrong(index, message) for index in indices]
      else:
        results = [self._converted(index, element) for index, element in zip(indices, found)]
    return _returned(results, (self._batch_reads - len(results)) * self._no_arrays)

  def _converted(self, index, element):
    try:
      values = nest.flatten_up_to(self._element_spec, element)
    except (TypeError, ValueError) as error:
      return self._wrong(index, f"it does not have the structure {self._element_spec}: {_text(error)}")
    except BaseException as error:  # An element may read its components lazily, and fail.
      return self._failed(index, error)
    try:
      return _OK, "", [component.array(value) for component, value in zip(self._components, values)]
    except BaseException as error:
      return self._wrong(index, _text(error))

  def _wrong(self, index, message):
    return _INVALID_ARGUMENT, f"Element {index} of the source of data_source: {message}", self._no_arrays

  def _check_length(self):
    now = _length(self._owner.source)
    if now != self.num_elements:
      raise _OtherLength(
        f"it has {now:,} elements now, but had {self.num_elements:,} when the dataset was made. Make the dataset "
        "again, with all stages after it: a store on disk needs a new directory, or overwrite=True."
      )

  def _failed(self, index, error):
    if isinstance(error, _OtherLength):
      return _DATA_LOSS, f"The source of data_source has changed its length: {error}", self._no_arrays
    message = f"Element {index} of the source of data_source: {type(error).__name__}: {_text(error)}"
    return _UNKNOWN, message, self._no_arrays

  def _warn(self, error):
    if self._has_warned:
      return
    self._has_warned = True
    with contextlib.suppress(Warning):  # If warnings are errors, nobody could catch this one.
      warnings.warn(
        f"__getitems__ of {type(self._owner.source).__name__} raised {type(error).__name__}: {_text(error)}. "
        "data_source now reads the elements one by one, which takes longer.",
        RuntimeWarning,
        stacklevel=1,
      )


def _text(error):
  """The message of an exception, even if its __str__ fails."""
  try:
    return str(error)
  except BaseException:
    return "without a message"


def _returned(results, rest=()):
  codes = np.array([code for code, _, _ in results], np.int32)
  messages = np.array([message.encode("utf-8", "replace") for _, message, _ in results], object)
  return [codes, messages, *(array for _, _, arrays in results for array in arrays), *rest]


def _first_spec(source):
  if not _length(source):
    raise ValueError(
      "source must have at least one element, from which data_source infers the element_spec, got an empty one. Check "
      "how it is made, or pass element_spec."
    )
  with _Owner.of(source).lock:
    element = source[0]
  # tf.data treats some objects of pyarrow as structures, but cannot rebuild them.
  elements.check_not_of_pyarrow(element, "Element 0 of the source of data_source")
  element = elements.without_buffers(element)
  values = nest.flatten(element)
  if not values:
    raise TypeError(f"source must yield elements with at least one component, got {element!r} as the first one.")
  try:
    arrays = [elements.as_array(value, name) for value, name in zip(values, elements.names(element))]
  except TypeError as error:
    raise TypeError(f"Element 0 of the source of data_source: {error}") from None
  dtypes = [tf.string if array.dtype == object else tf.as_dtype(array.dtype) for array in arrays]
  return nest.pack_sequence_as(element, [tf.TensorSpec(array.shape, dtype) for array, dtype in zip(arrays, dtypes)])
