"""Records of TFRecord files, read by index: `rtf.sources.tfrecord`."""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, native
from refurbish_tf._internal.tensorflow_internals import dataset_ops

# The directory for indices. By default it is next to the files, so a glob for them may match it.
INDEX_DIRECTORY = b".refurbish_tf"


def tfrecord(
  files: Any,
  *,
  index_dir: str | bytes | os.PathLike[str] | None = None,
  num_parallel_reads: int = tf.data.AUTOTUNE,
  compression_type: str | None = None,
) -> tf.data.Dataset[Any]:
  """Returns the records of TFRecord files, read by index, so that only the records that are needed are read.

  >>> import os, tempfile
  >>> directory = tempfile.mkdtemp()
  >>> path = os.path.join(directory, "train.tfrecord")
  >>> with tf.io.TFRecordWriter(path) as writer:
  ...   for i in range(5):
  ...     writer.write(b"record %d" % i)
  >>> records = rtf.sources.tfrecord(path)
  >>> len(records)
  5
  >>> tf.data.experimental.at(records, 3).numpy()
  b'record 3'

  It yields the same elements as `tf.data.TFRecordDataset(files)`, in the order of the files and of the records in them.
  But it knows the number of records and has random access: a `refurbish` stage after it reads only the fresh samples,
  one in `r`, and `shard` reads only its shard, even with a `map` in between:

  >>> train = records.map(tf.strings.length).refurbish(lambda length: length, r=2, seed=7)
  >>> [int(length) for length in train]
  [8, 8, 8, 8, 8]

  For this, building the dataset makes an index from the headers of the records: about 3 µs per record on a warm cache,
  during which the process cannot be interrupted. The index is kept in a directory `.refurbish_tf` next to each file, or
  in `index_dir`, and is rebuilt if the size or the modification time of a file changes. If it cannot be written next to
  a file, it is rebuilt each time. In memory it takes 4.5 bytes per record.

  TensorFlow's own file systems read files on `gs://` and the like. Both checksums of a record are checked each time it
  is read. A process keeps at most 128 files open.

  Args:
    files: the path of a file or an ordered list of paths: strings, bytes, `os.PathLike`, or a string tensor. A relative
      path starts from the working directory when the dataset is built. Patterns are not expanded: pass the result of
      `sorted(tf.io.gfile.glob(pattern))`. Paths within directories named `.refurbish_tf` are left out.
    index_dir: the directory for the indices, which is created if it is missing. Its parent must exist. None keeps
      them next to each file.
    num_parallel_reads: how many records are read ahead at once, and how many files are indexed at once: at most 1,024.
      tf.data.AUTOTUNE is 16. Records that were read ahead but are not needed are dropped; for each read at most 4
      records are ready (16 at least), and not more than 16 MiB, or a sixteenth of the memory if they are larger.
    compression_type: None or "". It exists for its error: compressed records cannot be read by index.

  Returns:
    A `tf.data.Dataset` of `tf.string` scalars, with random access.

  Raises:
    TypeError: `files` has something that is not a path, or is a `tf.data.Dataset`.
    ValueError: `files` is empty; a path is on a file system that TensorFlow does not have, such as s3://; a file is
      missing, cannot be read, is not a plain file, is compressed, or changes while it is indexed; `index_dir` cannot be
      used; something other than an index is at its path, or `.refurbish_tf` is a link; `num_parallel_reads` is out of
      range.
    tf.errors.DataLossError: when it is built, a file is not a TFRecord file or ends within a record; when it runs, a
      record is damaged: the message has its file, number and offset. All other records can still be read.
    tf.errors.FailedPreconditionError: when it runs, a file was changed or replaced since the dataset was built, or its
      links or mode were changed. A local file is checked at each read, a remote one when an iterator begins and every
      two seconds.
  """
  paths = _paths(files)
  if compression_type is not None and not (isinstance(compression_type, str) and compression_type == ""):
    raise ValueError(
      f"compression_type must be None, got {compression_type!r}: single records of a compressed file cannot be read. "
      "Write the files uncompressed: tf.io.TFRecordWriter(path). Their content may be compressed, such as JPEG."
    )
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  return _TfrecordDataset(paths, b"" if index_dir is None else _path(index_dir, "index_dir"), num_parallel_reads)


class _TfrecordDataset(dataset_ops.DatasetSource):
  """Yields records, by index."""

  element_spec = tf.TensorSpec([], tf.string)

  def __init__(self, paths, index_dir, num_parallel_reads):
    self._name = None
    with checks.build_errors():
      variant = native.ops().refurbish_tf_tfrecord_dataset(
        files=tf.constant(paths, tf.string),
        index_dir=index_dir,
        index=native.ops().refurbish_tf_stage_name(),
        num_parallel_reads=num_parallel_reads,
        **self._common_args,
      )
    super().__init__(variant)


def _paths(files):
  """The paths as a list of bytes, with at least one."""
  if isinstance(files, tf.data.Dataset):
    raise TypeError(
      "files must be a list of paths, got a tf.data.Dataset, whose order may change. Instead of "
      "tf.data.Dataset.list_files(pattern), pass sorted(tf.io.gfile.glob(pattern))."
    )
  if isinstance(files, (set, frozenset)):
    raise TypeError(
      "files must be a list of paths, got a set, whose order differs between processes. Pass sorted(files)."
    )
  if tf.is_tensor(files):
    if not hasattr(files, "numpy"):
      raise TypeError(
        f"files must be known when the dataset is built, got {files!r}. Instead of interleave or flat_map over "
        "paths, pass all paths at once."
      )
    files = files.numpy()
  if isinstance(files, (str, bytes, os.PathLike)):
    files = [files]
  elif isinstance(files, np.ndarray):
    files = files.ravel().tolist()
  try:
    given = [_path(each, "files") for each in files]
  except TypeError as error:
    if "not iterable" in str(error):
      raise TypeError(f"files must be a path or a list of paths, got {files!r}.") from None
    raise
  paths = [path for path in given if INDEX_DIRECTORY not in path.split(b"/")]
  if not paths:
    what = "only indices, which are not read" if given else "an empty list"
    raise ValueError(f"files must have at least one path, got {what}. Check the pattern that selects the files.")
  return paths


def _path(path, name):
  if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
    kind = ValueError if isinstance(path, (str, bytes)) else TypeError
    raise kind(f"{name} must be paths, strings or os.PathLike that are not empty, got {path!r}.")
  # A name need not be UTF-8: fsencode returns the bytes of any name.
  path = os.fsencode(path)
  checks.check_file_system(name, path)
  return checks.absolute_path(name, path)
