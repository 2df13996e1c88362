"""The elements of a Python source by index: `rtf.sources.data_source`."""
from __future__ import annotations

import contextlib
import numbers
import operator
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.ops import structured_function
from tensorflow.python.data.util import nest
from tensorflow.python.ops import gen_script_ops
from tensorflow.python.ops import script_ops
from tensorflow.python.util import nest as util_nest

from refurbish_tf._internal import checks
from refurbish_tf._internal import native

# All components of a batch are outputs of one operation.
_MOST_OUTPUTS = 65_536
# Codes of errors, as tf.errors has them.
_OK, _UNKNOWN, _INVALID_ARGUMENT, _DATA_LOSS = 0, tf.errors.UNKNOWN, tf.errors.INVALID_ARGUMENT, tf.errors.DATA_LOSS


def data_source(source: Any, *, element_spec: Any = None, batch_reads: int = 64) -> tf.data.Dataset[Any]:
  """A `tf.data.Dataset` of the elements of a Python source, read by index.

  >>> squares = rtf.sources.data_source([(float(i), i * i) for i in range(6)])
  >>> squares.element_spec
  (TensorSpec(shape=(), dtype=tf.float64, name=None), TensorSpec(shape=(), dtype=tf.int64, name=None))
  >>> train = squares.refurbish(lambda x, y: (x / 2, y), r=3, seed=7)
  >>> sorted(int(y) for _, y in train)
  [0, 1, 4, 9, 16, 25]

  A source is whatever has `__len__` and `__getitem__`: what `tfds.data_source` returns, ArrayRecord's and Grain's data
  sources, PyTorch's map-style datasets, `numpy.memmap`, a list. `refurbish` asks it for what is fresh
  and nothing else, and `tf.data.experimental.at` reads a single element.

  A source that has `__getitems__` as well is asked for as many elements at once as are known to be wanted next: for 1, then
  2, then 4, and so on up to `batch_reads`. A source without is asked for one element after the other, when it is wanted.

  An element is a tensor, or a tuple or dict of components, also nested. A component is whatever `numpy.asarray` makes an
  array of numbers or strings of: a number, `str`, `bytes`, an array, a tensor of TensorFlow's or PyTorch's, an image of PIL's.
  A list is one component, as everywhere in `tf.data`.

  **Threads.** Python runs one thread at a time: what the source does in Python is not done in parallel by a parallel `map`
  behind it. A source is asked by one thread at a time, also by several datasets. A source may use other datasets, and
  `tf.data.experimental.at` of its own; one that iterates over its own dataset waits for itself for ever, as `tf.data` reads
  that in another thread.

  **Lifetime.** The source lives as long as its dataset, those made from it, and their iterators. It must not change
  meanwhile: its elements are known by their index. It stays in this process: a worker of a `tf.data` service cannot read it.

  Args:
    source: an object with `__len__` and `__getitem__`, for whole numbers from 0, and perhaps `__getitems__`, which takes a
      list of them and returns a list of as many elements.
    element_spec: the `tf.TensorSpec` of an element, or a tuple or dict of them, also nested. None is that of the first
      element, which is read for it; so say it where shapes vary, with None in the place of what does. Python's own numbers
      become of the dtype that is given, arrays must be of it. Not given, they are int64 and float64.
    batch_reads: for how many elements `__getitems__` is asked at most.

  Returns:
    A `tf.data.Dataset` of as many elements as the source has.

  Raises:
    TypeError: `source` lacks a method; its first element, or `element_spec`, is of something that tensors cannot hold;
      `batch_reads` is not a whole number.
    ValueError: `source` is empty and `element_spec` is not given; `batch_reads` is below 1 or too large.
    Errors of the source, when its first element is read.
    tf.errors.UnknownError: when it runs, the source raised an exception, which is in the message with the index. The
      iterator goes on with the next element, as after the errors below. Where `__getitems__` raises one, its elements are
      asked for one by one, with a warning.
    tf.errors.InvalidArgumentError: when it runs, an element is not as `element_spec` says, or `__getitems__` did not return
      a list of as many elements as it was asked for.
    tf.errors.DataLossError: when it runs, the source has another length than before, and could not be read.
    tf.errors.FailedPreconditionError: the dataset is sent to a `tf.data` service, or saved as a graph.
  """
  for method in ("__len__", "__getitem__"):
    if not hasattr(type(source), method):
      raise TypeError(
          f"data_source takes a source with __len__ and __getitem__, and {type(source).__name__} has no {method}. "
          "Streams are for tf.data.Dataset.from_generator.")
  checks.check_whole_number("batch_reads", batch_reads, 1)
  if isinstance(source, tf.data.Dataset):
    raise TypeError("data_source takes a source in Python, got a tf.data.Dataset, which is one already.")
  if element_spec is None:
    element_spec = _first_spec(source)
  else:
    _check_spec(element_spec)
  num_components = len(nest.flatten(element_spec))
  if batch_reads * num_components > _MOST_OUTPUTS:
    raise ValueError(
        f"batch_reads must be at most {_MOST_OUTPUTS // num_components:,} with {num_components} components an element, "
        f"got {batch_reads:,}.")
  return _DataSourceDataset(source, element_spec, operator.index(batch_reads))


