"""`rtf.stats` counts what really ran. `rtf.describe` describes the stages and their sources."""

import dataclasses
import time

from hypothesis import example, given, settings, strategies as st
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph
from support import cases, datasets
from support.datasets import in_python, without_prefetch
from support.pipelines import STREAMS, make_source


class Stage:
  """A stage over 0 ... n - 1 that counts the calls of its functions."""

  def __init__(self, n=12, kind="range", **options):
    self.n = n
    self.partial_calls = tf.Variable(0, dtype=tf.int64)
    self.final_calls = tf.Variable(0, dtype=tf.int64)
    self.dataset = make_source(kind, n).refurbish(self.partial_fn, self.final_fn, seed=1, **options)

  def partial_fn(self, index):
    self.partial_calls.assign_add(1)
    return index

  def final_fn(self, index):
    self.final_calls.assign_add(1)
    return index

  @property
  def stats(self):
    return datasets.stats(self.dataset)


KINDS = ("range", *STREAMS)


@given(
  kind=st.sampled_from(KINDS),
  n=st.integers(1, 20),
  r=st.sampled_from([1, 1.5, 2, 3, 7]),
  epochs=st.integers(0, 5),
  eviction=st.sampled_from(["balanced", "reference_count"]),
)
@settings(max_examples=cases.examples(20), derandomize=True)
@example(kind="range", n=20, r=2, epochs=5, eviction="balanced")
def test_counts_of_whole_epochs(kind, n, r, epochs, eviction):
  """partial_fn ran `fresh` times in the epoch, final_fn `fresh + cached` times; evicted samples are fresh again."""
  stage = Stage(n, kind, r=r, eviction=eviction)
  assert stage.stats.epochs == ()
  fresh, used = [], []
  for _ in range(epochs):
    before = int(stage.partial_calls), int(stage.final_calls)
    assert sorted(stage.dataset.as_numpy_iterator()) == list(range(n))
    fresh.append(int(stage.partial_calls) - before[0])
    used.append(int(stage.final_calls) - before[1])
  found = stage.stats
  assert [epoch.fresh for epoch in found.epochs] == fresh
  assert [epoch.fresh + epoch.cached for epoch in found.epochs] == used == [n] * epochs
  # The first epoch evicts nothing, because the store is empty.
  assert [epoch.evicted for epoch in found.epochs] == ([0] + fresh[1:] if epochs else [])
  assert [epoch.missing for epoch in found.epochs] == [0] * epochs
  assert (found.total.fresh, found.total.cached) == (sum(fresh), n * epochs - sum(fresh))
  assert found.total.evicted == sum(fresh[1:]) and found.total.missing == 0


def test_early_stop():
  """A stopped epoch counts the samples used. Samples that it did not store are missing in the next epoch."""
  stage = Stage(12, r=100, num_parallel_calls=None)
  used = 0
  for stop in (5, 3, 12, 12):
    used += len(list(without_prefetch(stage.dataset.take(stop))))
    assert stage.stats.total.fresh == int(stage.partial_calls)
    assert stage.stats.total.fresh + stage.stats.total.cached == int(stage.final_calls) == used
  first, second, third, fourth = stage.stats.epochs
  assert (first.fresh, first.cached, first.missing) == (5, 0, 0)
  assert second.fresh + second.cached == 3
  assert second.missing == second.fresh
  assert (third.fresh, third.cached, third.missing) == (12 - 5 - second.fresh, 5 + second.fresh, third.fresh)
  assert (fourth.fresh, fourth.cached, fourth.missing) == (0, 12, 0)
  assert stage.stats.total.missing == second.missing + third.missing


def test_removed_samples_are_absent():
  """Samples removed from the store are fresh, and counted separately from evicted ones."""
  store = rtf.CacheStore()
  stage = Stage(12, r=100, store=store)
  list(stage.dataset)
  store.remove(3)
  store.remove(7)
  list(stage.dataset)
  epoch = stage.stats.epochs[1]
  assert (epoch.fresh, epoch.cached, epoch.evicted, epoch.missing, epoch.bytes) == (2, 10, 0, 2, 12 * 8)


