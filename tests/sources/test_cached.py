"""`rtf.sources.cached` in memory: which elements are read and when, order and content, checkpoints, errors."""

import itertools
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import refurbish_tf as rtf
from support import cases
from support.checkpoints import assert_restored_at_every_step, restore, save, take, with_checkpoints
from support.datasets import in_python, with_options, without_prefetch
from support.python_sources import Batched, Source

Dataset = tf.data.Dataset
N = 12
SQUARES = [i * i for i in range(N)]


def limited(number):
  """Returns a store with room for that many numbers."""
  return rtf.CacheStore(max_bytes=8 * number)


def recorded(source=None, store=None, readers=None):
  """Returns a Python source that records its reads, and its dataset, cached."""
  source = source or Source(N)
  dataset = rtf.sources.cached(rtf.sources.data_source(source), store, num_parallel_reads=readers)
  source.asked.clear()  # Forgets the reads for the spec.
  return source, dataset


def values(dataset):
  return [int(x) for x in dataset]


def asked_by(source, dataset):
  """Returns what one pass over the dataset reads from the source, in order. Checks the elements that it yields."""
  source.asked.clear()
  assert sorted(values(dataset)) == SQUARES
  return list(source.asked)


# What is read. --------------------------------------------------------------------------------------------------------


def test_each_element_is_read_once():
  source, dataset = recorded()
  assert [asked_by(source, dataset) for _ in range(3)] == [list(range(N)), [], []]


def test_the_first_elements_stay_when_the_store_is_full():
  source, dataset = recorded(store=limited(5))
  assert [asked_by(source, dataset) for _ in range(3)] == [list(range(N)), list(range(5, N)), list(range(5, N))]


def test_refurbish_after_it_reads_only_fresh_samples_that_are_not_kept():
  store = limited(5)
  source, dataset = recorded(store=store)
  prepared = []

  train = dataset.refurbish(
    in_python(lambda x: (prepared.append(int(x) ** 0.5), x)[1]), r=2, seed=3, num_parallel_calls=None
  )
  assert sorted(asked_by(source, train)) == list(range(N))
  kept = {i for i in range(N) if i in store}
  assert len(kept) == 5
  for _ in range(4):
    prepared.clear()
    assert asked_by(source, train) == [i for i in prepared if i not in kept]
    assert len(prepared) == N / 2


@pytest.mark.parametrize("batch_reads", [1, 4])
def test_a_source_that_reads_ahead_reads_just_what_is_missing(batch_reads):
  source = Batched(N)
  store = rtf.CacheStore()
  dataset = rtf.sources.cached(rtf.sources.data_source(source, batch_reads=batch_reads), store)
  values(dataset)
  for index in (1, 2, 7, 11):
    store.remove(index)
  asked = [np.ravel(each).tolist() for each in asked_by(source, dataset)]
  assert list(itertools.chain(*asked)) == [1, 2, 7, 11]
  # The second batch has two elements, because it was requested before the indices in between were known.
  assert max(map(len, asked)) == min(batch_reads, 2)


def test_an_element_removed_while_the_source_reads_ahead_is_read_alone():
  source = Batched(N)
  store = rtf.CacheStore()
  dataset = rtf.sources.cached(rtf.sources.data_source(source, batch_reads=8), store)
  values(dataset)
  for index in (0, 1):
    store.remove(index)
  iterator = iter(without_prefetch(dataset))
  first = [int(next(iterator)) for _ in range(2)]
  # By now the source has been told that the other elements are kept.
  store.clear()
  source.asked.clear()
  assert first + values(iterator) == SQUARES
  assert sorted(np.concatenate([np.ravel(each) for each in source.asked])) == list(range(2, N))
  assert len(store) == N - 2


def test_single_elements():
  source, dataset = recorded(store=limited(1))
  assert [int(tf.data.experimental.at(dataset, i)) for i in (7, 7, 3, 3)] == [49, 49, 9, 9]
  assert source.asked == [7, 3, 3]


def test_skipped_elements_are_not_read():
  source, dataset = recorded()
  assert values(dataset.skip(9)) == [81, 100, 121] and source.asked == [9, 10, 11]
  source.asked.clear()
  assert values(dataset.shard(3, 1)) == [1, 16, 49, 100] and source.asked == [1, 4, 7]


@pytest.mark.parametrize("readers", [None, 3])
@pytest.mark.parametrize("kept", [0, 3, N])
def test_skip_after_a_source_that_reads_ahead(kept, readers):
  source = Dataset.range(N).map(lambda x: x * x, num_parallel_calls=2).prefetch(4)
  dataset = rtf.sources.cached(source, limited(max(kept, 1)), num_parallel_reads=readers)
  if kept:
    values(dataset)
  for _ in range(2):
    assert values(dataset.shard(3, 0)) == SQUARES[::3]
    assert values(dataset.skip(5).shard(2, 1)) == SQUARES[6::2]