class _DataSourceDataset(dataset_ops.DatasetSource):
  """The elements of a source by index."""

  def __init__(self, source, element_spec, batch_reads):
    self._name = None
    self._element_spec = element_spec
    batch_reads = batch_reads if hasattr(type(source), "__getitems__") else 1
    reader = _Reader(source, element_spec, batch_reads)
    # TensorFlow knows them by names and weak references: the source is gone with the last that holds this dataset.
    self._reads = [reader.read_one, reader.read_many]
    if not tf.executing_eagerly():
      # What is built in a function outlives the call that builds it.
      _keep(self._reads, tf.compat.v1.get_default_graph())
    read_one, read_many = (script_ops._py_funcs.insert(function) for function in self._reads)  # pylint: disable=protected-access
    self._traced = [_traced(read_one, element_spec, 1), _traced(read_many, element_spec, batch_reads)]
    variant = native.ops().refurbish_tf_data_source_dataset(
        num_elements=tf.constant(reader.num_elements, tf.int64), batch_reads=batch_reads,
        read_one=self._traced[0].function, read_many=self._traced[1].function, **self._common_args)
    super().__init__(variant)

  def _functions(self):
    return self._traced

  @property
  def element_spec(self):
    return self._element_spec


def _keep(functions, graph):
  if not hasattr(graph, "_refurbish_tf_functions"):
    graph._refurbish_tf_functions = []  # pylint: disable=protected-access
  graph._refurbish_tf_functions.extend(functions)  # pylint: disable=protected-access


def _traced(name, element_spec, num_elements):
  """A function of indices for TensorFlow, which calls the Python function of that name."""
  types = [spec.dtype for spec in nest.flatten(element_spec)]

  # Not by `tf.numpy_function`, which keeps its function, and with it the source, for as long as the process lives.
  @tf.autograph.experimental.do_not_convert
  def read(indices):
    return tuple(gen_script_ops.py_func(input=[indices], token=name, Tout=[tf.int32, tf.string, *num_elements * types]))

  return structured_function.StructuredFunctionWrapper(
      read, "data_source", input_structure=tf.TensorSpec([None], tf.int64))


class _Owner:
  """A source and the lock of those who read it."""

  # By the id of the source, which cannot be another one's while this holds it.
  _owners = weakref.WeakValueDictionary()
  _owners_lock = threading.Lock()

  def __init__(self, source):
    self.source = source
    # One that the same thread may have twice: a source may read itself, by way of a dataset.
    self.lock = threading.RLock()

  @classmethod
  def of(cls, source):
    with cls._owners_lock:
      owner = cls._owners.get(id(source))
      if owner is None:
        owner = cls._owners[id(source)] = cls(source)
      return owner


