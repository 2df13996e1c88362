"""How much of a source is read, and how long it takes: by index, as a stream, and without tf.data.

Writes some gigabytes below the directory for temporary files (TMPDIR) and deletes them. Reads count as cold after the files
were dropped from the page cache by posix_fadvise.
"""
import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import common
import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal import native

ROOT = pathlib.Path(__file__).resolve().parent.parent
FACTORS = (1, 2, 3, 5)
# Name, bytes of a record, number of records.
CASES = (("3 kB", 3_000, 6_000), ("20 kB", 20_000, 5_000), ("150 kB", 150_000, 1_000))
# The cases with a bar, in which the frame of a record is negligible.
WITH_BAR = ("20 kB", "150 kB")
# The records of ImageNet.
INDEXED = 1_281_167
# A record of a TFRecord file has a header of 12 bytes and a footer of 4.
HEADER, FOOTER = 12, 4
# Reads under way at once in the comparison with io_uring, which the kernel may not allow.
DEPTH = 16
# Bytes a second of a device that is the bottleneck.
DEVICE = 100e6
NOT_ALLOWED = 3


def measure(quick):
  """Yields the sections."""
  directory = pathlib.Path(tempfile.mkdtemp(prefix="refurbish-sources-"))
  try:
    written = {}
    for name, size, count in CASES:
      common.say(f"writing records of {name}")
      written[name] = _Written(directory / name.replace(" ", ""), size, max(60, count // 50) if quick else count)
    for section in (bytes_read, times, bounded, in_order, bare_reads, index):
      common.say(section.__doc__)
      yield section(quick, directory, written)
  finally:
    shutil.rmtree(directory)


class _Written:
  """The same records in every form, in a directory of its own for each form."""

  def __init__(self, directory, size, count):
    self.size, self.count = size, count
    self.paths = {way: directory / way for way in ("tfrecord", "array_record", "folder", "cache")}
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
    self._write_array_record()
    self._cached = tf.data.TFRecordDataset(self._file).cache(str(self.paths["cache"] / "cache"))
    drain(self._cached)

  def _write_array_record(self):
    self._array_record = None
    if importlib.util.find_spec("array_record") is None:
      return
    from array_record.python import array_record_module  # pylint: disable=import-outside-toplevel
    self._array_record = str(self.paths["array_record"] / "records.array_record")
    # Uncompressed, like the others, and each record alone.
    writer = array_record_module.ArrayRecordWriter(self._array_record, "group_size:1,uncompressed")
    for record in tf.data.TFRecordDataset(self._file).as_numpy_iterator():
      writer.write(record)
    writer.close()

  def datasets(self):
    """By name: the directory of the files, and the dataset; None if it cannot be measured here."""
    ways = {
        "TFRecord by index": ("tfrecord", self.by_index()),
        "TFRecord as a stream": ("tfrecord", self.as_a_stream()),
        "files of a folder": ("folder", rtf.sources.image_folder(self.paths["folder"]).map(lambda file, label: file)),
        "cache(filename)": ("cache", self._cached)}
    ways["ArrayRecord by data_source"] = ("array_record", None)
    if self._array_record is not None:
      from array_record.python import array_record_data_source  # pylint: disable=import-outside-toplevel
      source = array_record_data_source.ArrayRecordDataSource(self._array_record)
      ways["ArrayRecord by data_source"] = ("array_record", rtf.sources.data_source(source))
    return ways

  def by_index(self):
    return rtf.sources.tfrecord(self._file)

  def as_a_stream(self):
    return tf.data.TFRecordDataset(self._file)

  def places(self):
    """Offset and length of each record, with its frame."""
    frame = HEADER + self.size + FOOTER
    return [(i * frame, frame) for i in range(self.count)]


def bytes_read(quick, directory, written):
  """Bytes that are read in a steady epoch"""
  del directory
  rows = []
  for name, records in written.items():
    for way, (_, dataset) in records.datasets().items():
      if dataset is None:
        rows.append(common.Row(f"bytes_{_key(name, way)}", f"{name}: {way} (array_record is not installed)", "", []))
        continue
      for r in FACTORS:
        train = dataset.refurbish(tf.identity, r=r, seed=1)
        drain(train)
        values = []
        for _ in range(common.rounds(quick, 2)):
          before = _read()
          drain(train)
          values.append((_read() - before) * r / (records.size * records.count))
        limit = 1.05 if way == "TFRecord by index" and name in WITH_BAR and r > 1 else None
        rows.append(common.Row(f"bytes_{_key(name, way)}_r{r}", f"{name}, r = {r}: {way}", "of N / r records", values, limit))
  return common.Section(
      bytes_read.__doc__,
      "What the process read by system calls (rchar of /proc/self/io) in an epoch after the first, divided by the bytes of "
      "the N / r records that are fresh in it, in the median over epochs. Limits are for TFRecord by index.", rows)


def times(quick, directory, written):
  """Time of a steady epoch with r = 3"""
  del directory
  rows, r = [], 3
  for name, records in written.items():
    for cold in (False, True):
      speeds = {}
      for way, (place, dataset) in records.datasets().items():
        which = f"{name}, {'cold' if cold else 'warm'}: {way}"
        key = f"time_{_key(name, way)}_{'cold' if cold else 'warm'}"
        if dataset is None:
          rows.append(common.Row(key, f"{which} (array_record is not installed)", "", []))
          continue
        train = dataset.refurbish(tf.identity, r=r, seed=1)
        drain(train)
        speeds[way], device = [], []
        for _ in range(common.rounds(quick, 3)):
          if cold:
            _drop_from_page_cache(records.paths[place])
          before = _read("read_bytes")
          speeds[way].append(1e6 * drain(train) / records.count)
          device.append((_read("read_bytes") - before) / 1e6)
        rows.append(common.Row(key, which, "µs a sample", speeds[way]))
        if cold:
          rows.append(common.Row(f"{key}_device", f"{which}, from the device", "MB an epoch", device))
  installed = importlib.util.find_spec("grain") is not None
  rows.append(common.Row(
      "grain", f"Grain's ArrayRecord ({'by benchmarks/run.py peers' if installed else 'grain is not installed'})", "", []))
  return common.Section(
      times.__doc__,
      "Wall time of an epoch divided by its N samples, of which N / 3 are read and the others are in memory; nothing else is "
      "done with them. What the device reads is read_bytes of /proc/self/io.", rows)


def bounded(quick, directory, written):
  """Where the device is the bottleneck"""
  name, r = WITH_BAR[-1], 3
  records = written[name]
  ways = {"index": records.by_index(), "stream": records.as_a_stream()}
  trains = {way: dataset.refurbish(tf.identity, r=r, seed=1) for way, dataset in ways.items()}
  for train in trains.values():
    drain(train)
  speeds, refused = {way: [] for way in ways}, ""
  try:
    with _bounded_reads(directory, DEVICE):
      for _ in range(common.rounds(quick, 5)):
        for way, train in trains.items():
          _drop_from_page_cache(records.paths["tfrecord"])
          speeds[way].append(1e6 * drain(train) / records.count)
  except OSError as error:
    refused = f" (reads cannot be bounded here: {error.strerror})"
  of = f"{name}, r = {r}, cold, at most {DEVICE / 1e6:.0f} MB/s"
  return common.Section(
      bounded.__doc__,
      "As above, in a control group (io.max, or blkio.throttle) that may read no more than that from the device. A limit of "
      "0.5 is twice as many samples a second.",
      [common.Row("bounded_index", f"{of}: TFRecord by index{refused}", "µs a sample", speeds["index"]),
       common.Row("bounded_stream", f"{of}: TFRecord as a stream{refused}", "µs a sample", speeds["stream"]),
       common.Row("bounded", f"By index against the stream, {of}{refused}", "of the stream",
                  common.quotients(speeds["index"], speeds["stream"]), limit=0.5)])


@contextlib.contextmanager
def _bounded_reads(directory, rate):
  """Limits this process to reading `rate` bytes a second from the device of `directory`. OSError if not permitted."""
  device = pathlib.Path("/sys/dev/block", "{}:{}".format(*(f(os.stat(directory).st_dev) for f in (os.major, os.minor))))
  # The limit is for a whole disk.
  disk = (device.resolve().parent if (device / "partition").exists() else device) / "dev"
  groups = pathlib.Path("/sys/fs/cgroup")
  unified = (groups / "cgroup.controllers").exists()
  groups = groups if unified else groups / "blkio"
  number = disk.read_text().strip()
  group = groups / f"refurbish-{os.getpid()}"
  group.mkdir()
  try:
    if unified:
      (group / "io.max").write_text(f"{number} rbps={rate:.0f}")
    else:
      (group / "blkio.throttle.read_bps_device").write_text(f"{number} {rate:.0f}")
    path = next(line.split(":")[2] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
                if ("" if unified else "blkio") in line.split(":")[1].split(","))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
      yield
    finally:
      pathlib.Path(f"{groups}{path}", "cgroup.procs").write_text(str(os.getpid()))
  finally:
    group.rmdir()


def in_order(quick, directory, written):
  """Records in order, warm, beside TFRecordDataset"""
  del directory
  rows = []
  for name, records in written.items():
    datasets = {"index": records.by_index(), "stream": records.as_a_stream()}
    costs = {way: [] for way in datasets}
    for _ in range(1 + common.rounds(quick, 7)):
      for way, dataset in datasets.items():
        costs[way].append(1e6 * drain(dataset) / records.count)
    costs = {way: values[1:] for way, values in costs.items()}
    key = name.replace(" ", "")
    rows += [
        common.Row(f"order_{key}_index", f"{name}: by index", "µs a record", costs["index"]),
        common.Row(f"order_{key}_stream", f"{name}: TFRecordDataset", "µs a record", costs["stream"]),
        common.Row(f"order_{key}", f"By index against TFRecordDataset, {name}, in order", "of the baseline",
                   common.quotients(costs["index"], costs["stream"]), limit=1 if name == "20 kB" else None)]
  return common.Section(in_order.__doc__, "Wall time of an epoch without refurbish, divided by its records.", rows)


def bare_reads(quick, directory, written):
  """Cold reads at random beside the same reads alone"""
  program = directory / "bare_records"
  subprocess.run(
      [*native.compiler(), "-std=c++17", "-O3", ROOT / "benchmarks" / "bare_records.cc", "-o", program], check=True)
  rows = []
  for name, records in written.items():
    if name not in WITH_BAR:
      continue
    path = next(records.paths["tfrecord"].glob("*.tfrecord"))
    places = records.places()
    shuffled = np.random.default_rng(3).permutation(len(places))
    plan = directory / "plan"
    plan.write_text("".join(f"{places[i][0]} {places[i][1]}\n" for i in shuffled))
    dataset = global_shuffle_op._global_shuffle(  # pylint: disable=protected-access
        rtf.sources.tfrecord(str(path), num_parallel_reads=DEPTH), seed=3)
    ours, queue, pread = [], [], []
    for _ in range(common.rounds(quick, 5)):
      for way, values in (("io_uring", queue), ("pread", pread), (None, ours)):
        _drop_from_page_cache(records.paths["tfrecord"])
        if way is None:
          values.append(1e6 * drain(dataset) / records.count)
        else:
          done = subprocess.run([program, path, plan, way, str(DEPTH)], check=False, capture_output=True, text=True)
          if done.returncode == NOT_ALLOWED:
            continue
          done.check_returncode()
          values.append(1e-3 * float(done.stdout))
    key = name.replace(" ", "")
    refused = "" if queue else " (not allowed here)"
    rows += [
        common.Row(f"bare_{key}_pread", f"{name}: pread, one by one", "µs a record", pread),
        common.Row(f"bare_{key}_queue", f"{name}: io_uring, {DEPTH} at once{refused}", "µs a record", queue),
        common.Row(f"bare_{key}_index", f"{name}: TFRecord by index", "µs a record", ours),
        common.Row(f"bare_{key}", f"By index against io_uring, {name}, cold, at random{refused}", "of the baseline",
                   common.quotients(ours, queue) if queue else [], limit=1.25)]
  return common.Section(
      bare_reads.__doc__,
      "Wall time per record of an epoch in random order (tf.data's global shuffle, num_parallel_reads=16), and of the same "
      "reads at the same depth into buffers that are used again and again, without a checksum. A limit of 1.25 is a throughput of 0.8.", rows)


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
      "Wall time from the call to the number of records, on a warm cache, and memory that it takes, in a process of its own.",
      [common.Row("index_time", "To make the index, 20 kB", "µs a record", making, limit=3),
       common.Row("index_memory", f"Memory of {count:,} records, with an iterator", "MB", memory, limit=32)])


def _resident_for(path):
  tf.constant(0)
  before = common.resident_bytes()
  dataset = rtf.sources.tfrecord(path)
  iterator = iter(dataset)
  next(iterator)
  return common.resident_bytes() - before


def drain(dataset):
  """Seconds of an epoch that only reads the elements."""
  # Not `reduce`, which costs more for an element than reading it.
  dataset = dataset_graph.without_autotuner(dataset.batch(64))
  began = time.perf_counter()
  dataset.reduce(np.int64(0), lambda count, _: count + 1)
  return time.perf_counter() - began


def _read(what="rchar"):
  return int(re.search(rf"^{what}: (\d+)", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)[1])


def _key(name, way):
  return f"{name} {way}".replace("(", "_").replace(")", "").replace(" ", "_")


def _drop_from_page_cache(directory):
  for root, _, names in os.walk(directory):
    for name in names:
      fd = os.open(os.path.join(root, name), os.O_RDONLY)
      os.fdatasync(fd)  # What is not written yet is not dropped.
      os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
      os.close(fd)
