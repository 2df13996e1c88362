"""`rtf.sources.data_source`: the elements of a Python source, read by index."""

import gc
import threading
import warnings
import weakref

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import refurbish_tf as rtf
from support import cases
from support import checkpoints
from support.datasets import read, without_prefetch
from support.processes import run_forked
from support.python_sources import Batched, Source
from support.waiting import until_asleep

data_source = rtf.sources.data_source
# Either the thread that requests elements reads them, or 16 others read ahead of it.
each_reads = pytest.mark.parametrize("reads", [1, 16])
# Seconds, more than anything here takes on a busy machine.
MINUTES = 300


def _values(dataset):
  return [int(x) for x in dataset.as_numpy_iterator()]


def _squares(n):
  return [i * i for i in range(n)]


def _flat(asked):
  return [index for each in asked for index in (each if isinstance(each, list) else [each])]


@each_reads
@pytest.mark.parametrize("kind", [Source, Batched])
def test_elements_in_order(kind, reads):
  source = kind(150)
  dataset = data_source(source, num_parallel_reads=reads)
  assert len(dataset) == 150 and dataset.element_spec == tf.TensorSpec([], tf.int64)
  assert source.asked == [0]  # Element 0 was read for the spec.
  source.asked.clear()
  assert _values(dataset) == _values(dataset) == _squares(150)
  # The second iterator may begin while readers of the first one end.
  assert sorted(_flat(source.asked)) == sorted(2 * list(range(150)))
  assert reads > 1 or _flat(source.asked) == 2 * list(range(150))


def test_batches_begin_small_and_grow_to_batch_reads():
  source = Batched(150)
  dataset = data_source(source, element_spec=tf.TensorSpec([], tf.int64))
  iterator = iter(without_prefetch(dataset))
  assert not source.asked
  next(iterator)
  assert source.asked == [0]
  assert len(list(iterator)) == 149
  assert [len(each) for each in source.asked[1:]] == [2, 4, 8, 16, 32, 64, 23]
  source.asked.clear()
  assert _values(data_source(source, batch_reads=3)) == _squares(150)
  assert {len(each) for each in source.asked[2:]} <= {2, 3}


def test_a_source_without_batches_is_read_on_demand():
  source = Source(100)
  iterator = iter(without_prefetch(data_source(source)))
  source.asked.clear()
  for i in range(10):
    next(iterator)
    assert source.asked == list(range(i + 1))


@each_reads
@pytest.mark.parametrize("kind", [Source, Batched])
def test_refurbish_reads_only_what_is_fresh(kind, reads):
  source = kind(60)
  train = data_source(source, num_parallel_reads=reads).map(lambda x: x + 1).refurbish(lambda x: x, r=3, seed=1)
  for epoch in range(7):
    source.asked.clear()
    assert sorted(_values(train)) == [x + 1 for x in _squares(60)]
    asked = _flat(source.asked)
    assert len(asked) == len(set(asked)) == (20 if epoch else 60)
  assert kind is Source or max(len(each) for each in source.asked if isinstance(each, list)) > 1


def read_samples_that_fill_what_may_be_taken_ahead(reads):
  # A cached place holds its sample from the moment it is decided. The last batches request 16 or more fresh samples,
  # and so 64 MB of cached ones between them. That is more than may be held ahead, so a request must not wait.
  source = Batched(160)
  train = data_source(source, num_parallel_reads=reads).refurbish(
    lambda x: (x, tf.zeros([1 << 20], tf.uint8)), lambda x, _: x, r=4, seed=1, num_parallel_calls=2
  )
  for _ in range(6):
    source.asked.clear()
    assert sorted(_values(train)) == _squares(160)
  assert reads > 1 or max(len(each) for each in source.asked if isinstance(each, list)) < 16


@each_reads
def test_samples_that_fill_the_read_ahead_limit_cause_no_deadlock(reads):
  # Runs in its own process, which ends after a while, because a request that waits would never end.
  assert run_forked(read_samples_that_fill_what_may_be_taken_ahead, reads) == 0