def test_source_functions_run_in_parallel_for_each_read():
  """The barrier lets no call pass before all 64 have come."""
  barrier = threading.Barrier(64)

  def read(x):
    barrier.wait(timeout=60)
    return x

  source = Dataset.range(128).map(in_python(read), num_parallel_calls=64)
  assert values(rtf.sources.cached(source, num_parallel_reads=64)) == list(range(128))


# Order and content. ---------------------------------------------------------------------------------------------------


SOURCES = {
  "range": lambda: Dataset.range(N),
  "map": lambda: Dataset.range(N).map(lambda x: x + 1),
  "parallel map and prefetch": lambda: Dataset.range(N).map(lambda x: x + 1, num_parallel_calls=3).prefetch(2),
  "batch": lambda: Dataset.range(3 * N).map(lambda x: x + 1).batch(3, drop_remainder=True).map(tf.reduce_sum),
  "batch of a map": lambda: Dataset.range(2 * N).map(lambda x: x + 1).batch(2, drop_remainder=True),
  "zip": lambda: Dataset.zip((Dataset.range(N), Dataset.range(100, 100 + N).map(lambda x: 2 * x, 2))).map(
    lambda x, y: x + y
  ),
  "concatenate": lambda: Dataset.range(5).concatenate(Dataset.range(50, 50 + N - 5).prefetch(1)),
  "shard": lambda: Dataset.range(2 * N).shard(2, 1),
  "echo": lambda: Dataset.range(N // 2).echo(2),
  "cached": lambda: rtf.sources.cached(Dataset.range(N), limited(3)),
  "python": lambda: rtf.sources.data_source(Batched(N), batch_reads=4),
}


@cases.each_value
@pytest.mark.parametrize(("kept", "readers"), [(1, None), (5, None), (5, 3), (None, 16)])
@pytest.mark.parametrize("kind", SOURCES)
def test_the_same_samples_in_the_same_order_as_without(kind, kept, readers):
  def epochs(source):
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", rtf.PipelineWarning)  # Some sources yield batches.
      train = source.refurbish(lambda x, seed: (x, seed), r=2.5, seed=3)
    assert "by index" in rtf.describe(train)
    return [[[part.numpy().tolist() for part in each] for each in train] for _ in range(3)]

  source = SOURCES[kind]()
  size = int(tf.nest.map_structure(lambda spec: spec.shape.num_elements() or 1, source.element_spec) or 1)
  store = kept and limited(kept * size)
  cached = rtf.sources.cached(source, store, num_parallel_reads=readers)
  assert len(cached) == N and cached.element_spec == source.element_spec
  # With the fusion, the source would be read as a stream, in another order.
  assert epochs(cached) == epochs(
    with_options(SOURCES[kind](), "experimental_optimization", map_and_batch_fusion=False)
  )


def test_a_global_shuffle():
  dataset = global_shuffle_op._global_shuffle(rtf.sources.cached(Dataset.range(N), limited(5)), seed=3)
  passes = [values(dataset) for _ in range(3)]
  assert all(sorted(each) == list(range(N)) for each in passes) and passes[0] != list(range(N))


STRUCTURES = {
  "dict": {"image": tf.reshape(tf.range(N * 4), [N, 2, 2]), "label": tf.range(N)},
  "strings": (tf.constant([b"ab" * i for i in range(N)]), tf.range(N)),
  "ragged": tf.ragged.range(tf.range(N)),
  "sparse": tf.sparse.from_dense(tf.reshape(tf.range(N * 3), [N, 3])),
}


@cases.each_value
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_elements_of_any_structure(kind, on_disk, tmp_path):
  source = Dataset.from_tensor_slices(STRUCTURES[kind])
  cached = rtf.sources.cached(source, tmp_path / "store" if on_disk else None)

  def dense(dataset):
    return [
      tf.nest.map_structure(
        lambda x: np.asarray(x).tolist(),
        tf.nest.map_structure(
          lambda x: tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x, each, expand_composites=False
        ),
      )
      for each in dataset
    ]

  for _ in range(2):
    assert dense(cached) == dense(source)


# Checkpoints. ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [None, 3])
@pytest.mark.parametrize("symbolic", [False, True])
def test_restored_at_every_step(symbolic, readers, tmp_path):
  def make():
    source = Dataset.range(N).map(lambda x: x * x, num_parallel_calls=2)
    return with_checkpoints(rtf.sources.cached(source, limited(5), num_parallel_reads=readers).prefetch(2), symbolic)

  dataset = make()
  values(dataset)  # Fills this store. The restored dataset has an empty one.
  for step in cases.some(range(N + 1), 4):
    iterator = iter(dataset)
    before = take(iterator, step)
    path = save(iterator, tmp_path)
    assert before + take(restore(make(), path)) == before + take(restore(dataset, path)) == SQUARES


def test_a_checkpoint_holds_nothing_of_the_store(tmp_path):
  dataset = rtf.sources.cached(Dataset.range(100).map(lambda x: tf.fill([10_000], x)))
  for _ in dataset:
    pass
  iterator = iter(dataset)
  next(iterator)
  save(iterator, tmp_path)
  assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


def test_a_stage_after_it_is_restored_bit_for_bit(tmp_path):
  def make():
    cached = rtf.sources.cached(Dataset.range(N), limited(5))
    return cached.refurbish(lambda x, seed: tf.concat([[x], tf.cast(seed, tf.int64)], 0), r=2, seed=3).repeat(3)

  assert_restored_at_every_step(make, tmp_path)


# Errors. --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [None, 3])
def test_an_element_that_cannot_be_read(readers):
  source, dataset = recorded(Source(N, fails=(3,)), readers=readers)
  for _ in range(2):
    iterator, found = iter(dataset), []
    for index in range(N):
      if index == 3:
        with pytest.raises(tf.errors.UnknownError, match="Element 3"):
          next(iterator)
      else:
        found.append(int(next(iterator)))
    assert found == SQUARES[:3] + SQUARES[4:] and next(iterator, None) is None
  assert sorted(source.asked) == sorted([*range(N), 3])
  with pytest.raises(tf.errors.UnknownError, match="sample 3"):
    values(dataset.refurbish(lambda x: x))


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: Dataset.range(N).filter(lambda x: x > 1), "FilterDataset makes it a stream.*Dataset.cache()"),
    (
      lambda: Dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)),
      "makes it a stream",
    ),
    (lambda: Dataset.range(N).repeat(2), "RepeatDataset makes it a stream"),
    (lambda: Dataset.range(N).cache(), "makes it a stream"),
    (lambda: Dataset.range(N).refurbish(lambda x: x), "a refurbish stage"),
    (lambda: Dataset.range(N).repeat(), "infinite"),
    (lambda: Dataset.range(0), "The source of cached has no elements"),
    (lambda: Dataset.range(N).shuffle(3), "The source of cached changes its order"),
    (lambda: Dataset.range(N).map(lambda x: x, num_parallel_calls=2, deterministic=False), "deterministic=False"),
    (lambda: Dataset.range(N).shard(*2 * [tf.data.experimental.SHARD_HINT]), "Shard after cached"),
  ],
)
def test_refused_sources(make, message):
  with pytest.raises(ValueError, match=message):
    rtf.sources.cached(make())


