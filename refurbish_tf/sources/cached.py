"""Keeps elements of a source that is read by index: `rtf.sources.cached`."""

import os
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph, fingerprint, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops
from refurbish_tf.cache_store import DECODERS, DECODERS_VERSION, REUSE, UNLIMITED, CacheStore
from refurbish_tf.cache_store import check_store, describe_bytes, describe_store, opened_store

# The setting in which a store on disk records the fingerprint of the files whose contents it holds.
FILES = "files"


def cached(
  source: tf.data.Dataset[Any],
  store: str | os.PathLike[str] | CacheStore | None = None,
  *,
  num_parallel_reads: int | None = None,
) -> tf.data.Dataset[Any]:
  """Keeps elements of a source in a store while there is room. Both the source and the result are read by index.

  >>> squares = tf.data.Dataset.range(6).map(lambda x: x * x)
  >>> train = rtf.sources.cached(squares).refurbish(lambda x: 10 * x, r=3, seed=7)
  >>> for epoch in range(2):
  ...   print(sorted(int(x) for x in train))
  [0, 10, 40, 90, 160, 250]
  [0, 10, 40, 90, 160, 250]

  An element that was read once comes from the store; an element that the store has no room for is read from the source
  each time. Only requested elements are read: a `refurbish` stage after it requests fresh samples alone, in random
  order, and a parallel `map` of the source reads the missing ones, in parallel, and nothing else. So it pays if reading
  or decoding is slow, even with less memory than all elements take. (With `shard` directly after `cached`, a source
  that reads ahead also reads the elements of other shards, and drops them: shard the source.)

  >>> store = rtf.CacheStore(max_bytes=4 * 8)
  >>> few = rtf.sources.cached(squares, store)
  >>> [int(x) for x in few], len(store)
  ([0, 1, 4, 9, 16, 25], 4)

  The first elements are kept until they are removed from the store: at the limit, nothing makes room for others. With a
  `store` on disk the next run finds them, and jobs that share the directory share the elements, for example if the
  source is on a slow file system. A damaged record is never used: its element is read again.

  `Dataset.cache()` keeps all elements of any source or none, and makes it a stream, whose elements `refurbish` can only
  skip one by one.

  Anything random in the source, such as a `map` that draws, is drawn once for an element that is kept. The elements of
  `cached` are the same objects in memory each time: a `numpy_function` after it must not write into its argument.

  Args:
    source: a finite `tf.data.Dataset` that is read by index: `rtf.sources`, `from_tensor_slices`, `range`, or a `map`,
      `zip` or `batch` with `drop_remainder` of these. Its elements may have any structure that `tf.data` accepts; on
      disk, any structure of dense, ragged and sparse tensors.
    store: where to keep the elements: None for memory, up to the available memory; a directory of a local disk, a str
      or a `pathlib.Path`; or a `CacheStore`, to limit its bytes or to look inside. A `refurbish` stage after `cached`
      needs another store for its samples. A store in memory serves one `cached` at a time.
    num_parallel_reads: how many threads run the functions of the source, such as a `map` with `num_parallel_calls` that
      reads files: from 1 to 1,024. None, or tf.data.AUTOTUNE, uses the threads of `tf.data`, one per CPU core, which
      are few if reads take long. `image_folder`, `tfrecord` and `data_source` have threads of their own. A store on
      disk is always read ahead.

  Returns:
    A `tf.data.Dataset` of the elements of `source`, in its order and with its `element_spec`, read by index.

  Raises:
    TypeError: `source` is not a `tf.data.Dataset`, or `store` is of the wrong type.
    ValueError: `num_parallel_reads` is out of range; `source` is a stream, empty, infinite, of unknown length, or
      changes its order; `store` is in use, is too small for one element, holds samples of `refurbish`, has a `shared`
      level, was filled from another source, or is on disk and cannot be opened.
    tf.errors.FailedPreconditionError: when it runs, the source yields a different element than the one that a `store`
      on disk knows.
    Errors of the source, when it runs. The iterator continues with the next element.
  """
  if not isinstance(source, tf.data.Dataset):
    raise TypeError(
      f"source must be a tf.data.Dataset, got {type(source).__name__}. For a Python source, use "
      "rtf.sources.data_source."
    )
  checks.check_not_in_function("rtf.sources.cached", "rtf.sources.cached(files.interleave(read_file))")
  check_store(store)
  if isinstance(store, CacheStore) and store.shared is not None:
    way_out = "Machines do not share elements of a source: pass shared to the store of refurbish."
    raise ValueError(f"store must not have shared, got {store!r}. {way_out}")
  reads = 0 if num_parallel_reads is None else checks.check_parallel_reads(num_parallel_reads)
  return _CachedDataset(_without_fusion(source), opened_store(store), reads)