@hypothesis.settings(max_examples=cases.examples(12))
@hypothesis.given(strategies.data())
def test_as_from_tensor_slices(data):
  n = data.draw(strategies.integers(1, 40))
  source = data.draw(strategies.sampled_from([Source, Batched]))(n)
  ours = data_source(
    source,
    batch_reads=data.draw(strategies.sampled_from([1, 3, 64])),
    num_parallel_reads=data.draw(strategies.sampled_from([1, 2, 16])),
  )
  slices = tf.data.Dataset.from_tensor_slices(np.array(_squares(n), np.int64))
  size = strategies.integers(0, n + 2)
  stages = {
    "take": lambda d, k: d.take(k),
    "skip": lambda d, k: d.skip(k),
    "shard": lambda d, k: d.shard(3, k % 3),
    "repeat": lambda d, k: d.repeat(2),
    "concatenate": lambda d, k: d.concatenate(d.take(k)),
    "map": lambda d, k: d.map(lambda x: x + 1, 2),
    "zip": lambda d, k: tf.data.Dataset.zip(d, d.skip(k)).map(lambda x, y: x + y),
    "prefetch": lambda d, k: d.prefetch(3),
    "batch": lambda d, k: d.batch(2, drop_remainder=True).unbatch(),
  }
  for name in data.draw(strategies.lists(strategies.sampled_from(sorted(stages)), max_size=3)):
    k = data.draw(size)
    ours, slices = stages[name](ours, k), stages[name](slices, k)
  assert int(ours.cardinality()) == int(slices.cardinality())
  expected = _values(slices)
  assert _values(ours) == expected
  if data.draw(strategies.booleans()) and len(expected) and "unbatch" not in repr(ours) and int(ours.cardinality()) > 0:
    try:
      shuffled = _values(slices.apply(lambda d: global_shuffle_op._global_shuffle(d, seed=7)))
    except tf.errors.OpError:
      return
    assert _values(global_shuffle_op._global_shuffle(ours, seed=7)) == shuffled


@pytest.mark.parametrize("kind", [Source, Batched])
def test_random_access(kind):
  source = kind(10)
  dataset = data_source(source).map(lambda x: -x)
  assert [int(tf.data.experimental.at(dataset, i)) for i in (7, 0, 9)] == [-49, 0, -81]
  with pytest.raises(tf.errors.OutOfRangeError):
    tf.data.experimental.at(dataset, 10)
  with pytest.raises(tf.errors.UnknownError, match="Element 3 of the source of data_source: KeyError: 'no 3'"):
    source.fails = {3}
    tf.data.experimental.at(dataset, 3)


@cases.each_value
@each_reads
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
  "make",
  [
    lambda d: d,
    lambda d: d.skip(3),
    lambda d: d.map(lambda x: x + 1, 2).prefetch(2),
    lambda d: d.shard(2, 1).repeat(2),
    lambda d: global_shuffle_op._global_shuffle(d, seed=7),
  ],
)
def test_restored_at_every_step(tmp_path, make, symbolic, reads):
  def dataset():
    return checkpoints.with_checkpoints(
      make(data_source(Batched(11), batch_reads=4, num_parallel_reads=reads)), symbolic
    )

  checkpoints.assert_restored_at_every_step(dataset, tmp_path)


@pytest.mark.filterwarnings("error")
@each_reads
@pytest.mark.parametrize("kind", [Source, Batched])
@pytest.mark.parametrize("now", [3, 7])
@pytest.mark.parametrize("reuses", [None, lambda dataset: dataset.refurbish(tf.identity, r=2), rtf.sources.cached])
def test_a_source_that_grows_or_shrinks(kind, now, reuses, reads):
  source = kind(6)
  dataset = data_source(source, batch_reads=2, num_parallel_reads=reads)
  if reuses:
    dataset = reuses(dataset)
  assert len(list(dataset)) == 6
  source.n = now
  match = f"changed its length: it has {now} elements now, but had 6 .* Make the dataset again"
  with pytest.raises(tf.errors.DataLossError, match=match):
    list(dataset)


def test_a_stop_iteration_of_the_source_does_not_end_the_epoch():
  class Ends(Source):
    def element(self, index):
      raise StopIteration("early")

  with pytest.raises(tf.errors.UnknownError, match="Element 0 .*StopIteration: early"):
    list(data_source(Ends(3), element_spec=tf.TensorSpec([], tf.int64)))


class _Lazy(dict):
  """A row that reads its image on access, and fails the first time."""

  failed = False

  def __getitem__(self, key):
    if self.get("index") == 3 and not _Lazy.failed:
      _Lazy.failed = True
      raise OSError("the disk was busy")
    return super().__getitem__(key)


class _Mute(Exception):
  def __str__(self):
    raise RuntimeError("no text")


def _raise(error):
  raise error