def test_samples_without_room_are_absent_or_fresh():
  """With max_bytes, samples that cannot be kept are prepared by schedule: no expected sample is missing."""
  stage = Stage(12, r=100, store=rtf.CacheStore(max_bytes=5 * 8))
  for _ in range(3):
    list(stage.dataset)
  assert [(epoch.fresh, epoch.cached, epoch.missing, epoch.bytes) for epoch in stage.stats.epochs] == [
    (12, 0, 0, 40),
    (7, 5, 0, 40),
    (7, 5, 0, 40),
  ]


def test_an_unread_iterator_does_not_count_as_an_epoch():
  stage = Stage(12, r=2)
  iterators = [iter(stage.dataset.batch(4).prefetch(2)) for _ in range(3)]
  assert stage.stats.epochs == ()
  next(iterators[1])
  # An earlier result is a snapshot.
  before = stage.stats
  copy = dataclasses.replace(before)
  list(stage.dataset)
  assert len(before.epochs) == 1 and before == copy != stage.stats
  with pytest.raises(dataclasses.FrozenInstanceError):
    before.total.fresh = 0


def test_several_stages():
  """The counts of every stage upstream are listed once, from the source on and from left to right."""
  first, second = Stage(12, r=2, name="first"), Stage(10, r=5)
  both = tf.data.Dataset.zip(first.dataset, second.dataset.take(10), first.dataset).batch(2).prefetch(1)
  for _ in range(2):
    list(both)
  found = rtf.stats(both)
  assert [stage.name for stage in found] == ["first", "refurbish"]
  assert found == [first.stats, second.stats]
  # zip stops when its shortest input ends, so epochs of `first` stop at 10 of 12, two in each epoch.
  assert len(found[0].epochs) == 4
  assert [(epoch.fresh, epoch.cached) for epoch in found[1].epochs] == [(10, 0), (2, 8)]
  # A stage is found upstream of any other dataset, and also if it was built by `apply`.
  stage = tf.data.Dataset.range(12).apply(rtf.refurbish(tf.identity, r=2, name="here"))
  for dataset in (
    stage,
    stage.repeat(2).take(3),
    stage.with_options(tf.data.Options()),
    stage.map(tf.identity).concatenate(tf.data.Dataset.range(3)),
    stage.filter(lambda x: x > 3).cache(),
    tf.data.Dataset.zip({"x": stage, "y": (stage,)}),
  ):
    (found,) = rtf.stats(dataset)
    assert found.name == "here"


def test_printing():
  """A stage prints as a table of its epochs with a total."""
  stage = Stage(1200, r=2, name="train")
  assert str(stage.stats).splitlines()[0] == "train"
  for _ in range(2):
    list(stage.dataset)
  lines = str(stage.stats).splitlines()
  assert lines[0] == "train"
  columns = "epoch fresh cached from_other_jobs evicted missing bytes fresh_wait [s] store_wait [s]"
  assert lines[1].split() == columns.split()
  waits = [f"{epoch.fresh_wait:.2f}" for epoch in (*stage.stats.epochs, stage.stats.total)]
  assert [line.split() for line in lines[2:]] == [
    ["0", "1,200", "0", "0", "0", "0", "4,800", waits[0], "0.00"],
    ["1", "600", "600", "0", "600", "0", "4,800", waits[1], "0.00"],
    ["total", "1,800", "600", "0", "600", "0", "4,800", waits[2], "0.00"],
  ]
  assert len({len(line) for line in lines[1:]}) == 1  # All lines have the same width.


def test_waits(tmp_path):
  """Counts the seconds that the consumer waited for fresh samples and for a store on disk. With a store in memory there
  are no waits."""

  def slow(index):
    time.sleep(0.02)
    return index

  for store in (None, tmp_path / "store"):
    dataset = tf.data.Dataset.range(20).refurbish(in_python(slow), r=4, store=store, num_parallel_calls=None)
    for _ in range(2):
      list(without_prefetch(dataset))
    first, second = rtf.stats(dataset)[0].epochs
    assert first.fresh_wait >= 20 * 0.02 and first.store_wait == 0
    assert 5 * 0.02 <= second.fresh_wait < first.fresh_wait
    assert (second.store_wait > 0) == (store is not None)
    total = rtf.stats(dataset)[0].total
    assert total.fresh_wait == first.fresh_wait + second.fresh_wait and total.store_wait == second.store_wait


