"""How much of a source is read: by index, as a stream, and from a cache.

Writes some gigabytes below the directory for temporary files (TMPDIR) and deletes them.
"""

import pathlib
import re
import tempfile
import time

import numpy as np
import tensorflow as tf

import common
import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph

FACTORS = (1, 2, 3, 5)
# Name, bytes of a record, number of records.
CASES = (("3 kB", 3_000, 6_000), ("20 kB", 20_000, 5_000), ("150 kB", 150_000, 1_000))
# The cases with a limit. Their records are so large that the framing of a record is negligible.
WITH_BAR = ("20 kB", "150 kB")
# The number of records of ImageNet.
INDEXED = 1_281_167


def measure(quick):
  """Yields the sections."""
  with tempfile.TemporaryDirectory(prefix="refurbish-sources-") as directory:
    directory = pathlib.Path(directory)
    written = {}
    for name, size, count in CASES:
      common.say(f"writing records of {name}")
      written[name] = _Written(directory / name.replace(" ", ""), size, max(60, count // 50) if quick else count)
    for section in (bytes_read, index):
      common.say(section.__doc__)
      yield section(quick, directory, written)


class _Written:
  """The same records in every form, with a directory for each form."""

  def __init__(self, directory, size, count):
    self.size, self.count = size, count
    self.paths = {way: directory / way for way in ("tfrecord", "folder", "cache")}
    for path in self.paths.values():
      path.mkdir(parents=True)
    random = np.random.default_rng(1)
    self._file = str(self.paths["tfrecord"] / "records.tfrecord")
    (self.paths["folder"] / "class").mkdir()
    with tf.io.TFRecordWriter(self._file) as writer:
      for i in range(count):
        record = random.bytes(size)
        writer.write(record)
        (self.paths["folder"] / "class" / f"{i:06}.jpg").write_bytes(record)
    self._cached = tf.data.TFRecordDataset(self._file).cache(str(self.paths["cache"] / "cache"))
    drain(self._cached)

  def datasets(self):
    """The datasets by name."""
    return {
      "TFRecord by index": rtf.sources.tfrecord(self._file),
      "TFRecord as a stream": tf.data.TFRecordDataset(self._file),
      "files of a folder": rtf.sources.image_folder(self.paths["folder"]).map(lambda file, label: file),
      "cache(filename)": self._cached,
    }


def bytes_read(quick, directory, written):
  """Bytes that are read in a steady epoch"""
  del directory
  rows = []
  for name, records in written.items():
    for way, dataset in records.datasets().items():
      for r in FACTORS:
        train = dataset.refurbish(tf.identity, r=r, seed=1)
        drain(train)
        values = []
        for _ in range(common.rounds(quick, 2)):
          before = _read()
          drain(train)
          values.append((_read() - before) * r / (records.size * records.count))
        limit = 1.05 if way == "TFRecord by index" and name in WITH_BAR and r > 1 else None
        key = f"bytes_{common.key(f'{name} {way}')}_r{r}"
        rows.append(common.Row(key, f"{name}: {way}", f"of N / r records, r = {r}", values, limit))
  return common.Section(
    bytes_read.__doc__,
    "Bytes that the process read with system calls (rchar of /proc/self/io) in an epoch after the first, divided by "
    "the bytes of the N / r records that are fresh in it; the median over epochs. Limits are for TFRecord by index.",
    rows,
  )


def index(quick, directory, written):
  """Making an index"""
  records = written["20 kB"]
  path = next(records.paths["tfrecord"].glob("*.tfrecord"))
  making = []
  for i in range(common.rounds(quick, 5)):
    where = directory / f"index-{i}"
    where.mkdir()
    began = time.perf_counter()
    len(rtf.sources.tfrecord(str(path), index_dir=where))
    making.append(1e6 * (time.perf_counter() - began) / records.count)
  many = directory / "many.tfrecord"
  count = 10_000 if quick else INDEXED
  with tf.io.TFRecordWriter(str(many)) as writer:
    for _ in range(count):
      writer.write(b"x")
  with common.fresh_processes() as run:
    memory = [run(_resident_for, str(many)) / 1e6 for _ in range(common.rounds(quick, 3))]
  return common.Section(
    index.__doc__,
    "Wall-clock time from the call to the number of records, on a warm cache, and its memory, in a separate process.",
    [
      common.Row("index_time", "To make the index, 20 kB", "µs a record", making, limit=3),
      common.Row("index_memory", f"Memory of {count:,} records, with an iterator", "MB", memory, limit=32),
    ],
  )


def _resident_for(path):
  tf.constant(0)
  before = common.resident_bytes()
  dataset = rtf.sources.tfrecord(path)
  iterator = iter(dataset)
  next(iterator)
  return common.resident_bytes() - before


def drain(dataset):
  """The seconds of an epoch that only reads the elements."""
  # Batched, because a call of `reduce` costs more than reading an element.
  dataset = dataset_graph.without_autotuner(dataset.batch(64))
  began = time.perf_counter()
  dataset.reduce(np.int64(0), lambda count, _: count + 1)
  return time.perf_counter() - began


def _read():
  return int(re.search(r"^rchar: (\d+)", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)[1])