@cases.each_value
@pytest.mark.parametrize("kind", [Source, Batched])
@pytest.mark.parametrize(
  "fail", [lambda: _Lazy(index=3, image=3.0), lambda: _raise(SystemExit(1)), lambda: _raise(_Mute())]
)
def test_any_failure_is_an_error_of_its_own_element(kind, fail):
  """Without this error, later elements would come, and be stored, with wrong indices."""
  # If a batch raises, its elements are read again one by one, so element 3 fails twice.
  failures = [2 if kind is Batched else 1]

  class Rows(kind):
    def element(self, index):
      if index == 3 and failures[0]:
        failures[0] -= 1
        return fail()
      return {"index": index, "image": float(index)}

  _Lazy.failed = False
  train = data_source(Rows(12)).refurbish(lambda row: row["image"], r=3, seed=7, num_parallel_calls=None)
  for _ in range(4):
    values, errors = read(train)
    values = [float(value) for value in values]
    assert all(isinstance(error, tf.errors.UnknownError) for error in errors)
    assert len(values) == len(set(values)) and set(values) >= set(range(12)) - {3}
  assert sorted(map(float, train)) == list(range(12))


def test_random_access_works_after_a_function_was_deleted():
  dataset = data_source(Batched(5))
  function = tf.function(lambda index: tf.data.experimental.at(dataset, index))
  assert int(function(tf.constant(1, tf.int64))) == 1
  del function
  gc.collect()
  assert int(tf.data.experimental.at(dataset, 2)) == 4


def test_a_source_may_change_the_list_that_it_is_given():

  class Popping(Batched):
    def __getitems__(self, indices):
      elements = []
      while indices:
        elements.append(self.element(indices.pop(0)))
      return elements

  assert _values(data_source(Popping(20))) == _squares(20)


def test_one_thread_at_a_time():
  class Noting(Batched):
    inside = 0
    most = 0

    def element(self, index):
      self.inside += 1
      self.most = max(self.most, self.inside)
      threading.Event().wait(1e-4)  # Lets other threads run.
      self.inside -= 1
      return index

  source = Noting(30)
  datasets = [
    data_source(source, element_spec=tf.TensorSpec([], tf.int64)).map(lambda x: x, 3).prefetch(2) for _ in range(3)
  ]
  joined = tf.data.Dataset.sample_from_datasets(datasets, [1 / 3] * 3, seed=1)
  assert sorted(_values(joined)) == sorted(3 * list(range(30)))
  assert source.most == 1


class Together(Source):
  """No read returns before `together` reads are in progress."""

  def __init__(self, n, together):
    super().__init__(n)
    self.barrier = threading.Barrier(together)

  def element(self, index):
    self.barrier.wait(60)
    return index


@pytest.mark.parametrize(
  "make", [lambda d: d, lambda d: global_shuffle_op._global_shuffle(d, seed=7)], ids=["in order", "by a mapper"]
)
def test_as_many_reads_at_once_as_there_are_readers(make):
  source = Together(2 * 64, together=64)
  dataset = data_source(source, element_spec=tf.TensorSpec([], tf.int64), num_parallel_reads=64)
  assert sorted(_values(make(dataset))) == list(range(2 * 64))


@each_reads
@pytest.mark.parametrize("kind", [Source, Batched])
def test_an_element_that_fails_costs_no_other(kind, reads):
  source = kind(20)
  dataset = data_source(source, num_parallel_reads=reads)
  source.fails = {3, 4, 19}
  iterator, values = iter(dataset), []
  with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for i in range(20):
      try:
        values.append(int(next(iterator)))
      except tf.errors.UnknownError as error:
        assert f"Element {i} of the source of data_source: KeyError" in str(error)
  assert values == [i * i for i in range(20) if i not in source.fails] and next(iterator, None) is None
  assert any("reads the elements one by one" in str(each.message) for each in told) == (kind is Batched)


def test_a_source_may_use_datasets():
  inner = tf.data.Dataset.range(5).map(lambda x: x + 1, 2).prefetch(2)

  class Nested(Batched):
    def element(self, index):
      return index + sum(map(int, inner))

  class ReadsItself(Batched):
    dataset = None

    def element(self, index):
      return 1 if index < 3 else 2 * int(tf.data.experimental.at(self.dataset, index - 3))

  assert _values(data_source(Nested(20)).map(lambda x: x, 2)) == [15 + i for i in range(20)]
  source = ReadsItself(6)
  source.dataset = data_source(source)
  assert _values(source.dataset) == [1, 1, 1, 2, 2, 2]


