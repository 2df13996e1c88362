"""`rtf.sources.tfrecord`: the records of `TFRecordDataset`, in any order, without reading records that are not
requested."""

import gzip
import os
import pathlib
import re
import shutil
import tempfile

from absl.testing import parameterized
from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op
from tensorflow.python.data.kernel_tests import checkpoint_test_base
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.ops import gen_experimental_dataset_ops

import refurbish_tf as rtf
from support import cases, checkpoint_cases, services
from support.checkpoints import restore, save, with_checkpoints
from support.datasets import outcomes
from support.waiting import ends

SOME = settings(max_examples=cases.examples(10), derandomize=True)
# Far longer than anything here takes, so that a test fails instead of hanging.
LIMIT = 120

sizes = st.one_of(st.integers(0, 40), st.sampled_from([0, 4095, 4096, 70_000]))
files_of_sizes = st.lists(st.lists(sizes, max_size=12), min_size=1, max_size=4)


def write(path, records):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in records:
      writer.write(record)
  return str(path)


def write_files(directory, *numbers):
  """Writes files with the given numbers of records; each record names itself."""
  return [
    write(directory / f"{file}.tfrecord", [b"%d/%d" % (file, i) for i in range(n)]) for file, n in enumerate(numbers)
  ]


def contents(dataset):
  return list(dataset.as_numpy_iterator())


def read(dataset):
  """Returns all elements, with the type of the error in place of each element that fails."""
  return [type(each) if isinstance(each, tf.errors.OpError) else each.numpy() for each in outcomes(iter(dataset))]


def damage(path, offset):
  """Changes a byte of a file before its index is made."""
  text = bytearray(pathlib.Path(path).read_bytes())
  text[offset] ^= 1
  pathlib.Path(path).write_bytes(text)


def bytes_read():
  """Returns how many bytes this process has read, from files and everything else."""
  return int(re.search(r"rchar: (\d+)", pathlib.Path("/proc/self/io").read_text(encoding="utf-8"))[1])


@SOME
@given(numbers=files_of_sizes, reads=st.sampled_from([1, 3, tf.data.AUTOTUNE]), seed=st.integers(0, 99))
def test_equals_tfrecord_dataset(numbers, reads, seed):
  rng = np.random.default_rng(seed)
  with tempfile.TemporaryDirectory() as directory:
    files = [write(f"{directory}/{i}", [rng.bytes(size) for size in own]) for i, own in enumerate(numbers)]
    wanted = contents(tf.data.TFRecordDataset(files))
    # First with a new index, then with the kept one.
    for _ in range(2):
      records = rtf.sources.tfrecord(files, num_parallel_reads=reads)
      assert records.element_spec == tf.TensorSpec([], tf.string)
      assert len(records) == len(wanted)
      assert contents(records) == wanted
    any_order = rng.permutation(len(wanted))
    assert [tf.data.experimental.at(records, i).numpy() for i in any_order[:5]] == [wanted[i] for i in any_order[:5]]
    if len(wanted) > 0:
      shuffled = contents(global_shuffle_op._global_shuffle(records, seed=seed))
      assert sorted(shuffled) == sorted(wanted)
    assert sorted(path for path in os.listdir(directory) if path != ".refurbish_tf") == sorted(
      map(os.path.basename, files)
    )


@pytest.mark.parametrize(
  "build",
  [lambda records: records.shard(4, 1), lambda records: records.skip(30), lambda records: records.take(5)],
  ids=["shard", "skip", "take"],
)
def test_unrequested_records_are_not_read(tmp_path, build):
  """In addition, at most the records in progress at one time are read."""
  records = rtf.sources.tfrecord(write(tmp_path / "a", [os.urandom(100_000)] * 60), num_parallel_reads=2)
  wanted = len(build(records))
  before = bytes_read()
  assert len(contents(build(records))) == wanted
  # 16 records are ready or in progress; when the step of `shard` is known, the workers start again with it.
  assert bytes_read() - before <= (wanted + 2 * 16 + 4) * 100_000
  if wanted == 15:
    assert bytes_read() - before <= 45 * 100_000


