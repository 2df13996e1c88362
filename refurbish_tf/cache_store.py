"""The cache store: holds partially augmented samples by index, in memory or on disk."""

import dataclasses
import numbers
import os
import re
import uuid
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import struct_pb2

from refurbish_tf._internal import checks, machine, named_memory, native, shared_levels
from refurbish_tf._internal.tensorflow_internals import nested_structure_coder, structure

UNLIMITED = 2**63 - 1
# The setting of a store on disk that holds the reuse factor; for `rtf.sources.cached` its value is `OF_ELEMENTS`.
REUSE, OF_ELEMENTS = "r", "elements"
# Settings of a store on disk: the version of the layers that prepared the samples, and the decoders' version, if any.
LAYERS, DECODERS = "layers", "decoders"
# Raise the version whenever the pixels of decoded files change. A store with samples but no `DECODERS` has version 1.
DECODERS_VERSION = "version 3 of rtf.augment.decode"


@dataclasses.dataclass(frozen=True)
class CacheStoreStats:
  """Counts of what a `CacheStore` holds, and of what this process has done with it since it was made.

  Attributes:
    entries: samples held now.
    bytes: bytes of their data; on disk, of their records.
    hits: lookups that found their sample.
    misses: lookups that did not find their sample, which then had to be prepared.
    evictions: samples that had their last use, were replaced by a newer generation, or were dropped to make room.
    disk_bytes: bytes in the files of a store on disk, including replaced samples and the ring.
    segments: the number of log files on disk.
    compactions: log files that this process has emptied because most of their samples had been replaced.
    moved_bytes: bytes that these compactions have moved.
    corrupt: samples on disk that could not be read, or whose checksum or types were wrong. They count as missing.
    from_other_jobs: hits on samples that another process, running or earlier, has prepared.
    failed_writes: writes that failed because the disk was full or could not be written.
    epochs: epochs of `refurbish` that have begun on a store on disk since it was made.
    ring_bytes: bytes on disk for samples in transit between jobs, which are in a ring; see `max_bytes`.
    transit_bytes_put: bytes that this process has written to the ring, which is overwritten in place.
  """

  entries: int
  bytes: int
  hits: int
  misses: int
  evictions: int
  disk_bytes: int = 0
  segments: int = 0
  compactions: int = 0
  moved_bytes: int = 0
  corrupt: int = 0
  from_other_jobs: int = 0
  failed_writes: int = 0
  epochs: int = 0
  ring_bytes: int = 0
  transit_bytes_put: int = 0


