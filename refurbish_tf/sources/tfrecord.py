"""Records of TFRecord files by index: `rtf.sources.tfrecord`."""
from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from refurbish_tf._internal import checks
from refurbish_tf._internal import native

# Beside the files; a glob of these finds it, too.
INDEX_DIRECTORY = b".refurbish_tf"
# Each may be a thread.
MOST_READS = 1024


def tfrecord(
    files: Any, *, index_dir: str | bytes | os.PathLike[str] | None = None, num_parallel_reads: int = tf.data.AUTOTUNE,
    compression_type: str | None = None) -> tf.data.Dataset[Any]:
  """The records of TFRecord files, each read by its place, so that nobody reads what is not wanted.

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

  It yields what `tf.data.TFRecordDataset(files)` does, in the order of the files and of the records in them. But the
  number of records is known, and it has random access: behind it `refurbish` reads only the fresh samples, one of `r`,
  and `shard` only its share. With `map` between them that holds as well:

  >>> train = records.map(tf.strings.length).refurbish(lambda length: length, r=2, seed=7)
  >>> [int(length) for length in train]
  [8, 8, 8, 8, 8]

  For that an index is made when the dataset is, by reading the headers of the records: about 3 µs a record on a warm
  cache, in which the process cannot be interrupted. It is kept in a directory `.refurbish_tf` beside each file, or in
  `index_dir`, and made anew where the size of a file or the time when it was written is another. Where it may not be
  written beside a file it is made each time. In memory it takes 4.5 bytes a record.

  Files on `gs://` and the like are read through TensorFlow's own file systems. Both checksums of a record are checked
  each time it is read. Handles of at most 128 files are kept open in a process.

  Args:
    files: the path of a file or a list of paths: strings, bytes, `os.PathLike`, or a string tensor. In their order; a
      relative one is below the directory in which the process works when the dataset is built;
      patterns are not expanded, so pass what `sorted(tf.io.gfile.glob(pattern))` returns. Paths within directories
      named `.refurbish_tf` are left out.
    index_dir: the directory in which the indices are kept, which is made if it is not there, but none above it. None for
      beside each file.
    num_parallel_reads: how many reads are under way at once, ahead of what is asked for, and how many files are looked at
      at once for their index: at most 1,024. tf.data.AUTOTUNE for 16. What was read and is not asked for is dropped; for
      each read at most 4 records lie ready (16 at least), and 16 MiB in all.
    compression_type: None or "", as nothing else can be read by index. For the error that says so.

  Returns:
    A `tf.data.Dataset` of scalars of `tf.string`, with random access.

  Raises:
    TypeError: a path is none, or a `tf.data.Dataset` is given for the list of paths.
    ValueError: there is no file; a file is missing, cannot be read, is none, is compressed, or changes while it is looked
      at; `index_dir` cannot be used; what stands in the place of an index is none, or a link in that of `.refurbish_tf`;
      `num_parallel_reads` is not allowed.
    tf.errors.DataLossError: when it is built, a file is no TFRecord file or ends within a record; when it runs, a record
      is damaged, with its file, number and offset. All others can still be read.
    tf.errors.FailedPreconditionError: when it runs, a file was changed or replaced since the dataset was built, or its links
      or mode were. A local file is looked at with each read, another one at the beginning of an iterator and every two
      seconds.
  """
  paths = _paths(files)
  if compression_type not in (None, ""):
    raise ValueError(
        f"compression_type must be None, got {compression_type!r}: the records of a compressed file have no places that "
        "could be read by themselves. Write the files without: tf.io.TFRecordWriter(path). What is in the records, as JPEG, "
        "may be compressed.")
  if num_parallel_reads != tf.data.AUTOTUNE:
    checks.check_whole_number("num_parallel_reads", num_parallel_reads, 1)
    if num_parallel_reads > MOST_READS:
      raise ValueError(f"num_parallel_reads must be tf.data.AUTOTUNE or at most {MOST_READS:,}, got {num_parallel_reads}.")
  return _TfrecordDataset(paths, b"" if index_dir is None else _path(index_dir, "index_dir"), int(num_parallel_reads))


class _TfrecordDataset(dataset_ops.DatasetSource):
  """Records by index."""

  def __init__(self, paths, index_dir, num_parallel_reads):
    self._name = None
    with checks.build_errors():
      variant = native.ops().refurbish_tf_tfrecord_dataset(
          files=tf.constant(paths, tf.string), index_dir=index_dir, index=native.ops().refurbish_tf_stage_name(),
          num_parallel_reads=num_parallel_reads, **self._common_args)
    super().__init__(variant)

  @property
  def element_spec(self):
    return tf.TensorSpec([], tf.string)


def _paths(files):
  """The paths as a list of bytes, of which there is one at least."""
  if isinstance(files, tf.data.Dataset):
    raise TypeError(
        "files must be a list of paths, got a tf.data.Dataset: records have places only in files whose order is known. In place "
        "of tf.data.Dataset.list_files(pattern), pass sorted(tf.io.gfile.glob(pattern)).")
  if isinstance(files, (set, frozenset)):
    raise TypeError("files must be a list of paths, got a set, which has another order in each process. Pass sorted(files).")
  if tf.is_tensor(files):
    if not hasattr(files, "numpy"):
      raise TypeError(
          f"files must be known when the dataset is built, got {files!r}. In place of interleave or flat_map over paths, pass "
          "all of them at once.")
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
    raise ValueError(f"files must name one file at least, got {what}. Check the pattern that it is made from.")
  return paths


def _path(path, name):
  if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
    kind = ValueError if isinstance(path, (str, bytes)) else TypeError
    raise kind(f"{name} must be made of paths, strings or os.PathLike, that are not empty, got {path!r}.")
  # A name need not be UTF-8; Python's own way to write such names leads back to their bytes.
  return checks.absolute_path(name, os.fsencode(path))
