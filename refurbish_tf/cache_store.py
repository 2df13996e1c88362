"""The cache store: holds partially augmented samples by index."""
import dataclasses
import operator
import uuid

import tensorflow as tf
from tensorflow.python.data.util import structure

from refurbish_tf import native

UNLIMITED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class CacheStoreStats:
  """What a `CacheStore` holds and has done since it was made.

  Attributes:
    entries: samples held now.
    bytes: bytes of their data.
    hits: lookups that found their sample.
    misses: lookups that did not, so that the sample had to be prepared.
    evictions: samples that had their last use, were replaced by a newer generation, or were dropped to make room.
  """
  entries: int
  bytes: int
  hits: int
  misses: int
  evictions: int


class CacheStore:
  """Holds partially augmented samples in memory, by their index in the source.

  A `refurbish` stage makes one for itself; make your own to bound its memory or to look inside. It holds the tensors
  themselves, without copying them. All methods but `len`, `in` and `stats` work inside `tf.function`, too; use
  `contains` there in place of `in`.

  >>> store = rtf.CacheStore(max_bytes=2**30)
  >>> store.put(3, {"image": tf.zeros([2, 2]), "label": 1})
  >>> 3 in store, len(store)
  (True, 1)
  >>> store.get(3)["label"].numpy()
  1
  >>> store.remove(3)
  <tf.Tensor: shape=(), dtype=bool, numpy=True>
  >>> train = tf.data.Dataset.range(6).refurbish(lambda x: 10 * x, r=2, store=store)

  All samples of a store have one structure; `put` fixes it, or `refurbish`, or `element_spec`.

  The store of Revamper (Lee et al., "Refurbish Your Training Data", USENIX ATC 2021, section 5.1).
  """

  def __init__(self, path=None, *, max_bytes=None, element_spec=None):
    """Makes an empty store.

    Args:
      path: must be None. Stores on disk are not there yet.
      max_bytes: the most bytes of data it holds, an int, or None for no limit. Beyond it a sample is not kept, and
        `refurbish` prepares it in every epoch.
      element_spec: the structure of a sample, of `tf.TypeSpec`s as in `tf.data.Dataset.element_spec`. Only needed to
        trace a `get` in a `tf.function` before the first `put`.

    Raises:
      ValueError: `max_bytes` is not positive.
      TypeError: `max_bytes` is not a whole number.
      NotImplementedError: `path` is given.
    """
    if path is not None:
      raise NotImplementedError(
          f"Got path={path!r}, but a CacheStore on disk is not there yet. Leave `path` out to keep samples in memory.")
    if max_bytes is not None:
      try:
        max_bytes = operator.index(max_bytes)
      except TypeError:
        raise TypeError(
            f"max_bytes must be a whole number of bytes or None for no limit, got {max_bytes!r}.") from None
      if max_bytes <= 0:
        raise ValueError(
            f"max_bytes must be positive, got {max_bytes}. For a pipeline that keeps no samples use r=1.")
    self._max_bytes = max_bytes
    self._element_spec = None if element_spec is None else tf.nest.map_structure(_any_size, element_spec)
    self._id = f"CacheStore-{uuid.uuid4().hex}"
    # The ops find the store by its name; the handle is what keeps it alive. A store that is made while a function is
    # traced must outlive the tracing.
    with tf.init_scope():
      self._handle = native.ops().cache_store_handle(store=self._id, max_bytes=min(max_bytes or UNLIMITED, UNLIMITED))

  @property
  def max_bytes(self):
    """The most bytes of data it holds, or None for no limit."""
    return self._max_bytes

  @property
  def element_spec(self):
    """The structure of a sample, or None while it is unknown."""
    return self._element_spec

  def get(self, index):
    """The sample at `index`.

    Args:
      index: a scalar int or integer tensor, at least 0.

    Returns:
      The sample, in the structure in which it was put.

    Raises:
      tf.errors.NotFoundError: there is none.
      tf.errors.InvalidArgumentError: `index` is negative.
      ValueError: traced in a `tf.function` while the structure of the samples is unknown.
    """
    index = _index(index)
    if self._element_spec is None:
      if tf.executing_eagerly():
        # Nothing was put yet; a wrong index is told all the same.
        self.contains(index)
        raise tf.errors.NotFoundError(
            None, None, f"There is no sample at index {index.numpy()} of the CacheStore, which is empty.")
      raise ValueError(
          "A tf.function that gets a sample must know its structure, and nothing was put yet. Put a sample first, or "
          "make the store with CacheStore(element_spec=...).")
    components = native.ops().cache_store_get(
        store=self._id, index=index, output_types=structure.get_flat_tensor_types(self._element_spec),
        output_shapes=structure.get_flat_tensor_shapes(self._element_spec))
    return structure.from_compatible_tensor_list(self._element_spec, components)

  def put(self, index, sample):
    """Keeps `sample` at `index`, in place of what is there.

    Args:
      index: a scalar int or integer tensor, at least 0.
      sample: tensors in any structure that `tf.data` takes: nested tuples and dicts, ragged and sparse ones.

    Raises:
      ValueError: the structure is another one than that of the other samples.
      tf.errors.InvalidArgumentError: `index` is negative.
      tf.errors.ResourceExhaustedError: the sample does not fit into `max_bytes`.
    """
    sample = structure.normalize_element(sample, element_signature=None)
    spec = structure.type_spec_from_value(sample)
    if self._element_spec is not None and not _of_one_kind(spec, self._element_spec):
      raise ValueError(
          f"Got a sample of structure {spec}, but the samples of this CacheStore have {self._element_spec}. Use one "
          "CacheStore for one kind of sample.")
    native.ops().cache_store_put(
        store=self._id, index=_index(index), components=structure.to_tensor_list(spec, sample))
    if self._element_spec is None:
      self._element_spec = tf.nest.map_structure(_any_size, spec)

  def remove(self, index):
    """Removes the sample at `index`, if there is one.

    A `refurbish` stage then prepares it when it needs it next.

    Args:
      index: a scalar int or integer tensor, at least 0.

    Returns:
      A scalar bool tensor: whether there was one.

    Raises:
      tf.errors.InvalidArgumentError: `index` is negative.
    """
    return native.ops().cache_store_remove(store=self._id, index=_index(index))

  def contains(self, index):
    """Whether there is a sample at `index`, as a scalar bool tensor; `in` for a `tf.function`.

    Args:
      index: a scalar int or integer tensor, at least 0.

    Raises:
      tf.errors.InvalidArgumentError: `index` is negative.
    """
    return native.ops().cache_store_contains(store=self._id, index=_index(index))

  def clear(self):
    """Removes all samples. The counts of `stats` go on."""
    native.ops().cache_store_clear(store=self._id)

  def stats(self):
    """The counts of the store, as `CacheStoreStats`. Not in a `tf.function`."""
    return CacheStoreStats(*map(int, native.ops().cache_store_stats(store=self._id)))

  def __contains__(self, index):
    return bool(self.contains(index))

  def __len__(self):
    return self.stats().entries

  def __repr__(self):
    return f"<CacheStore max_bytes={self._max_bytes} element_spec={self._element_spec}>"


def _index(index):
  index = tf.convert_to_tensor(index)
  if not index.dtype.is_integer:
    raise TypeError(
        f"An index must be a whole number, the position of the sample in the source, got {index.dtype.name}.")
  return tf.cast(index, tf.int64)


def _any_size(spec):
  """What allows all samples of one structure: they may differ in size, as images do."""
  if isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
    shape = [None] * spec.shape.rank if spec.shape.rank is not None else None
    if isinstance(spec, tf.RaggedTensorSpec):
      return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)
  return spec


def _of_one_kind(spec, allowed):
  try:
    tf.nest.assert_same_structure(spec, allowed)
  except (TypeError, ValueError):
    return False
  return all(own.is_compatible_with(other) for own, other in zip(tf.nest.flatten(allowed), tf.nest.flatten(spec)))