class Held(Batched):
  """Waits at an element until the test lets it go on."""

  def __init__(self, n, at):
    super().__init__(n)
    self.at = at
    self.there, self.go = threading.Event(), threading.Event()

  def element(self, index):
    if index == self.at:
      self.there.set()
      assert self.go.wait(MINUTES)
    return index


@each_reads
def test_dropped_while_python_runs(reads):
  source = Held(500, at=3)
  iterator = iter(data_source(source, batch_reads=4, num_parallel_reads=reads).prefetch(8))
  next(iterator)
  assert source.there.wait(MINUTES)
  dropped = threading.Thread(target=lambda it=[iterator]: (it.clear(), gc.collect()))
  del iterator
  dropped.start()
  until_asleep(dropped)
  source.go.set()
  dropped.join(MINUTES)
  assert not dropped.is_alive()
  assert max(_flat(source.asked)) < 500 - 1  # The dataset was not read to its end.


def _freed(weak):
  gc.collect()
  return weak() is None


def test_the_source_goes_with_its_dataset():
  source = Batched(5)
  weak = weakref.ref(source)
  dataset = data_source(source).map(tf.negative).refurbish(tf.identity, r=2)
  del source
  assert not _freed(weak)
  assert len(list(dataset)) == 5
  iterator = iter(dataset)
  del dataset
  gc.collect()
  assert len(list(iterator)) == 5  # The iterator holds the source.
  del iterator
  assert _freed(weak)


def test_within_a_function():
  source = Batched(5)

  @tf.function
  def total():
    result = tf.constant(0, tf.int64)
    for x in data_source(source):  # noqa: F821  (deleted below)
      result += x
    return result

  gc.collect()
  assert int(total()) == int(total()) == 30
  flat = tf.data.Dataset.range(2).flat_map(lambda i: data_source(source).map(lambda x: x + i))  # noqa: F821
  gc.collect()
  assert _values(flat) == _squares(5) + [x + 1 for x in _squares(5)]
  weak = weakref.ref(source)
  del source, flat, total
  assert _freed(weak)


def test_a_deleted_dataset_raises_a_clear_error():
  variant = tf.data.experimental.to_variant(data_source(Batched(5)))
  gc.collect()
  with pytest.raises(tf.errors.FailedPreconditionError, match="data_source was not found"):
    list(tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64)))


def test_use_in_a_data_service_is_refused():
  dispatcher = tf.data.experimental.service.DispatchServer()
  with pytest.raises(tf.errors.FailedPreconditionError, match="data_source .*this Python process"):
    data_source(Batched(5)).apply(tf.data.experimental.service.distribute("parallel_epochs", dispatcher.target))
  with pytest.raises(tf.errors.FailedPreconditionError, match="data_source .*this Python process"):
    tf.raw_ops.DatasetToGraphV2(input_dataset=data_source(Batched(5))._variant_tensor)


class _NoLength:
  def __getitem__(self, index):
    return index


@pytest.mark.parametrize(
  "source, arguments, error, match",
  [
    (iter([1]), {}, TypeError, "^source .*list_iterator has no __len__"),
    ({1, 2}, {}, TypeError, "^source .*no __getitem__"),
    (tf.data.Dataset.range(3), {}, TypeError, "^source .*(no __getitem__|tf.data.Dataset)"),
    ([], {}, ValueError, "^source .*empty"),
    ([()], {}, TypeError, "^source .*component.* \\(\\)"),
    ([1], {"batch_reads": 10**6}, ValueError, "^batch_reads .*65,536"),
    ([1], {"num_parallel_reads": 1025}, ValueError, "^num_parallel_reads .*1,024"),
    ([1], {"element_spec": ()}, TypeError, "^element_spec .*component"),
    ([1], {"element_spec": [tf.TensorSpec([], tf.int64)]}, TypeError, "^element_spec .*tf.TensorSpec"),
    ([1], {"element_spec": tf.RaggedTensorSpec([None], tf.int64)}, TypeError, "^element_spec .*tf.TensorSpec"),
    ([1], {"element_spec": tf.TensorSpec([], tf.variant)}, TypeError, "^element_spec .*variant"),
    (Source(3, fails={0}), {}, KeyError, "no 0"),
  ],
)
def test_arguments(source, arguments, error, match):
  with pytest.raises(error, match=match):
    data_source(source, **arguments)


def test_an_empty_source():
  dataset = data_source([], element_spec=tf.TensorSpec([], tf.int64))
  assert len(dataset) == 0 and not list(dataset)
  with pytest.raises(ValueError, match="no elements"):
    dataset.refurbish(lambda x: x)