class _CachedDataset(dataset_ops.UnaryUnchangedStructureDataset):
  """Yields the elements of its input, and keeps them while there is room."""

  def __init__(self, input_dataset, store, num_parallel_reads):
    self._name = None
    self._input_dataset = input_dataset
    # By this name the op finds the kept elements in every graph into which it is copied.
    stage = native.ops().refurbish_tf_stage_name()
    # The op holds the store itself. This reference keeps the store's name valid while a caller holds only the dataset.
    self._store = store
    self._store_name = stage if store is None else store._id
    on_disk = store is not None and store.path is not None
    if on_disk:
      store._check_holds(elements=True)
      if dataset_graph.decodes(input_dataset):
        # Checked before the op records `REUSE`, by which `_check_versions` recognizes a store that holds elements.
        store._check_versions({DECODERS: DECODERS_VERSION}, REUSE)
        store._agree({DECODERS: DECODERS_VERSION})
      store._set_element_spec(input_dataset.element_spec, exact=True)
    with checks.build_errors():
      variant = native.ops().refurbish_tf_cached_dataset(
        input_dataset._variant_tensor,
        stage=stage,
        store=self._store_name,
        max_bytes=UNLIMITED if store is None or store.max_bytes is None else store.max_bytes,
        num_parallel_reads=num_parallel_reads,
        **self._common_args,
      )
    if on_disk:
      files = fingerprint.of_files(input_dataset)
      if files and store._agree({}).get(FILES, files) != files:
        raise ValueError(
          f"store {store.path} was filled from other files or labels than the source finds now: files were added, "
          "removed, renamed or moved to another class. Elements are identified by their position. To start with an "
          f"empty store, pass store=rtf.CacheStore({store.path!r}, overwrite=True), or another directory."
        )
      if files:
        store._agree({FILES: files})
    elif store is not None:
      store._set_element_spec(input_dataset.element_spec, exact=True)
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    (counts,) = native.rows(native.ops().refurbish_tf_cache_store_stats(store=self._store_name))
    rows = [
      ("kept", f"{counts['entries']:,} of {self.cardinality().numpy():,} elements, {counts['bytes']:,} bytes"),
      ("source", "by index: only elements that are asked for and not kept are read"),
      ("store", describe_store(self._store) + self._describe_bytes()),
    ]
    return "\n".join(["cached", *(f"  {name:<7} {text}" for name, text in rows)])

  def _describe_bytes(self):
    specs = tf.nest.flatten(self.element_spec)
    if not all(isinstance(each, tf.TensorSpec) and each.shape.is_fully_defined() for each in specs):
      return ""
    if not all(each.dtype.is_numpy_compatible and each.dtype != tf.string for each in specs):
      return ""
    size = sum(each.shape.num_elements() * each.dtype.size for each in specs)
    return describe_bytes(self._store, self._store_name, self.cardinality().numpy(), "elements", size, "read")


def _without_fusion(source):
  """The source without the fusion of `map` and `batch`, which is not read by index, unless its options ask for it."""
  given = (source.options() if tf.executing_eagerly() else source._options_attr).experimental_optimization
  if given.map_and_batch_fusion is not None:
    return source
  options = tf.data.Options()
  options.experimental_optimization.map_and_batch_fusion = False
  return source.with_options(options)