class _Reader:
  """Reads elements for TensorFlow: for each a code and a message, then its arrays."""

  def __init__(self, source, element_spec, batch_reads):
    self._owner = _Owner.of(source)
    self.num_elements = len(source)
    self._element_spec = element_spec
    self._batch_reads = batch_reads
    self._has_warned = False
    self._components = [_Component(*each) for each in zip(nest.flatten(element_spec), _names(element_spec))]
    self._no_arrays = [component.nothing for component in self._components]

  # An exception may not leave these: which element it is of would be lost. So not even one that is to end the program.

  def read_one(self, indices):
    index = int(indices[0])
    with self._owner.lock:
      try:
        element = self._owner.source[index]
      except BaseException as error:  # pylint: disable=broad-except
        return _returned([self._failed(index, error)])
      return _returned([self._converted(index, element)])

  def read_many(self, indices):
    """No codes where `__getitems__` raised an exception: whose fault that is shows when each is read alone."""
    indices = indices.tolist()
    with self._owner.lock:
      try:
        # A list of its own, which it may change.
        elements = self._owner.source.__getitems__(list(indices))
      except BaseException as error:  # pylint: disable=broad-except
        self._warn(error)
        return _returned([], self._batch_reads * self._no_arrays)
      if not isinstance(elements, (list, tuple, np.ndarray)) or len(elements) != len(indices):
        got = f"{len(elements):,} elements" if isinstance(elements, (list, tuple, np.ndarray)) else type(elements).__name__
        message = (f"__getitems__ of {type(self._owner.source).__name__} must return a list of as many elements as it is "
                   f"asked for, {len(indices):,}, and returned {got}.")
        results = [self._wrong(index, message) for index in indices]
      else:
        results = [self._converted(index, element) for index, element in zip(indices, elements)]
    return _returned(results, (self._batch_reads - len(results)) * self._no_arrays)

  def _converted(self, index, element):
    try:
      values = nest.flatten_up_to(self._element_spec, element)
    except (TypeError, ValueError) as error:
      return self._wrong(index, f"it is not of the structure {self._element_spec}: {_text(error)}")
    except BaseException as error:  # Of an element that reads its components when it is asked for them.  pylint: disable=broad-except
      return self._failed(index, error)
    try:
      return _OK, "", [component.array(value) for component, value in zip(self._components, values)]
    except BaseException as error:  # pylint: disable=broad-except
      return self._wrong(index, _text(error))

  def _wrong(self, index, message):
    return _INVALID_ARGUMENT, f"Element {index} of the source of data_source: {message}", self._no_arrays

  def _failed(self, index, error):
    message = f"Element {index} of the source of data_source: {type(error).__name__}: {_text(error)}"
    with contextlib.suppress(Exception):
      now = len(self._owner.source)
      if now != self.num_elements:
        return _DATA_LOSS, (f"{message} (it has {now:,} elements now, and had {self.num_elements:,} when the dataset was "
                            "made; it must not change while it is read)"), self._no_arrays
    return _UNKNOWN, message, self._no_arrays

  def _warn(self, error):
    if self._has_warned:
      return
    self._has_warned = True
    with contextlib.suppress(Warning):  # Where warnings are errors there is nobody here to catch them.
      warnings.warn(
          f"__getitems__ of {type(self._owner.source).__name__} raised {type(error).__name__}: {_text(error)}. data_source asks "
          "for its elements one by one where it does, which takes longer.", RuntimeWarning)


def _text(error):
  """What an exception says, also one that fails to say it."""
  try:
    return str(error)
  except BaseException:  # pylint: disable=broad-except
    return "without a message"


def _returned(results, rest=()):
  codes = np.array([code for code, _, _ in results], np.int32)
  messages = np.array([message.encode("utf-8", "replace") for _, message, _ in results], object)
  return [codes, messages, *(array for _, _, arrays in results for array in arrays), *rest]


class _Component:
  """One component of every element."""

  def __init__(self, spec, name):
    self._spec = spec
    self._name = name
    self._shape = None if spec.shape.rank is None else tuple(spec.shape)
    self._dtype = object if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    # In place of one that could not be read.
    self.nothing = np.array(b"", object) if spec.dtype == tf.string else np.zeros((), self._dtype)

  def array(self, value):
    """Raises TypeError or ValueError when it is not as the spec says."""
    array = as_array(value, self._name)
    if array.dtype != self._dtype:
      if hasattr(value, "dtype") or not _holds(self._spec.dtype, array.dtype):
        raise TypeError(
            f"{self._name} is of dtype {_name_of(array.dtype)}, and not {self._spec.dtype.name} as "
            f"{_OTHERS}. Convert it in the source, or say what all have by element_spec.")
      array = np.array(value, self._dtype)
    if self._shape is not None and array.shape != self._shape and not self._spec.shape.is_compatible_with(array.shape):
      raise ValueError(
          f"{self._name} has shape {array.shape}, and not {self._spec.shape} as {_OTHERS}. Give an element_spec that has "
          "None for what varies.")
    return array