class CacheStore:
  """Holds partially augmented samples, in memory or on disk, by their index in the source.

  By default, a `refurbish` stage makes its own in memory. Make one to limit the memory, to keep the samples on disk or
  to inspect them. In memory it holds the tensors themselves; only views of larger ones are copied. All methods except
  `len`, `in`, `stats` and `verify` also work inside a `tf.function`; use `contains` there instead of `in`.

  >>> store = rtf.CacheStore(max_bytes=2**30)
  >>> store.put(3, {"image": tf.zeros([2, 2]), "label": 1})
  >>> 3 in store, len(store)
  (True, 1)
  >>> int(store.get(3)["label"])
  1
  >>> store.remove(3)
  <tf.Tensor: shape=(), dtype=bool, numpy=True>
  >>> train = tf.data.Dataset.range(6).refurbish(lambda x: 10 * x, r=2, store=store)

  All samples of a store have the same structure, which `element_spec`, the first `put` or `refurbish` fixes. An index
  is a scalar int or integer tensor; all methods raise `tf.errors.InvalidArgumentError` for a negative one.

  In memory, it stops growing before the machine or the container runs out of memory, whatever `max_bytes` is, and drops
  samples if that is not enough. It warns once; `refurbish` and `cached` prepare missing samples again.

  With a `path`, the samples are in a directory on a local disk, where the next run finds them. Several processes may
  have the store open at once and use each other's samples. It survives any crash. A torn or corrupt sample counts as
  missing and is prepared again, with the same result if `partial_fn` takes a `seed`. Damage is noticed when a sample is
  read, so that sample moves to the end of its epoch. With a `name`, the directory is in memory until the last process
  ends.

  >>> import os, tempfile
  >>> path = os.path.join(tempfile.mkdtemp(), "cache")
  >>> rtf.CacheStore(path).put(3, tf.constant([1, 2]))
  >>> rtf.CacheStore(path).get(3).numpy()
  array([1, 2], dtype=int32)

  With `shared`, machines also share the samples that their `refurbish` stages have prepared: each job uses the samples
  that others have put there and prepares the missing ones. The methods below apply only to the store of this machine.

  The store of Revamper (Lee et al., "Refurbish Your Training Data", USENIX ATC 2021, section 5.1), shared as in
  OneAccess (Kakaraparthi et al., "The Case for Unifying Data Loading in Machine Learning Clusters", HotCloud 2019).
  """

  def __init__(
    self,
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    max_bytes: int | None = None,
    shared: Any = None,
    shared_max_bytes: int | None = None,
    element_spec: Any = None,
    version: str | None = None,
    overwrite: bool = False,
  ) -> None:
    """Makes an empty store, or opens the one in the directory `path`.

    Args:
      path: a directory on a local disk, which need not exist yet. None keeps the samples in memory.
      name: instead of `path`, a name for a store in memory that all processes of this user on this machine share, such
        as the ranks of a training job. It is removed when the last of them has ended, even if they are killed. It does
        not check how much memory is free.
      max_bytes: the most bytes of data it holds, an int, or None for no limit; with a `name`, None is a quarter of the
        memory, and half of /dev/shm is the maximum. Samples beyond it are not kept, and `refurbish` prepares them in
        every epoch. [Shards](workers.md) divide it among themselves. On disk, the files may take up to twice as much,
        and part of the limit is for samples in transit, which jobs pass to each other without keeping them. This part
        has room for 2 % of all samples, or for a quarter of those that fit, up to 1,024, if that is more; it is a
        sixteenth of the bytes if samples vary in size, and all of it if `r` is 1 and the source is read by index.
      shared: the level that machines share: an address, `redis://host:6379/0` (also `rediss://`, `unix://`, `valkey://`),
        `s3://bucket/prefix`, `gs://`, `az://`, or `file:///mnt/nfs/directory`; or your own object with methods
        `get_many(keys: list[str]) -> list[bytes | None]` and `put(key: str, value: bytes)`, which several threads call
        at once. Install `refurbish-tf[cluster]`. Credentials for Redis come from the environment variables
        REFURBISH_TF_SHARED_USERNAME and REFURBISH_TF_SHARED_PASSWORD, those for a cloud from its usual ones. While the
        level is unavailable, jobs prepare all samples themselves. Without a `seed` jobs share one; each has a random
        `order_seed`, because jobs that read the same sample at the same time would all prepare it.
      shared_max_bytes: the most bytes of data in that level, like `max_bytes`. Samples beyond it stay in Redis for one
        minute, and are not written to other levels.
      element_spec: the structure of a sample, of `tf.TypeSpec`s as in `tf.data.Dataset.element_spec`. Only needed to
        trace a `get` in a `tf.function` before the first `put`.
      version: with a `path`, a string of your choice for what the samples do not show, such as the data that a
        `numpy_function` uses. A store with another version is rejected. None accepts any version. Required with
        `shared`: jobs with the same version share samples if their functions look the same.
      overwrite: with a `path`, whether to delete the existing store and start with an empty one.

    Raises:
      ValueError: `shared` cannot be read and written, or has no `version`; `max_bytes` is not positive or above
        2**63 - 1; `path` is not in UTF-8, is not a directory, cannot be written, or holds files that are not a cache
        store, or samples of another `version` or `element_spec`; its file system (a network mount, say) has no locks or
        cannot map files into memory; with `overwrite`, it is in use; or it was deleted while this process used it.
      TypeError: an argument is of the wrong type.
    """
    max_bytes = _checked_max_bytes(max_bytes)
    if name is not None:
      if path is not None:
        raise ValueError(
          f"name makes a store in memory and path one on disk, got both, {name!r} and {path!r}. Give only one."
        )
      path, max_bytes = named_memory.open_directory(name), named_memory.limit(name, max_bytes)
    path = checked_path(path)
    if version is not None and (not isinstance(version, str) or "\n" in version):
      raise TypeError(f"version must be a string of one line, such as 'magnitude 9', got {version!r}.")
    overwrite = checks.checked_flag("overwrite", overwrite)
    if path is None and (version is not None and shared is None or overwrite):
      raise ValueError(
        "version and overwrite need a path or a name, because only stores that processes share support them. Give one, "
        "or leave them out."
      )
    if shared is None and shared_max_bytes is not None:
      raise ValueError(f"shared_max_bytes limits a shared level, got {shared_max_bytes} without one. Pass shared.")
    self._path = path
    self._max_bytes = max_bytes
    self._shared, self._version = shared, version
    self._shared_max_bytes = _checked_max_bytes(shared_max_bytes, "shared_max_bytes")
    self._shared_address = "" if shared is None else shared_levels.address_of(shared)
    if shared is not None:
      if not version:
        why = "because jobs whose functions look the same would otherwise mix samples of different data"
        raise ValueError(f"shared needs a version, a string such as 'photos of May', {why}. Give version.")
      shared_levels.check(self._shared_address)
    self._element_spec = None
    self._id = path or f"CacheStore-{uuid.uuid4().hex}"
    # The ops find the store by name; the handle keeps it alive. A handle made during tracing must outlive the tracing.
    with tf.init_scope(), checks.build_errors():
      self._handle = native.ops().refurbish_tf_cache_store_handle(
        store=self._id,
        max_bytes=UNLIMITED if max_bytes is None else self._max_bytes,
        mode="overwrite" if overwrite else "open",
      )
    if path is not None:
      settings = self._agree({} if version is None else {"version": version})
      if "version" not in settings:  # A store made without a version has the version "".
        settings = self._agree({"version": ""})
      self._read_element_spec(settings)
    if element_spec is not None:
      self._set_element_spec(element_spec)

  @property
  def path(self) -> str | None:
    """The directory of a store on disk or with a name, or None."""
    return self._path

  @property
  def max_bytes(self) -> int | None:
    """The most bytes of data it holds, or None for no limit."""
    return self._max_bytes

  @property
  def shared(self) -> Any:
    """The address or object of the level that machines share, or None."""
    return self._shared

  @property
  def element_spec(self) -> Any:
    """The structure of a sample, or None while it is unknown."""
    return self._element_spec

  def get(self, index: int | tf.Tensor) -> Any:
    """The sample at `index`, in the structure in which it was put.

    Raises:
      tf.errors.NotFoundError: no sample is stored at `index`.
      ValueError: traced in a `tf.function` while the structure of the samples is unknown.
    """
    index = _index(index)
    if self._element_spec is None and self._path is not None:
      self._read_element_spec(self._agree({}))  # Another process may have put the first sample.
    if self._element_spec is None:
      if tf.executing_eagerly():
        # The store is empty; this raises if the index is negative.
        self.contains(index)
        raise tf.errors.NotFoundError(None, None, f"index {index.numpy()} has no sample: the CacheStore is empty.")
      raise ValueError(
        "element_spec of the CacheStore is unknown until the first put, and a tf.function must know it to get a "
        "sample. Put a sample first, or make the store with CacheStore(element_spec=...)."
      )
    components = native.ops().refurbish_tf_cache_store_get(
      store=self._id,
      index=index,
      output_types=structure.get_flat_tensor_types(self._element_spec),
      output_shapes=structure.get_flat_tensor_shapes(self._element_spec),
    )
    return structure.from_compatible_tensor_list(self._element_spec, components)

  def put(self, index: int | tf.Tensor, sample: Any) -> None:
    """Stores `sample` at `index`, replacing any sample there.

    Args:
      index: the position of the sample in the source.
      sample: tensors in any structure that `tf.data` supports: nested tuples and dicts, ragged and sparse tensors.

    Raises:
      ValueError: the structure of `sample` differs from the structure of the other samples.
      tf.errors.ResourceExhaustedError: the sample does not fit into `max_bytes`, or memory is short.
    """
    sample = structure.normalize_element(sample, element_signature=None)
    spec = structure.type_spec_from_value(sample)
    # Checked before anything is written, because a sample of another structure would stay on disk.
    if self._element_spec is None and self._path is not None:
      self._read_element_spec(self._agree({}))
      if self._element_spec is None:
        self._set_element_spec(spec)
    if self._element_spec is not None and not _of_one_kind(spec, self._element_spec):
      raise ValueError(
        f"sample must have the structure of the others in this CacheStore, {self._element_spec}, got {spec}. Use a "
        "separate CacheStore for each kind of sample."
      )
    native.ops().refurbish_tf_cache_store_put(
      store=self._id, index=_index(index), components=structure.to_tensor_list(spec, sample)
    )
    if self._element_spec is None:
      self._set_element_spec(spec)

  def remove(self, index: int | tf.Tensor) -> tf.Tensor:
    """Removes the sample at `index`; returns whether there was one, as a scalar bool tensor.

    A `refurbish` stage then prepares it again when it next needs it.
    """
    return native.ops().refurbish_tf_cache_store_remove(store=self._id, index=_index(index))

  def contains(self, index: int | tf.Tensor) -> tf.Tensor:
    """Whether there is a sample at `index`, as a scalar bool tensor; replaces `in` inside a `tf.function`."""
    return native.ops().refurbish_tf_cache_store_contains(store=self._id, index=_index(index))

  def clear(self) -> None:
    """Removes all samples. The counts of `stats` continue."""
    native.ops().refurbish_tf_cache_store_clear(store=self._id)

  def stats(self) -> CacheStoreStats:
    """The counts of the store, as `CacheStoreStats`. Not in a `tf.function`."""
    (counts,) = native.rows(native.ops().refurbish_tf_cache_store_stats(store=self._id))
    return CacheStoreStats(**counts)

  def verify(self) -> tuple[int, int]:
    """Reads every sample of a store on disk; returns how many are intact and how many are damaged.

    Damaged samples count as missing from then on. Not in a `tf.function`.
    """
    right, wrong = map(int, native.ops().refurbish_tf_cache_store_verify(store=self._id))
    return right, wrong

  def _agree(self, settings, replace=False):
    """Adds settings to those of a store on disk and returns them all. ValueError if one differs, unless `replace`."""
    with tf.init_scope(), checks.build_errors():
      names, values = native.ops().refurbish_tf_cache_store_agree(
        store=self._id, names=list(settings), values=list(settings.values()), replace=replace
      )
    return {name.decode(): value.decode() for name, value in zip(names.numpy(), values.numpy())}

  def _check_holds(self, elements):
    """Raises ValueError if a store on disk holds samples of `refurbish` instead of `elements`, or vice versa."""
    held = self._agree({}).get(REUSE)
    if held is not None and (held == OF_ELEMENTS) != elements:
      kinds = ["samples of a refurbish stage", "elements of a source for rtf.sources.cached"]
      raise ValueError(
        f"store {self._path} holds {kinds[not elements]}, not {kinds[elements]}. Give refurbish and cached separate "
        "directories, or start with an empty store: store=rtf.CacheStore(path, overwrite=True)."
      )

  def _check_versions(self, versions, filled):
    """Raises ValueError if other `versions` prepared the samples. `filled`: a setting of every store with samples."""
    before = self._agree({})
    for name, version in versions.items():
      other = before.get(name, "version 1 of rtf.augment.decode" if filled in before else version)
      if other != version:
        makes = "draws different random numbers from the same seed"
        makes = "decodes the same file to different pixels" if name == DECODERS else makes
        raise ValueError(
          f"store {self._path} holds samples made by {other}, but this refurbish_tf has {version}, which {makes}. "
          "Start with an empty store, store=rtf.CacheStore(path, overwrite=True), give another directory, or use the "
          "refurbish_tf that prepared the samples."
        )

  def _read_element_spec(self, settings):
    """Sets the structure from the settings of a store on disk, if they have one."""
    if "structure" in settings:
      proto = struct_pb2.StructuredValue.FromString(bytes.fromhex(settings["structure"]))
      self._element_spec = nested_structure_coder.decode_proto(proto)

  def _set_element_spec(self, spec, exact=False):
    """Fixes the structure of the samples; ValueError if a store on disk has a different one.

    All samples have the same structure. Their sizes may differ, unless `exact`, which stages set.
    """
    kind = tf.nest.map_structure(_any_size, spec)
    if self._path is not None or self._shared is not None:
      for component in tf.nest.flatten(spec):
        storable = isinstance(component, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec))
        if not storable or component.dtype in (tf.resource, tf.variant):
          raise ValueError(
            f"store on disk or with shared cannot keep {component}, a component of the partially augmented samples. "
            "Let partial_fn return dense, ragged or sparse tensors, or keep the samples in memory with store=None."
          )
    if self._path is not None:
      # The readable form is compared before the encoded one, so that an error shows it.
      settings = {"samples": describe_spec(kind)} | ({"element_spec": describe_spec(spec)} if exact else {})
      self._agree(settings)
      proto = nested_structure_coder.encode_structure(kind)
      self._agree({"structure": proto.SerializeToString(deterministic=True).hex()})
    self._element_spec = spec if exact else kind

  def __contains__(self, index: int) -> bool:
    return bool(self.contains(index))

  def __len__(self) -> int:
    return self.stats().entries

  def __repr__(self) -> str:
    shared = f" shared={self._shared!r}" if isinstance(self._shared, str) else ""
    return f"<CacheStore path={self._path!r} max_bytes={self._max_bytes}{shared} element_spec={self._element_spec}>"