def test_wrong_arguments():
  with pytest.raises(TypeError, match="source must be a tf.data.Dataset, got list.*data_source"):
    rtf.sources.cached([1, 2])
  with pytest.raises(TypeError, match="store must be None"):
    rtf.sources.cached(Dataset.range(N), 3)
  with pytest.raises(ValueError, match="must be tf.data.AUTOTUNE or a whole number from 1 to 1,024, got 0"):
    rtf.sources.cached(Dataset.range(N), num_parallel_reads=0)
  with pytest.raises(ValueError, match="An element takes 8 bytes, more than max_bytes=7"):
    rtf.sources.cached(Dataset.range(N), rtf.CacheStore(max_bytes=7))


def test_a_store_in_memory_serves_only_one_dataset():
  store = rtf.CacheStore()
  first = rtf.sources.cached(Dataset.range(N), store)
  values(first)
  for other in (lambda: rtf.sources.cached(Dataset.range(N), store), lambda: first.refurbish(lambda x: x, store=store)):
    with pytest.raises(ValueError, match="in use by another refurbish stage or by cached"):
      other()
  by_hand = rtf.CacheStore()
  by_hand.put(0, tf.constant(5, tf.int64))
  with pytest.raises(ValueError, match="put into it by hand"):
    rtf.sources.cached(Dataset.range(N), by_hand)


def test_the_contents_of_the_store_are_freed_with_its_dataset():
  _, dataset = recorded()
  values(dataset)
  name = dataset._store_name
  del dataset
  with pytest.raises(tf.errors.NotFoundError):
    rtf._internal.native.ops().refurbish_tf_cache_store_stats(store=name)


# What `describe` and `stats` say. -------------------------------------------------------------------------------------


def test_describe_and_stats():
  cached = rtf.sources.cached(Dataset.range(1_000), limited(300))
  values(cached)
  train = cached.refurbish(lambda x: x, r=2)
  assert (
    rtf.describe(cached)
    == """\
cached
  kept    300 of 1,000 elements, 2,400 bytes
  source  by index: only elements that are asked for and not kept are read
  store   memory, at most 2,400 bytes; 300 elements of 8 bytes take 2.4 kB"""
  )
  assert rtf.describe(train).startswith(f"{rtf.describe(cached)}\nrefurbish")
  assert not rtf.stats(cached) and len(rtf.stats(train)) == 1


def test_batches_cause_a_warning_after_it():
  cached = rtf.sources.cached(Dataset.range(N).batch(3, drop_remainder=True))
  with pytest.warns(rtf.PipelineWarning, match="yields batches"):
    cached.refurbish(lambda x: x)
