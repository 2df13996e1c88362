"""`rtf.sources.cached` with a store on disk: the next run, jobs that share it, damage, full disks, other sources."""

import gc
import itertools
import pathlib
import shutil
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.python_sources import Source
from support.stores import small_disk

pytestmark = cases.slow

Dataset = tf.data.Dataset
N = 40
NUMBERS = np.arange(N) * 10
# The bytes that the record of a number or a short string takes.
RECORD = 128


def make(path, numbers=NUMBERS):
  return rtf.sources.cached(Dataset.from_tensor_slices(numbers).map(lambda x: x + 1), path)


def values(dataset):
  """Returns the numbers, or the first number of each vector."""
  return [int(np.ravel(x)[0]) for x in dataset]


def filled(path, source=None):
  """Reads all elements. Afterwards the whole store is on the disk, and nothing in this process uses it."""
  dataset = rtf.sources.cached(source or Dataset.range(N), path)
  values(dataset)
  del dataset
  gc.collect()


class Recorded(Source):
  """A Python source whose spec is known. `since` returns what was read since its last call."""

  def dataset(self, store):
    return rtf.sources.cached(rtf.sources.data_source(self, element_spec=tf.TensorSpec([], tf.int64)), store)

  def since(self):
    asked, self.asked = self.asked, []
    return asked


# Runs and jobs. -------------------------------------------------------------------------------------------------------


def test_the_next_run_reads_nothing(tmp_path):
  expected = values(Dataset.range(N).map(lambda x: x * x))
  source = Recorded(N)
  filled(tmp_path, rtf.sources.data_source(source))
  source.since()
  dataset = source.dataset(tmp_path)
  source.since()  # Forgets the reads that compare the source with the store.
  for _ in range(2):
    assert values(dataset) == expected and not source.since()
  train = dataset.refurbish(lambda x: x, r=2, seed=1)
  for _ in range(3):
    assert sorted(values(train)) == expected and not source.since()