def test_description(tmp_path):
  """Describes each stage, upstream first."""
  dataset = tf.data.Dataset.range(600).refurbish(
    lambda x: x,
    r=3,
    seed=7,
    order_seed=8,
    eviction="reference_count",
    shuffle="uniform",
    name="train",
    store=rtf.CacheStore(max_bytes=8 * 300),
  )
  assert rtf.describe(
    dataset.batch(2).echo(1.5).echo(rtf.AUTOTUNE, max_e=4, name="adaptive").prefetch(1)
  ).splitlines() == [
    'refurbish "train", r = 3',
    "  epoch   600 samples; after the first epoch about 400 fresh, 200 cached",
    "  order   reference-count eviction, uniform shuffle, seed 7, order_seed 8",
    "  source  by index: about 400 of 600 elements are read in an epoch after the first",
    "  fresh   in uniformly random order, by index",
    "  store   memory, at most 2,400 bytes; 300 samples of 8 bytes take 2.4 kB",
    "  after   batch(2), echo, echo, prefetch",
    "echo, e = 1.5",
    'echo "adaptive", e = AUTOTUNE: while no fresh element is ready, at most 4 times',
  ]
  stream = (
    tf.data.Dataset.range(12).filter(lambda x: True).refurbish(lambda x: x, r=1.5, seed=7, store=tmp_path / "store")
  )
  unread = [
    "refurbish, r = 1.5",
    "  epoch   number of samples not yet known; reuse begins after the first epoch that is read to its end",
    "  order   balanced eviction, cache-aware shuffle, seed 7",
    "  source  a stream, because of filter: all elements are read in every epoch",
    "  fresh   shuffled by a buffer of 1,000 samples, at most 256 MB of them",
    f"  store   {tmp_path / 'store'}, without a limit",
  ]
  assert rtf.describe(stream).splitlines() == unread
  list(stream)
  read = rtf.describe(stream).splitlines()
  assert read[1] == "  epoch   12 samples; after the first epoch about 8 fresh, 4 cached"
  assert read[3] == "  source  a stream, because of filter: all 12 elements are read in every epoch"
  assert read[:1] + read[2:3] + read[4:] == unread[:1] + unread[2:3] + unread[4:]
  assert rtf.describe(tf.data.Dataset.range(3)) == "no reuse stages"
  stream = tf.data.Dataset.range(12).filter(lambda x: True)
  for size, expected in (
    (1, "in the order of the source, shuffle_buffer_size=1"),
    (5000, "shuffled by a buffer of 5,000 samples"),
  ):
    assert f"  fresh   {expected}" in rtf.describe(stream.refurbish(lambda x: x, shuffle_buffer_size=size)).splitlines()


@pytest.mark.parametrize(
  "r, sizes, expected",
  [
    (2, 1, "; 225 of 1,000 samples kept, room for 75 in transit"),
    (1, 1, "; 0 of 1,000 samples kept, room for 300 in transit"),
    (2, 2, ", part of the room for those in transit"),
  ],
)
def test_description_of_samples_in_transit(tmp_path, r, sizes, expected):
  """The description says which part of a store's limit is for samples in transit."""
  record = 128  # The bytes of a record of one number.
  store = rtf.CacheStore(tmp_path / "store", max_bytes=300 * record)
  stage = tf.data.Dataset.range(1000).refurbish(lambda x: x if sizes == 1 else tf.range(x % 2), r=r, store=store)
  assert f"  store   {tmp_path / 'store'}, at most 38,400 bytes{expected}" in rtf.describe(stage).splitlines()


def test_description_of_the_following_operations():
  """Lists the following operations in order, for the given pipeline and for the stage alone."""
  stage = tf.data.Dataset.range(40).take(30).refurbish(lambda x: x)
  for behind, expected in (
    (stage.skip(8).take(8).cache().prefetch(1), "skip(8), take(8), cache, prefetch"),
    (
      stage.take(-1).repeat().with_options(tf.data.Options()).shuffle(3).batch(4).map(lambda x: x + 1),
      "take, repeat, shuffle, batch(4), map",
    ),
    (tf.data.Dataset.zip(stage, tf.data.Dataset.range(9).take(3)), "zip"),
  ):
    assert rtf.describe(behind).splitlines()[-1] == f"  after   {expected}"
  assert "  after" not in rtf.describe(stage)