def checked_path(path, name="path"):
  """The canonical name of the directory `path`, which identifies its store; None for None. Errors call it `name`."""
  if path is None:
    return None
  if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str) or not os.fspath(path):
    raise TypeError(
      f"{name} must be the name of a directory, a str or a pathlib.Path, or None to keep samples in memory, got "
      f"{path!r}."
    )
  path = os.fspath(path)
  if scheme := checks.scheme_of(path):
    shown = f"'{scheme}://...'" if re.search("[@?]", path) else repr(path)  # It may contain a password.
    raise ValueError(
      f"{name} must be a directory on a local disk, got {shown}. A cache store maps its files into memory and locks "
      "them, which remote storage does not support. To share samples between machines, write CacheStore(shared=...)."
    )
  if "\0" in path:
    raise ValueError(f"{name} must be the name of a directory, got {path!r}, which contains a null character.")
  # Links are resolved before the check, because the name of the directory that a link leads to must also be in UTF-8.
  path = os.path.realpath(os.path.expanduser(path))
  try:
    path.encode()
  except UnicodeEncodeError:
    raise ValueError(
      f"{name} must be a directory whose full path is in UTF-8, got {path!r}. Rename it, or give another directory."
    ) from None
  return path


def check_store(store):
  """Raises TypeError or ValueError if `store` is not None, a directory, or a CacheStore."""
  if isinstance(store, (str, os.PathLike)):
    checked_path(store, "store")
    return
  if store is None or isinstance(store, CacheStore):
    return
  raise TypeError(
    f"store must be None to use memory, a directory, or a CacheStore, got {store!r}. To limit the memory, write "
    'store=rtf.CacheStore(max_bytes=...); to keep the samples on disk, store="/path/to/a/directory".'
  )