def test_the_store_is_read_ahead(tmp_path):
  """The store is read ahead even if more bytes are wanted than may be in progress. No element is read twice."""
  size = 1 << 20
  source = Dataset.range(N).map(lambda x: tf.fill([size // 8], x))
  filled(tmp_path, source)

  def bytes_read():
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])

  iterator = iter(rtf.sources.cached(source, tmp_path))
  before = bytes_read()
  for i in range(N - 5):
    assert int(next(iterator)[0]) == i
    assert bytes_read() - before > (i + 3) * size
  assert values(iterator) == list(range(N - 5, N))
  assert N * size < bytes_read() - before < 1.2 * N * size


def test_two_jobs_at_once_read_each_element_once(tmp_path):
  sources = [Recorded(N), Recorded(N)]
  jobs = [
    source.dataset(tmp_path).refurbish(lambda x: x, r=2, seed=seed, num_parallel_calls=None)
    for seed, source in enumerate(sources)
  ]
  for epoch in range(3):
    pairs = [(int(one), int(other)) for one, other in zip(*jobs, strict=True)]
    for each in zip(*pairs):
      assert sorted(each) == [i * i for i in range(N)]
    asked = [source.since() for source in sources]
    # Each job finds what the other one has read.
    assert sorted(itertools.chain(*asked)) == (list(range(N)) if epoch == 0 else [])
    assert epoch > 0 or min(map(len, asked)) > 0


def test_a_job_killed_at_any_moment_leaves_a_usable_store(tmp_path):
  """A copy of the directory is what a killed process leaves there."""
  job, left = iter(make(tmp_path / "store")), []
  for at, number in enumerate(job):
    assert int(number) == NUMBERS[at] + 1
    if at % 13 == 5:
      left.append(shutil.copytree(tmp_path / "store", tmp_path / f"left-{at}"))
  assert len(left) == 3
  for path in left:
    dataset = make(path)
    for _ in range(2):
      assert values(dataset) == list(NUMBERS + 1)


def test_the_first_elements_are_kept_within_max_bytes(tmp_path):
  source = Recorded(N)
  store = rtf.CacheStore(tmp_path, max_bytes=8_000)
  dataset = rtf.sources.cached(
    rtf.sources.data_source(source, element_spec=tf.TensorSpec([], tf.int64)).map(lambda x: tf.fill([100], x)), store
  )
  read = []
  for _ in range(3):
    assert values(dataset) == [i * i for i in range(N)]
    read.append(source.since())
  assert read[0] == list(range(N))
  assert 0 < len(read[1]) < N and read[1] == read[2] == list(range(N - len(read[1]), N))


def test_a_full_disk_is_a_limit(tmp_path):
  with small_disk(tmp_path / "disk", 1300 << 10) as disk:
    source = Recorded(N)
    large = rtf.sources.data_source(source, element_spec=tf.TensorSpec([], tf.int64)).map(lambda x: tf.fill([2_000], x))
    for run in range(3):
      dataset = rtf.sources.cached(large, disk / "store")
      source.since()
      assert values(dataset) == [i * i for i in range(N)]
      read = source.since()
      assert len(read) == N if run == 0 else 0 < len(read) < N
      del dataset
      gc.collect()  # Writes all that is kept to the disk.


# Damage. --------------------------------------------------------------------------------------------------------------


def damage(path, record):
  """Changes the record with this number in the order of writing. All records have the same size."""
  (file,) = [each for each in pathlib.Path(path).iterdir() if each.name.startswith("small-")]
  data = bytearray(file.read_bytes())
  for at in range(record * RECORD, (record + 1) * RECORD):
    data[at] ^= 0xFF
  file.write_bytes(data)


@pytest.mark.parametrize(
  "behind", [lambda dataset: dataset, lambda dataset: dataset.refurbish(lambda x: x, r=2, seed=1)]
)
def test_a_damaged_record_is_read_again(behind, tmp_path):
  filled(tmp_path)
  damage(tmp_path, 5)
  store = rtf.CacheStore(tmp_path)
  dataset = behind(rtf.sources.cached(Dataset.range(N), store))
  for _ in range(3):
    assert sorted(values(dataset)) == list(range(N))
  assert store.stats().corrupt == 1
  assert len(store) == N  # The damaged element was read and stored again.


def test_a_damaged_settings_file_is_an_error(tmp_path):
  filled(tmp_path)
  file = tmp_path / "store"
  file.write_bytes(file.read_bytes().replace(b"r elements", b"r elemennt"))
  with pytest.raises(ValueError, match="damaged"):
    make(tmp_path)


# Stores of another kind. ----------------------------------------------------------------------------------------------


def test_a_store_of_samples_is_refused_and_stays_as_it_is(tmp_path):
  for _ in Dataset.range(N).refurbish(lambda x: x, r=2, seed=1, store=tmp_path):
    pass
  gc.collect()
  before = (tmp_path / "store").read_bytes()
  for source in (Dataset.range(N), Dataset.zip(Dataset.range(N), Dataset.range(N))):
    with pytest.raises(ValueError, match="holds samples of a refurbish stage, not elements of a source"):
      rtf.sources.cached(source, tmp_path)
  assert (tmp_path / "store").read_bytes() == before


def test_a_store_of_elements_is_refused_and_stays_as_it_is(tmp_path):
  filled(tmp_path)
  before = (tmp_path / "store").read_bytes()
  for arguments in ({}, {"seed": 1}):
    with pytest.raises(ValueError, match="holds elements of a source for rtf.sources.cached, not samples"):
      Dataset.range(N).refurbish(lambda x: x, store=tmp_path, **arguments)
  assert (tmp_path / "store").read_bytes() == before


def test_a_store_that_was_filled_by_hand_is_refused(tmp_path):
  store = rtf.CacheStore(tmp_path)
  store.put(0, tf.constant(5, tf.int64))
  with pytest.raises(ValueError, match="put into it by hand|element_spec"):
    rtf.sources.cached(Dataset.range(N), store)


# Other sources. -------------------------------------------------------------------------------------------------------


OTHERS = {
  "other elements": (lambda: Dataset.range(1, N + 1), "was filled from another source: element"),
  "other function": (lambda: Dataset.range(N).map(lambda x: x * x), "was filled from another source: element"),
  "longer": (lambda: Dataset.range(N + 1), "was filled from another source: num_samples is 41, but it was 40"),
  "shard": (
    lambda: Dataset.range(2 * N).shard(2, 0),
    "was filled from another source: shard is 0 of 2, but it was none",
  ),
  "other type": (lambda: Dataset.range(N).map(lambda x: tf.cast(x, tf.int32)), "int32"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_source_is_refused(kind, tmp_path):
  other, message = OTHERS[kind]
  filled(tmp_path)
  with pytest.raises(ValueError, match=message):
    rtf.sources.cached(other(), tmp_path)
  assert values(rtf.sources.cached(Dataset.range(N), tmp_path)) == list(range(N))


def test_a_changed_python_source_causes_a_warning(tmp_path):
  filled(tmp_path, rtf.sources.data_source(list(range(N))))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    rtf.sources.cached(rtf.sources.data_source(list(range(N))), tmp_path)
  with pytest.warns(rtf.PipelineWarning, match="was filled from another source: element"):
    rtf.sources.cached(rtf.sources.data_source(list(range(1, N + 1))), tmp_path)


def test_a_file_that_changes_is_an_error(tmp_path):
  files = [tmp_path / f"{i}.txt" for i in range(N)]
  for i, file in enumerate(files):
    file.write_text(str(i))
  source = Dataset.from_tensor_slices([str(file) for file in files]).map(tf.io.read_file)
  filled(tmp_path / "store", source)
  dataset = rtf.sources.cached(source, tmp_path / "store")
  files[3].write_text("changed")
  # A kept element is not compared with its file, until it has to be read again.
  assert [x.numpy() for x in dataset] == [b"%d" % i for i in range(N)]
  damage(tmp_path / "store", 3)
  with (
    pytest.warns(rtf.PipelineWarning),
    pytest.raises(tf.errors.FailedPreconditionError, match="element 3, the file .*3.txt, differs"),
  ):
    list(dataset)
  files[4].write_text("changed")
  with pytest.raises(ValueError, match="element 4, the file .*4.txt, differs"):
    rtf.sources.cached(source, tmp_path / "store")


def test_other_files_of_a_folder_are_refused(tmp_path):
  folder, path = tmp_path / "photos", tmp_path / "store"
  for i in range(3):
    (folder / "cats").mkdir(parents=True, exist_ok=True)
    (folder / "cats" / f"{i}.png").write_bytes(tf.io.encode_png(tf.fill([2, 2, 3], tf.cast(i, tf.uint8))).numpy())
  dataset = rtf.sources.cached(rtf.sources.image_folder(folder), path)
  assert len(list(dataset)) == 3
  del dataset
  gc.collect()
  rtf.sources.cached(rtf.sources.image_folder(folder), path)
  gc.collect()
  (folder / "cats" / "2.png").rename(folder / "cats" / "3.png")
  with pytest.raises(ValueError, match="was filled from other files or labels"):
    rtf.sources.cached(rtf.sources.image_folder(folder), path)


def test_a_stage_after_it_knows_the_files_of_its_folder(tmp_path):
  """`of_files` looks for `files_fingerprint` in the source of `cached`."""
  (tmp_path / "photos" / "cats").mkdir(parents=True)
  (tmp_path / "photos" / "cats" / "1.png").write_bytes(tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8)).numpy())
  source = rtf.sources.image_folder(tmp_path / "photos")
  assert rtf._internal.fingerprint.of_files(rtf.sources.cached(source)) == source.files_fingerprint()