_OTHERS = "element_spec says, which is that of the first element where it was not given"


def as_array(value, name):
  """An array of numbers, or of bytes as objects, which is nobody else's; TypeError for what no tensor can hold."""
  if isinstance(value, (str, bytes)):
    return np.array(_as_bytes(value), object)
  if nest.is_nested(value):
    raise TypeError(f"{name} is a {type(value).__name__}, and in the others it is one component.")
  if isinstance(value, np.ma.MaskedArray):
    raise TypeError(f"{name} is a masked array, and a tensor has no mask: fill it in the source.")
  try:
    array = np.asarray(value)
    if array.dtype.kind in "SU":
      # Of what is no array yet NumPy would cut zeros off the end.
      array = np.asarray(value, object)
  except Exception as error:
    hint = " A list is one component; for several return a tuple." if isinstance(value, list) else ""
    raise TypeError(f"{name} is a {type(value).__name__}, of which numpy.asarray makes no array: {error}.{hint}") from None
  if array.dtype == object:
    flat = array.reshape(-1).tolist()
    odd = [item for item in flat if not isinstance(item, (str, bytes))]
    if odd:
      # What made objects of the others is rather this than a number.
      item = next((item for item in odd if not isinstance(item, numbers.Number)), odd[0])
      raise TypeError(
          f"{name} is a {type(value).__name__}, of which numpy.asarray makes no numbers or strings"
          f"{f' but has {type(item).__name__} in it' if item is not value else ''}. Return numbers, strings, arrays or "
          "tensors, or a tuple or dict of them.")
    strings = np.empty(len(flat), object)
    strings[:] = [_as_bytes(item) for item in flat]
    return strings.reshape(array.shape)
  try:
    tf.as_dtype(array.dtype)
  except TypeError:
    raise TypeError(f"{name} is of dtype {array.dtype}, which tensors do not have. Convert it in the source.") from None
  # TensorFlow would go on to use the memory of an array, which the source may use again.
  return np.array(array, array.dtype.newbyteorder("="), order="C")


def _as_bytes(text):
  return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def _holds(dtype, other):
  """Whether Python's own numbers, which NumPy has made `other` of, can be of the dtype."""
  kinds = ["b", "iu", "f", "c"]
  most = [dtype.is_bool, dtype.is_integer, dtype.is_floating, dtype.is_complex].index(True) if dtype != tf.string else -1
  return other.kind in "".join(kinds[:most + 1])


def _name_of(dtype):
  return "string" if dtype == object else dtype.name


def _first_spec(source):
  if not len(source):
    raise ValueError(
        "The source of data_source has no elements, so nothing is known of them: check what it is made from, or say what "
        "they would be by element_spec.")
  with _Owner.of(source).lock:
    element = source[0]

  values = nest.flatten(element)
  if not values:
    raise TypeError(f"The first element of the source of data_source, {element!r}, has no components.")
  try:
    arrays = [as_array(value, name) for value, name in zip(values, _names(element))]
  except TypeError as error:
    raise TypeError(f"Element 0 of the source of data_source: {error}") from None
  return nest.pack_sequence_as(element, [
      tf.TensorSpec(array.shape, tf.string if array.dtype == object else tf.as_dtype(array.dtype)) for array in arrays])


def _names(element):
  """How messages call the components of an element, or of its spec."""
  # For nothing but tf.data a list has components.
  paths = util_nest.flatten_with_joined_string_paths(nest.map_structure(lambda _: None, element))
  return [f"its component {path!r}" if path else "it" for path, _ in paths]


def _check_spec(element_spec):
  leaves = nest.flatten(element_spec)
  for spec in leaves:
    if not isinstance(spec, tf.TensorSpec):
      raise TypeError(
          f"element_spec must be a tf.TensorSpec, or a tuple or dict of them, also nested, got {spec!r} in it.")
    if spec.dtype in (tf.variant, tf.resource) or spec.dtype.is_quantized:
      raise TypeError(f"element_spec must be of numbers or strings, which Python has, got {spec.dtype.name}.")
  if not leaves:
    raise TypeError(f"element_spec must have a component, got {element_spec!r}.")