@pytest.mark.parametrize("reads", [1, tf.data.AUTOTUNE])
def test_a_damaged_record_affects_no_other(tmp_path, reads):
  files = write_files(tmp_path, 6, 5)
  # Each record has a frame of 16 bytes and 3 bytes of data.
  damage(files[0], 2 * 19 + 13)
  records = rtf.sources.tfrecord(files, num_parallel_reads=reads)
  wanted = [b"%d/%d" % (file, i) for file, n in enumerate([6, 5]) for i in range(n)]
  wanted[2] = tf.errors.DataLossError
  assert read(records) == wanted
  with pytest.raises(tf.errors.DataLossError, match=rf"{re.escape(files[0])}.*\(record 2 at offset 38\)"):
    tf.data.experimental.at(records, 2)
  shuffled = read(global_shuffle_op._global_shuffle(records, seed=1))
  assert sorted(map(str, shuffled)) == sorted(map(str, wanted))
  # `refurbish` yields the others in each epoch.
  train = records.refurbish(tf.identity, r=2, seed=1)
  for _ in range(3):
    assert sorted(map(str, read(train))) == sorted(map(str, wanted))


def test_other_file_systems():
  """TensorFlow's file system in memory has no inodes and no descriptors, like those of clouds."""
  paths = [write(f"ram://tfrecord_test/{i}", [b"%d/%d" % (i, k) for k in range(5)]) for i in range(2)]
  for _ in range(2):
    records = rtf.sources.tfrecord(paths)
    assert contents(records) == contents(tf.data.TFRecordDataset(paths))
  assert tf.io.gfile.exists("ram://tfrecord_test/.refurbish_tf/0.index")
  assert contents(records.shard(3, 1)) == contents(tf.data.TFRecordDataset(paths).shard(3, 1))
  tf.io.gfile.remove(paths[0])
  write(paths[0], [b"9/%d" % k for k in range(7)])
  # The file is checked when an iterator begins.
  assert read(records) == [tf.errors.FailedPreconditionError] * 5 + [b"1/%d" % k for k in range(5)]
  assert len(rtf.sources.tfrecord(paths)) == 12


def test_index_beside_the_file_or_in_a_directory(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "b").mkdir()
  # Files with the same name in different directories get different indices.
  files = [write(tmp_path / "a" / "x", [b"one"]), write(tmp_path / "b" / "x", [b"two", b"three"])]
  assert contents(rtf.sources.tfrecord(files, index_dir=tmp_path / "index")) == [b"one", b"two", b"three"]
  assert len(list((tmp_path / "index").iterdir())) == 2
  assert not (tmp_path / "a" / ".refurbish_tf").exists()
  rtf.sources.tfrecord(files)
  kept = tmp_path / "a" / ".refurbish_tf" / "x.index"
  # A glob of everything also finds the indices.
  found = [str(path) for path in tmp_path.rglob("*") if path.is_file() and "index" not in path.parent.name]
  assert str(kept) in found
  assert sorted(contents(rtf.sources.tfrecord(found))) == [b"one", b"three", b"two"]
  # A kept index is used: a file is read only once to index it.
  before = kept.stat().st_mtime_ns
  rtf.sources.tfrecord(files)
  assert kept.stat().st_mtime_ns == before
  assert not list(kept.parent.glob(".*.part"))


def test_paths(tmp_path):
  (path,) = write_files(tmp_path, 2)
  odd = os.fsencode(tmp_path) + b"/caf\xe9 \xff"
  shutil.copy(path, odd)
  single = [path, pathlib.Path(path), os.fsencode(path), tf.constant(path), "file://" + path, odd, os.fsdecode(odd)]
  lists = [[path], (path,), np.array([path]), tf.constant([path]), iter([path]), [pathlib.Path(os.fsdecode(odd))]]
  for files in (*single, *lists):
    assert contents(rtf.sources.tfrecord(files)) == [b"0/0", b"0/1"]
  # A file may be given twice.
  assert len(rtf.sources.tfrecord([path, path])) == 4


def test_a_relative_path_is_resolved_immediately(tmp_path, monkeypatch):
  write_files(tmp_path, 2)
  (tmp_path / "elsewhere").mkdir()
  monkeypatch.chdir(tmp_path)
  records = rtf.sources.tfrecord("0.tfrecord", index_dir="index")
  monkeypatch.chdir("elsewhere")
  assert contents(records) == [b"0/0", b"0/1"]
  # The same holds for a dataset that is built again from its graph.
  assert contents(records.apply(rewritten)) == [b"0/0", b"0/1"]


def rewritten(dataset):
  """The dataset built from this one's graph."""
  graph = dataset._as_serialized_graph()
  return dataset_ops._VariantDataset(gen_experimental_dataset_ops.dataset_from_graph(graph), dataset.element_spec)


