"""The elements of Python sources: their specs, and their components as arrays."""

import collections.abc
import numbers

import numpy as np
import tensorflow as tf

from refurbish_tf._internal.tensorflow_internals import nest, util_nest

# tf.data treats these buffers as sequences of whole numbers.
_BUFFERS = bytearray, memoryview


class Component:
  """One component of every element."""

  def __init__(self, spec, name):
    self._spec = spec
    self._name = name
    self._shape = None if spec.shape.rank is None else tuple(spec.shape)
    self._dtype = object if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    # Returned in place of a component that could not be read.
    self.nothing = np.array(b"", object) if spec.dtype == tf.string else np.zeros((), self._dtype)

  def array(self, value):
    """The component as an array. Raises TypeError or ValueError if it does not match the spec."""
    array = as_array(value, self._name)
    if array.dtype != self._dtype:
      if hasattr(value, "dtype") or not _holds(self._spec.dtype, array.dtype):
        got = "string" if array.dtype == object else array.dtype.name
        raise TypeError(
          f"{self._name} must have dtype {self._spec.dtype.name} by {_OTHERS}, got {got}. Convert it "
          "in the source, or pass the dtype of all elements in element_spec."
        )
      array = np.array(value, self._dtype)
    if self._shape is not None and array.shape != self._shape and not self._spec.shape.is_compatible_with(array.shape):
      # numpy.asarray gives an empty list the shape (0,).
      empty, way = [0, *(size or 0 for size in self._shape[1:])], ""
      if array.shape == (0,) and len(empty) > 1:
        way = f" Return np.zeros({empty}, {self._spec.dtype.name!r}) instead of an empty list."
      if not way or not self._spec.shape.is_compatible_with(empty):
        way += " Pass an element_spec with None for the dimensions that vary."
      raise ValueError(f"{self._name} must have shape {self._spec.shape} by {_OTHERS}, got {array.shape}.{way}")
    return array


_OTHERS = "element_spec (if not given, the spec of the first element)"


def as_array(value, name):
  """A new array of numbers, or of bytes as objects; TypeError for a value that no tensor can hold."""
  value = without_buffers(value) if isinstance(value, _BUFFERS) else value
  if isinstance(value, (str, bytes)):
    return np.array(_as_bytes(value), object)
  if value is None:
    raise TypeError(
      f"{name} is None, which tensors cannot hold. Leave the component out in the source, or return a value for it."
    )
  check_not_of_pyarrow(value, name)
  if isinstance(value, list) and value:
    check_not_of_pyarrow(value[0], f"an item of {name}")
    value = list(map(without_buffers, value)) if isinstance(value[0], _BUFFERS) else value
  if nest.is_nested(value):
    raise TypeError(f"{name} must be one component, as in the other elements, got a {type(value).__name__}.")
  if isinstance(value, np.ma.MaskedArray):
    raise TypeError(f"{name} is a masked array, but a tensor has no mask: fill it in the source.")
  try:
    array = np.asarray(value)
    if array.dtype.kind in "SU":
      # As an array of objects: in an array of strings, NumPy would cut zero bytes off the end.
      array = np.asarray(value, object)
  except Exception as error:
    hint = " A list is one component; for several return a tuple." if isinstance(value, list) else ""
    raise TypeError(f"{name} is a {type(value).__name__}, which numpy.asarray cannot convert: {error}.{hint}") from None
  if array.dtype == object:
    flat = array.reshape(-1).tolist()
    odd = [item for item in flat if not isinstance(item, (str, bytes))]
    if odd:
      # Name an item that is not a number, which is the likelier culprit.
      item = next((item for item in odd if not isinstance(item, numbers.Number)), odd[0])
      raise TypeError(
        f"{name} is a {type(value).__name__}, which numpy.asarray does not convert to numbers or "
        f"strings{f', because it contains a {type(item).__name__}' if item is not value else ''}. Return numbers, "
        "strings, arrays or tensors, or a tuple or dict of them."
      )
    strings = np.empty(len(flat), object)
    strings[:] = [_as_bytes(item) for item in flat]
    return strings.reshape(array.shape)
  try:
    tf.as_dtype(array.dtype)
  except TypeError:
    raise TypeError(f"{name} has dtype {array.dtype}, which tensors do not have. Convert it in the source.") from None
  # A copy, because TensorFlow would keep using the array's memory, which the source may overwrite.
  return np.array(array, array.dtype.newbyteorder("="), order="C")


def without_buffers(element):
  """Converts buffers of bytes to bytes, and others to arrays. tf.data would treat them as sequences, like tuples."""
  if isinstance(element, _BUFFERS):
    view = memoryview(element)
    return bytes(view) if view.ndim == 1 and view.format in ("B", "b", "c") else np.asarray(view)
  if not isinstance(element, (tuple, collections.abc.Mapping)):
    return element
  values = element if isinstance(element, tuple) else [element[name] for name in sorted(element)]
  made = [without_buffers(value) for value in values]
  return element if all(one is other for one, other in zip(made, values)) else util_nest._sequence_like(element, made)


def check_not_of_pyarrow(value, name):
  """Raises TypeError for a scalar or buffer of pyarrow: numpy.asarray would read bytes as numbers from -128 to 127."""
  for way_out in ("as_py", "to_pybytes"):
    if hasattr(value, way_out):
      raise TypeError(f"{name} is a {type(value).__name__} of pyarrow. Return its {way_out}().")
  if getattr(value, "null_count", 0):
    raise TypeError(
      f"{name} is a {type(value).__name__} of pyarrow with nulls, which tensors cannot hold. Return values for them."
    )


def _as_bytes(text):
  return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def _holds(dtype, other):
  """Whether Python numbers, which NumPy has converted to `other`, can be converted to `dtype`."""
  kinds = {"b": dtype.is_bool, "iu": dtype.is_integer, "f": dtype.is_floating, "c": dtype.is_complex}
  own = list(kinds.values()).index(True) if dtype != tf.string else -1
  return other.kind in "".join([*kinds][: own + 1])


def names(element):
  """Names of the components of an element, or of its spec, for messages."""
  # As in tf.data, a list is one component.
  paths = util_nest.flatten_with_joined_string_paths(nest.map_structure(lambda _: None, element))
  return [f"its component {path!r}" if path else "it" for path, _ in paths]


def check_spec(element_spec):
  leaves = nest.flatten(element_spec)
  for spec in leaves:
    if not isinstance(spec, tf.TensorSpec):
      raise TypeError(
        f"element_spec must be a tf.TensorSpec, or a tuple or dict of them, possibly nested, got {spec!r} in it."
      )
    if spec.dtype in (tf.variant, tf.resource) or spec.dtype.is_quantized:
      raise TypeError(f"element_spec must have dtypes of numbers or strings, got {spec.dtype.name}.")
  if not leaves:
    raise TypeError(f"element_spec must have at least one component, got {element_spec!r}.")