def opened_store(store):
  """The `CacheStore` for a stage's argument `store`, after `check_store`; None if the stage makes its own."""
  return CacheStore(store) if isinstance(store, (str, os.PathLike)) else store


def describe_store(store):
  """Where a stage keeps its samples, and the limit."""
  place = "memory" if store is None or store.path is None else store.path
  limit = "without a limit" if store is None or store.max_bytes is None else f"at most {store.max_bytes:,} bytes"
  return f"{place}, {limit}"


def describe_bytes(store, store_name, number, what, size, done):
  """The memory that samples take, as text; "" on disk or if unknown. `done`: what happens to samples without room."""
  if min(number, size) <= 0 or store is not None and store.path is not None:
    return ""
  if store is not None and store.max_bytes is not None:
    number = min(number, store.max_bytes // size)
  (counts,) = native.rows(native.ops().refurbish_tf_cache_store_stats(store=store_name))
  room = machine.room_for_samples() + counts["bytes"]
  told = f"; {number:,} {what} of {machine.size_of(size)} take {machine.size_of(number * size)}"
  if number * size > room:
    told += f", and memory now has room for {machine.size_of(room)}: the rest is {done} again at each use"
  return told


def _checked_max_bytes(max_bytes, name="max_bytes"):
  if max_bytes is None:
    return None
  if isinstance(max_bytes, bool) or not isinstance(max_bytes, numbers.Integral):
    raise TypeError(f"{name} must be a whole number of bytes or None for no limit, got {max_bytes!r}.")
  if max_bytes <= 0:
    way_out = "To keep no samples, use r=1." if name == "max_bytes" else "To share no samples, leave shared out."
    raise ValueError(f"{name} must be positive, got {max_bytes}. {way_out}")
  if max_bytes > UNLIMITED:
    raise ValueError(f"{name} must be at most 2**63 - 1 bytes or None for no limit, got {max_bytes}.")
  return int(max_bytes)


def _index(index):
  index = tf.convert_to_tensor(index)
  if not index.dtype.is_integer:
    raise TypeError(f"index must be a whole number, the position of the sample in the source, got {index.dtype.name}.")
  return tf.cast(index, tf.int64)


def describe_spec(spec):
  """A readable form of a structure: (uint8[32, 32, 3], int64[])."""

  def describe(component):
    kind = {tf.RaggedTensorSpec: "ragged ", tf.SparseTensorSpec: "sparse "}.get(type(component), "")
    return f"{kind}{component.dtype.name}{'[...]' if component.shape.rank is None else component.shape.as_list()}"

  return str(tf.nest.map_structure(describe, spec)).replace("'", "")


def _any_size(spec):
  """The structure without its sizes, because samples such as images may differ in size."""
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