def test_file_names_that_are_not_utf_8_are_escaped_in_errors(tmp_path):
  """A path is escaped as Python does it. A message that is not UTF-8 would raise a UnicodeDecodeError."""
  directory = os.fsencode(tmp_path) + b"/caf\xe9"
  os.mkdir(directory)
  shutil.copy(write_files(tmp_path, 3)[0], directory + b"/a")
  records = rtf.sources.tfrecord(directory + b"/a")
  damage(os.fsdecode(directory + b"/a"), 13)
  with pytest.raises(tf.errors.FailedPreconditionError, match=r"/caf\\xe9/a "):
    contents(records)
  damaged = rtf.sources.tfrecord(directory + b"/a")
  for dataset in (damaged, damaged.refurbish(tf.identity)):
    with pytest.raises(tf.errors.DataLossError, match=r"/caf\\xe9/a "):
      contents(dataset)
  for wrong in (
    {"files": directory + b"/none"},
    {"files": os.fsdecode(directory + b"/none")},
    {"files": directory + b"/a", "index_dir": directory + b"/no/none"},
    {"files": "ram://caf\udce9/none"},
  ):
    with pytest.raises(ValueError, match=r"caf\\xe9.*none"):
      rtf.sources.tfrecord(**wrong)


def test_a_planted_link_is_not_followed(tmp_path):
  (tmp_path / "data").mkdir()
  (tmp_path / "elsewhere").mkdir()
  (path,) = write_files(tmp_path / "data", 3)
  (tmp_path / "data" / ".refurbish_tf").symlink_to("../elsewhere")
  with pytest.raises(ValueError, match=r"\.refurbish_tf .*index_dir"):
    rtf.sources.tfrecord(path)
  assert not os.listdir(tmp_path / "elsewhere")
  # A link that the user made is followed.
  (tmp_path / "index").symlink_to("elsewhere")
  assert len(rtf.sources.tfrecord(path, index_dir=tmp_path / "index")) == 3
  assert len(os.listdir(tmp_path / "elsewhere")) == 1


def test_bad_input(tmp_path):
  (path,) = write_files(tmp_path, 2)
  pipe = tmp_path / "pipe"
  os.mkfifo(pipe)
  compressed = tmp_path / "compressed"
  compressed.write_bytes(gzip.compress(pathlib.Path(path).read_bytes()))
  letter = tmp_path / "letter"
  letter.write_text("To whom it may concern: this is no file of records.")
  cut = tmp_path / "cut"
  cut.write_bytes(pathlib.Path(path).read_bytes()[:-1])
  for kind, message, build in [
    (ValueError, "empty list", lambda: rtf.sources.tfrecord([])),
    (ValueError, "only indices", lambda: rtf.sources.tfrecord([".refurbish_tf/a.index"])),
    (ValueError, "not empty", lambda: rtf.sources.tfrecord([""])),
    (TypeError, "got a set, .*sorted", lambda: rtf.sources.tfrecord({path})),
    (
      TypeError,
      "when the dataset is built",
      lambda: tf.data.Dataset.from_tensors(path).interleave(rtf.sources.tfrecord),
    ),
    (TypeError, "sorted", lambda: rtf.sources.tfrecord(tf.data.Dataset.list_files(path))),
    (ValueError, "null character", lambda: rtf.sources.tfrecord(path + "\0b")),
    (ValueError, "index_dir.*null character", lambda: rtf.sources.tfrecord(path, index_dir="a\0b")),
    (ValueError, "http://a/b.*get_file", lambda: rtf.sources.tfrecord("http://a/b")),
    (
      ValueError,
      f"^Cannot open {tmp_path}/none: No such file or directory. Give",
      lambda: rtf.sources.tfrecord(tmp_path / "none"),
    ),
    (ValueError, "is a directory", lambda: rtf.sources.tfrecord(tmp_path)),
    (ValueError, "is not a file", lambda: rtf.sources.tfrecord(pipe)),
    (ValueError, "compressed.*GZIP", lambda: rtf.sources.tfrecord(compressed)),
    (ValueError, "compression_type", lambda: rtf.sources.tfrecord(path, compression_type="GZIP")),
    (ValueError, "index_dir", lambda: rtf.sources.tfrecord(path, index_dir=tmp_path / "no" / "such")),
    (ValueError, "num_parallel_reads", lambda: rtf.sources.tfrecord(path, num_parallel_reads=5000)),
    (tf.errors.DataLossError, r"/letter .*\(record 0 at offset 0\)", lambda: rtf.sources.tfrecord(letter)),
    (tf.errors.DataLossError, r"/cut .*\(record 1 at offset 19\)", lambda: rtf.sources.tfrecord(cut)),
  ]:
    with pytest.raises(kind, match=message):
      build()


