"""CacheStore as the store of a stage: its samples can be read, put and removed during training, and belong to one
stage."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, datasets
from support.pipelines import make_source
from support.stores import address

N = 12


class Stage:
  """A stage over 0 ... N - 1 whose partial_fn returns 10 * x + offset and counts its calls."""

  def __init__(self, store, offset=0, stream=False, **options):
    self.offset = offset
    self.calls = tf.Variable(tf.zeros([N], tf.int64))
    self.dataset = make_source("stream" if stream else "range", N).refurbish(
      self.partial_fn, store=store, seed=1, **options
    )

  def partial_fn(self, index):
    self.calls.scatter_nd_add([[index]], [1])
    return 10 * index + self.offset

  def epoch(self):
    values = list(self.dataset.as_numpy_iterator())
    assert sorted(values) == [10 * i + self.offset for i in range(N)]
    return values

  @property
  def stats(self):
    return datasets.stats(self.dataset)


@pytest.mark.parametrize("stream", [False, True])
def test_store_of_a_stage_shows_its_samples(stream):
  """The cached samples can be read, by their positions in the source."""
  store = rtf.CacheStore()
  stage = Stage(store, r=100, stream=stream)
  assert len(store) == 0
  stage.epoch()
  assert len(store) == N
  assert [int(store.get(i)) for i in range(N)] == [10 * i for i in range(N)]
  assert store.element_spec == tf.TensorSpec([], tf.int64)
  assert store.stats().bytes == 8 * N == stage.stats.total.bytes
  assert "shape=()" in repr(store)


@pytest.mark.parametrize("stream", [False, True])
def test_clear_and_remove_in_mid_training(stream):
  """Removed samples, and only those, are prepared again, and the epoch stays whole."""
  store = rtf.CacheStore()
  # In these epochs the schedule evicts no sample.
  stage = Stage(store, r=1000, stream=stream)
  stage.epoch()
  calls = N
  for stop in cases.some(range(N + 1), 4):
    for clear in (False, True):
      assert len(store) == N
      iterator = iter(stage.dataset)
      seen = [int(next(iterator)) for _ in range(stop)]
      if clear:
        store.clear()
        calls += N
      else:
        calls += sum(bool(store.remove(i)) for i in range(0, N, 2))
      seen += [int(value) for value in iterator]
      assert sorted(seen) == [10 * i for i in range(N)]
      # Prepares the samples that were removed after their use.
      stage.epoch()
      assert int(tf.reduce_sum(stage.calls)) == calls


def test_put_in_mid_training():
  """A sample that replaces a cached one is used from then on, until the cached one would have been evicted."""
  store = rtf.CacheStore()
  stage = Stage(store, r=100)
  stage.epoch()
  store.put(3, tf.constant(-1, tf.int64))
  assert sorted(stage.dataset.as_numpy_iterator()) == sorted([10 * i for i in range(N) if i != 3] + [-1])
  with pytest.raises(ValueError, match="each kind"):
    store.put(3, "three")
  with pytest.raises(ValueError, match="each kind"):
    store.put(3, tf.constant([30], tf.int64))


def test_samples_put_before_the_stage_was_built():
  """Cached samples must come from partial_fn, so a store with other samples is refused until it is cleared."""
  store = rtf.CacheStore()
  store.put(0, "put by hand")
  with pytest.raises(ValueError, match="by hand"):
    Stage(store)
  store.clear()
  stage = Stage(store, r=2)
  stage.epoch()
  assert stage.stats.epochs[0].fresh == N


def test_two_stages_at_once_are_refused():
  """Two live stages cannot use one store, because their samples have the same indices; the first is not disturbed."""
  store = rtf.CacheStore()
  first = Stage(store, r=100)
  first.epoch()
  with pytest.raises(ValueError, match="another refurbish stage"):
    Stage(store, offset=1)
  with pytest.raises(ValueError, match="another refurbish stage"):
    tf.data.Dataset.range(N).refurbish(tf.as_string, store=store)
  first.epoch()
  assert first.stats.total.fresh == N
  assert [int(store.get(i)) for i in range(N)] == [10 * i for i in range(N)]


@pytest.mark.parametrize("stream", cases.some([False, True], 1))
def test_a_store_whose_stage_is_gone(stream):
  """The store can be read, and used by another stage. That stage never gets the former stage's samples and may have
  another type."""
  store = rtf.CacheStore()
  first = Stage(store, r=100, stream=stream)
  first.epoch()
  del first
  gc.collect()
  assert [int(store.get(i)) for i in range(N)] == [10 * i for i in range(N)]
  second = Stage(store, offset=1, r=100, stream=stream)
  for _ in range(3):
    second.epoch()
  assert [epoch.fresh for epoch in second.stats.epochs] == [N, 0, 0]
  del second
  gc.collect()
  third = tf.data.Dataset.range(N).refurbish(tf.as_string, store=store, r=100)
  for _ in range(2):
    assert sorted(third.as_numpy_iterator()) == sorted(str(i).encode() for i in range(N))
  assert store.element_spec == tf.TensorSpec([], tf.string)


def test_a_stage_keeps_the_store_alive():
  """The samples stay when the CacheStore object is deleted."""
  store = rtf.CacheStore()
  stage = Stage(store, r=100)
  stage.epoch()
  del store
  gc.collect()
  stage.epoch()
  assert stage.stats.total.fresh == N


def test_max_bytes_smaller_than_a_sample():
  """The error has both numbers and a remedy. It comes when the stage is built if the size is known, otherwise at the
  first sample."""
  with pytest.raises(ValueError, match="8 bytes.*max_bytes=7"):
    Stage(rtf.CacheStore(max_bytes=7))
  store = rtf.CacheStore(max_bytes=31)
  dataset = tf.data.Dataset.range(5).refurbish(lambda index: tf.fill([index], index), store=store, seed=1)
  with pytest.raises(tf.errors.InvalidArgumentError, match="sample 4 .*32 bytes.*max_bytes=31"):
    list(dataset)


@pytest.mark.parametrize("size", [1000, 2000])
def test_cached_samples_of_a_stage_are_not_copied(size):
  """In every epoch an element is the buffer that partial_fn returned or, for a small sample, the copy made when it was
  put."""
  store = rtf.CacheStore()
  dataset = tf.data.Dataset.range(4).refurbish(lambda index: (index, tf.fill([size], index)), r=100, store=store)
  for _ in range(2 if size == 1000 else 1):
    first = {int(index): value for index, value in dataset}
  assert {i: address(store.get(i)[1]) for i in range(4)} == {i: address(value) for i, value in first.items()}
  assert {int(index): address(value) for index, value in dataset} == {i: address(value) for i, value in first.items()}


class Arrays:
  """Large NumPy arrays that TensorFlow uses without a copy, and how many of them are still alive."""

  SIZE, PART = 1 << 16, slice(256, 512)

  def __init__(self):
    self._whole = []

  def make(self, x):
    memory = np.zeros(self.SIZE + 64, np.uint8)
    self._whole.append(weakref.ref(memory))
    array = memory[-memory.ctypes.data % 64 :][: self.SIZE]
    array[:] = x
    return array

  def tensor(self, x):
    return tf.ensure_shape(tf.numpy_function(self.make, [x], tf.uint8), [self.SIZE])

  def held(self):
    # Arrays released on a thread that does not run Python are freed by the next call.
    tf.numpy_function(lambda: np.int64(0), [], tf.int64)
    return sum(array() is not None for array in self._whole)


VIEWS = {
  "slice": lambda arrays, x: arrays.tensor(x)[arrays.PART],
  "slice in numpy": lambda arrays, x: tf.ensure_shape(
    tf.numpy_function(lambda x: arrays.make(x)[arrays.PART], [x], tf.uint8), [256]
  ),
  "components": lambda arrays, x: tuple(tf.split(arrays.tensor(x), 256)[:2]),
  "ragged": lambda arrays, x: tf.RaggedTensor.from_row_lengths(arrays.tensor(x)[arrays.PART], [56, 200]),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_cached_view_does_not_keep_its_base_alive(view):
  """A store counts the memory that it holds, and an element keeps no memory but its own alive."""
  arrays = Arrays()
  sample = lambda x: VIEWS[view](arrays, tf.cast(x, tf.uint8))
  expected = [np.full(256, i) if view == "ragged" else np.ravel(value) for i, value in enumerate(map(sample, range(4)))]
  store = rtf.CacheStore()
  source = tf.data.Dataset.range(4)
  for dataset in (
    source.refurbish(sample, r=100, store=store, num_parallel_calls=None),
    source.refurbish(tf.identity, sample, num_parallel_calls=None),
    # The same holds through the shuffle buffer of a stream.
    source.map(sample).filter(lambda *_: True).refurbish(lambda *x: x if x[1:] else x[0], num_parallel_calls=None),
  ):
    for value in dataset:
      assert arrays.held() == 0
      value = value.values if view == "ragged" else value
      assert any(np.array_equal(np.ravel(value), other) for other in expected)
  assert len(store) == 4 and (view == "ragged" or store.stats().bytes == 4 * np.size(expected[0]))


def test_a_view_given_to_put_is_copied():
  """A later write into the array does not change the store."""
  arrays = Arrays()
  store = rtf.CacheStore()
  array = arrays.make(1)
  store.put(0, array[arrays.PART])
  whole = tf.fill([arrays.SIZE], tf.constant(2, tf.uint8))
  part = whole[arrays.PART]
  store.put(1, part)
  assert address(part) - address(whole) == 256 and address(store.get(1)) != address(part)
  texts = rtf.CacheStore()
  texts.put(0, tf.constant(["a", "b", "c" * 100, "d"])[1:3])
  array[:] = 7
  del array
  assert arrays.held() == 0
  assert [np.unique(store.get(i)).tolist() for i in range(2)] == [[1], [2]]
  assert texts.get(0).numpy().tolist() == [b"b", b"c" * 100]


def test_counts_of_a_store_in_training():
  """Hits are the cached samples; evictions are the samples that had their last use."""
  store = rtf.CacheStore()
  stage = Stage(store, r=2)
  for _ in range(4):
    stage.epoch()
  stats, total = store.stats(), stage.stats.total
  assert stats.hits == total.cached == 3 * N // 2
  assert stats.evictions == total.evicted == 3 * N // 2
  assert stats.entries == N // 2 and stats.bytes == 8 * N // 2