def test_description_of_sources(tmp_path):
  """Says whether the source is read by index, otherwise which dataset prevents this and what to use instead, and how
  much of the source is read."""

  def source(dataset, r=3):
    (line,) = [
      line for line in rtf.describe(dataset.refurbish(lambda *x: x, r=r)).splitlines() if line.startswith("  source")
    ]
    return line[len("  source  ") :]

  with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
    writer.write(b"record")
  (tmp_path / "images/a").mkdir(parents=True)
  (tmp_path / "images/a/1.jpg").write_bytes(b"image")
  by_index = "by index: about {} of {} elements are read in an epoch after the first"
  assert source(tf.data.Dataset.range(1200).map(lambda x: x).take(900), r=2) == by_index.format(450, 900)
  assert source(rtf.sources.data_source(list(range(3000)))) == by_index.format("1,000", "3,000")
  assert source(rtf.sources.tfrecord(tmp_path / "file"), r=1) == by_index.format(1, 1)
  assert source(rtf.sources.image_folder(tmp_path / "images"), r=1) == by_index.format(1, 1)

  stream = "a stream, because of {}: all {}elements are read in every epoch{}"
  numbers = tf.data.Dataset.range(9)
  files = "; rtf.sources.tfrecord reads TFRecord files by index"
  python = "; rtf.sources.data_source reads Python objects by index"
  records = tf.data.TFRecordDataset(str(tmp_path / "file"))
  assert source(records.map(tf.strings.length)) == stream.format("TFRecordDataset", "", files)
  names = tf.data.Dataset.from_tensor_slices([str(tmp_path / "file")])
  assert source(names.interleave(tf.data.TFRecordDataset)) == stream.format("interleave", "", files)
  generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32))
  assert source(generated) == stream.format("flat_map", "", python)
  assert source(numbers.cache().map(lambda x: x)) == stream.format("cache", "9 ", "")
  assert source(numbers.concatenate(numbers.repeat(2))) == stream.format(
    "repeat", "27 ", "; echo(n) with a whole n is read by index, repeat(n) is not"
  )
  assert source(numbers.concatenate(numbers.echo(2))) == by_index.format(9, 27)
  assert source(numbers.shuffle(3, reshuffle_each_iteration=False)) == stream.format("shuffle", "9 ", "")
  # The dataset named is the first one from the files, in either input.
  assert source(tf.data.Dataset.zip(numbers, numbers.cache().filter(lambda x: True))) == stream.format("cache", "", "")


def test_bad_arguments():
  for wrong in (None, 3, [tf.data.Dataset.range(2)], iter(tf.data.Dataset.range(2))):
    with pytest.raises(TypeError, match="^dataset .*rtf.stats"):
      rtf.stats(wrong)
    with pytest.raises(TypeError, match="^dataset .*rtf.describe"):
      rtf.describe(wrong)
  dataset = tf.data.Dataset.range(2).refurbish(tf.identity)
  with pytest.raises(RuntimeError, match="outside"):
    tf.function(lambda: len(rtf.stats(dataset)))()


def test_each_dataset_is_visited_once():
  """Forty levels, each with two references to the level below: a walk along all 2**40 paths would not end."""
  below = diamond = tf.data.Dataset.range(40).refurbish(lambda x: x)
  for _ in range(40):
    diamond = diamond.concatenate(diamond)
  found = dataset_graph.upstream_first(diamond)
  assert len(found) == len({id(each) for each in found}) and found[-1] is diamond
  assert found.index(below) < len(found) - 40
  assert len(rtf.stats(diamond)) == 1
  assert rtf.describe(diamond).splitlines()[-1] == "  after   " + ", ".join(40 * ["concatenate"])
  # Inputs are listed from left to right.
  left, right = tf.data.Dataset.range(3), tf.data.Dataset.range(4)
  first = tf.data.Dataset.zip(left, right)
  found = dataset_graph.upstream_first(tf.data.Dataset.zip(first, left, right.batch(2)))
  assert found[:3] == [left, right, first]
  assert [type(each).__name__ for each in found[3:]] == ["_BatchDataset", "_ZipDataset"]


def test_stats_without_a_stage():
  found = rtf.stats(tf.data.Dataset.range(3).batch(2))
  assert found == [] and len(found) == 0 and found[:1] == []
  for index in (0, -1):
    with pytest.raises(IndexError, match="^dataset .*rtf.stats"):
      found[index]
  with pytest.raises(IndexError, match="out of range"):
    rtf.stats(tf.data.Dataset.range(3).refurbish(lambda x: x))[1]