def test_a_dropped_iterator_ends(tmp_path):
  records = rtf.sources.tfrecord(write_files(tmp_path, 500))

  def work():
    for _ in range(20):
      next(iter(records))
      next(iter(global_shuffle_op._global_shuffle(records, seed=1)))
      next(iter(records.map(tf.strings.length, num_parallel_calls=2).refurbish(tf.identity, r=2)))

  assert ends(work, LIMIT)


def test_only_reading_ahead_waits_for_the_limit(tmp_path):
  """`refurbish` limits how far is read ahead. Reading ahead waits for this limit, but handing out records that were
  read does not."""
  records = rtf.sources.tfrecord(write_files(tmp_path, 300), num_parallel_reads=1)
  train = records.refurbish(lambda record: (record, tf.zeros([1 << 16])), lambda record, _: record, r=50, seed=1)
  outcome = []

  def work():
    for _ in range(3):
      outcome.append(len(contents(train)))

  assert ends(work, LIMIT) and outcome == [300] * 3


def test_service(tmp_path):
  """With splits that the service distributes, each record comes once. Without sharding, it comes once per worker."""
  files = write_files(tmp_path, 20, 15)
  wanted = sorted(contents(tf.data.TFRecordDataset(files)))
  records, policies = rtf.sources.tfrecord(files), services.service.ShardingPolicy
  with services.in_this_process(2) as address:
    for policy, times in ((policies.DYNAMIC, 1), (policies.DATA, 1), (policies.OFF, 2)):
      shared = records.apply(services.service.distribute(policy, address))
      assert sorted(contents(shared)) == sorted(times * wanted)


class TfrecordCheckpointTest(checkpoint_test_base.CheckpointTestBase, parameterized.TestCase):
  """Runs TensorFlow's own checks of checkpoints."""

  BUILDS = {
    "plain": lambda records: records,
    "shard": lambda records: records.shard(2, 1),
    "skip": lambda records: records.skip(3),
    "batch": lambda records: records.batch(2),
    "global_shuffle": lambda records: global_shuffle_op._global_shuffle(records, seed=9),
    "concatenate": lambda records: global_shuffle_op._global_shuffle(records.concatenate(records), seed=9),
  }

  def _dataset_fn(self, build, symbolic):
    directory = tempfile.TemporaryDirectory()
    self.addCleanup(directory.cleanup)
    files = write_files(pathlib.Path(directory.name), 5, 0, 3)
    return lambda: with_checkpoints(self.BUILDS[build](rtf.sources.tfrecord(files)), symbolic)

  @checkpoint_cases.core(6)
  def test_core(self, verify_fn, symbolic):
    verify_fn(self, self._dataset_fn("plain", symbolic), 8)

  @checkpoint_cases.symbolic_or_not(7, build=list(BUILDS))
  def test_restore_at_every_step(self, symbolic, build):
    dataset_fn = self._dataset_fn(build, symbolic)
    n = len(contents(dataset_fn()))
    self.verify_run_with_breaks(dataset_fn, list(range(n + 1)), n)


def test_damaged_checkpoint(tmp_path):
  """The checkpoint of a longer source is refused: its position is beyond the end."""
  iterator = iter(rtf.sources.tfrecord(write_files(tmp_path, 9)))
  for _ in range(7):
    next(iterator)
  path = save(iterator, tmp_path)
  (tmp_path / "other").mkdir()
  other = rtf.sources.tfrecord(write_files(tmp_path / "other", 5))
  with pytest.raises(tf.errors.DataLossError, match="rtf.sources.tfrecord"):
    restore(other, path)


@pytest.mark.parametrize("shards", [2, 3, 30, 150])
def test_reading_ahead_follows_the_current_step(tmp_path, shards):
  """Reading ahead assumes the current step between records, which another `shard`, or its end, changes."""
  records = rtf.sources.tfrecord(write_files(tmp_path, 200), num_parallel_reads=2)
  everything = contents(records)
  for index in (0, shards - 1):
    assert contents(records.shard(shards, index)) == everything[index::shards]
    assert contents(records.skip(7).shard(shards, index).skip(1)) == everything[7:][index::shards][1:]


def test_handles_are_bounded_for_the_process(tmp_path):
  """The limit is not per dataset, because there may be many."""
  files = write_files(tmp_path, *[1] * 200)
  datasets = [rtf.sources.tfrecord(files[i::2]) for i in range(2)]
  for dataset in datasets:
    assert len(contents(dataset)) == 100
  held = [
    os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
  ]
  assert sum(path.startswith(str(tmp_path)) for path in held) <= 128
