"""tf.data operations before and after a refurbish stage: epochs stay whole, or an error says why not. Nothing leaks.

Structures and functions of refurbish are in test_dataset.py, options and graphs in test_dataset_graphs.py.
"""

import gc
import os
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op
from tensorflow.python.data.ops import dataset_ops

import refurbish_tf as rtf
from refurbish_tf._internal import native
from support import cases
from support.datasets import OPTIONS, CallsAtOnce, fresh, resident, stream, with_options
from support.waiting import until

Dataset = tf.data.Dataset
N = 12


def flat(dataset):
  return np.concatenate([np.ravel(element) for element in dataset.as_numpy_iterator()]).tolist()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_echo(name):
  dataset = Dataset.range(N).map(tf.identity, tf.data.AUTOTUNE, deterministic=True).echo(2).prefetch(2)
  dataset = with_options(dataset, **OPTIONS[name])
  for _ in range(2):
    assert flat(dataset) == [x for x in range(N) for _ in range(2)]
  if name == "deterministic":
    return
  dataset = Dataset.range(N).map(tf.identity, 2, deterministic=True).echo(rtf.AUTOTUNE, max_e=3)
  dataset = with_options(dataset, **OPTIONS[name])
  for _ in range(2):
    assert sorted(set(flat(dataset))) == list(range(N))
  assert rtf.stats(dataset)[0].total.fresh == 2 * N


def grouped(dataset):
  return dataset.group_by_window(lambda x: x % 3, lambda key, window: window.batch(4), window_size=4)


def bucketed(dataset):
  return (
    dataset.map(lambda x: tf.fill([x % 3 + 1], x))
    .bucket_by_sequence_length(tf.size, [2, 3], [4, 4, 4])
    .map(lambda batch: batch[:, 0])
  )


def legacy_interleave(dataset):
  return dataset.apply(tf.data.experimental.parallel_interleave(Dataset.from_tensors, cycle_length=2, sloppy=True))


# Each of these yields the elements of its input, in some order and structure.
AROUND = {
  "assert_cardinality": lambda ds: ds.apply(tf.data.experimental.assert_cardinality(N)),
  "batch, rebatch": lambda ds: ds.batch(4).rebatch(3),
  "batch, unbatch": lambda ds: ds.batch(5).unbatch(),
  "bucket_by_sequence_length": bucketed,
  "choose_from_datasets": lambda ds: Dataset.choose_from_datasets(
    [ds, Dataset.range(100, 100 + N)], Dataset.range(2).repeat(3 * N), stop_on_empty_dataset=False
  ).filter(lambda x: x < 100),
  "copy_to_device": lambda ds: ds.apply(tf.data.experimental.copy_to_device("/cpu:0")),
  "filter, take_while": lambda ds: ds.filter(lambda x: True).take_while(lambda x: True),
  "flat_map": lambda ds: ds.flat_map(Dataset.from_tensors),
  "group_by_window": grouped,
  "interleave": lambda ds: ds.interleave(Dataset.from_tensors, cycle_length=3),
  "interleave, parallel": lambda ds: ds.interleave(
    Dataset.from_tensors, cycle_length=3, num_parallel_calls=2, deterministic=False
  ),
  "interleave, legacy": legacy_interleave,
  "map_and_batch": lambda ds: ds.apply(tf.data.experimental.map_and_batch(lambda x: x, 5)),
  "padded_batch": lambda ds: ds.padded_batch(5),
  "prefetch": lambda ds: ds.prefetch(1).prefetch(tf.data.AUTOTUNE),
  "prefetch_to_device": lambda ds: ds.apply(tf.data.experimental.prefetch_to_device("/cpu:0")),
  "ragged_batch": lambda ds: ds.ragged_batch(5),
  "sample_from_datasets": lambda ds: Dataset.sample_from_datasets(
    [ds, Dataset.range(100, 100 + N)], [0.3, 0.7], seed=1, stop_on_empty_dataset=False
  ).filter(lambda x: x < 100),
  "scan": lambda ds: ds.scan(np.int64(0), lambda state, x: (state + x, x)),
  "shuffle": lambda ds: ds.shuffle(3),
  "shuffle_and_repeat": lambda ds: ds.apply(tf.data.experimental.shuffle_and_repeat(3, 1)),
  "unique": lambda ds: ds.unique(),
  "version 1": lambda ds: tf.compat.v1.data.Dataset.zip((ds,)).map(lambda x: x),
  "window": lambda ds: ds.window(5).flat_map(lambda window: window),
  "zip": lambda ds: Dataset.zip(ds, Dataset.counter(), Dataset.range(100)).map(lambda x, *_: x),
}


@cases.each_value
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("final", [False, True])
def test_around_the_stage(name, final):
  for source in (Dataset.range(N), stream(N)):
    dataset = AROUND[name](source.refurbish(tf.identity, tf.identity if final else None, r=2, seed=1))
    for _ in range(3):
      assert sorted(flat(dataset)) == list(range(N))
    assert fresh(dataset) == [N, N // 2, N // 2]


@pytest.mark.parametrize("name", sorted(AROUND.keys() - {"assert_cardinality"}))
def test_around_echo(name):
  found = flat(AROUND[name](Dataset.range(N).echo(2)))
  assert sorted(found) == sorted(list(range(N)) * (1 if name == "unique" else 2))


FREEZE = {
  "cache": lambda ds, directory: ds.cache(),
  "cache on disk": lambda ds, directory: ds.cache(str(directory / "cache")),
  "snapshot": lambda ds, directory: ds.snapshot(str(directory / "snapshot")),
}


@pytest.mark.parametrize("kind", FREEZE)
def test_a_cache_after_the_stage_keeps_its_first_epoch(tmp_path, kind):
  """As documented, the same whole epoch always comes, because the stage is not read again. Before it, caches work."""
  dataset = FREEZE[kind](Dataset.range(N).refurbish(tf.identity, r=2, seed=1), tmp_path)
  epochs = [flat(dataset) for _ in range(3)]
  assert sorted(epochs[0]) == list(range(N)) and epochs[1] == epochs[2]
  assert fresh(dataset) == [N]
  (tmp_path / "before").mkdir()
  before = FREEZE[kind](Dataset.range(N), tmp_path / "before").refurbish(tf.identity, r=2, seed=1)
  for _ in range(3):
    assert sorted(flat(before)) == list(range(N))
  assert fresh(before) == [N, N // 2, N // 2]


def test_no_random_access():
  """A place has a different sample in each epoch; the error says so."""
  dataset = Dataset.range(N).refurbish(tf.identity)
  asks = (
    lambda: tf.data.experimental.at(dataset, 0),
    lambda: tf.data.experimental.at(dataset.map(tf.identity).batch(2), 0),
    lambda: list(global_shuffle_op._global_shuffle(dataset)),
  )
  for ask in asks:
    with pytest.raises(tf.errors.OpError, match="refurbish .*order"):
      ask()


def test_iterators_in_functions():
  """A function of an iterator or a dataset is traced once; later calls read on."""
  traces = []

  @tf.function
  def three(iterator):
    traces.append(iterator)
    return tf.stack([next(iterator) for _ in range(3)])

  @tf.function
  def total(dataset):
    traces.append(dataset)
    return dataset.reduce(tf.constant(0, tf.int64), tf.add)

  dataset = Dataset.range(N).refurbish(tf.identity, tf.identity, r=2, seed=1)
  iterator = iter(dataset.repeat(2))
  found = np.concatenate([three(iterator) for _ in range(2 * N // 3)])
  assert sorted(found[:N]) == sorted(found[N:]) == list(range(N))
  for _ in range(3):
    assert int(total(dataset)) == N * (N - 1) // 2
  assert len(traces) == 2
  assert fresh(dataset) == [N] + 4 * [N // 2]


def epochs_known(name):
  """Returns how many epochs the stage of this name has begun, or 0 if it no longer exists."""
  return len(native.rows(native.ops().refurbish_tf_refurbish_counts(stage=name)))


@pytest.mark.parametrize(
  "use",
  [
    lambda ds: list(ds),
    lambda ds: list(ds.take(3)),
    lambda ds: next(iter(ds.repeat().prefetch(2))),
    lambda ds: list(Dataset.zip(ds, ds.batch(3))),
    lambda ds: ds.reduce(np.int64(0), tf.add),
    lambda ds: rtf.stats(ds),
    lambda ds: ds.cardinality(),
  ],
  ids=["epoch", "stopped", "repeated", "zipped", "reduced", "counted", "not read"],
)
def test_a_dropped_stage_is_gone(use):
  """Stage and store are freed immediately, not only when memory runs short."""
  dataset = Dataset.range(N).refurbish(tf.identity, r=2, seed=1)
  name = dataset.refurbish_stage
  use(dataset)
  list(dataset)
  assert epochs_known(name) > 0
  del dataset
  gc.collect()
  assert epochs_known(name) == 0


def test_a_stage_lives_as_long_as_its_users():
  dataset = Dataset.range(N).refurbish(tf.identity, r=2, seed=1)
  name = dataset.refurbish_stage
  batched = dataset.batch(2)
  iterator = iter(batched)
  next(iterator)
  del dataset
  gc.collect()
  assert epochs_known(name) == 1
  del batched
  gc.collect()
  assert epochs_known(name) == 1
  assert len(list(iterator)) == N // 2 - 1
  del iterator
  gc.collect()
  assert epochs_known(name) == 0


def test_a_dropped_store_is_gone(tmp_path):
  """Samples in memory are freed when both store and stage are gone; a store on disk closes its files."""
  store = rtf.CacheStore()
  dataset = Dataset.range(N).refurbish(tf.identity, r=100, seed=1, store=store)
  list(dataset)
  del dataset
  gc.collect()
  assert len(store) == N
  files = len(os.listdir("/proc/self/fd"))
  for _ in range(3):
    dataset = Dataset.range(N).refurbish(tf.identity, r=100, seed=1, store=tmp_path / "store")
    list(dataset)
    assert len(os.listdir("/proc/self/fd")) > files
    del dataset
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files


LEAVING_NOTHING = {
  "refurbish on disk": lambda source, path: source.refurbish(
    tf.identity, r=2, seed=1, num_parallel_calls=2, store=path
  ),
  "refurbish, parallel": lambda source, path: source.refurbish(tf.identity, tf.identity, r=2, seed=1).prefetch(1),
  "echo": lambda source, path: source.echo(2).prefetch(1),
  "adaptive echo": lambda source, path: source.echo(rtf.AUTOTUNE, max_e=2),
  "offload": lambda source, path: source.map(lambda x: tf.reshape(x[:960_000], [400, 800, 3])).offload(
    [rtf.augment.random_flip()], 1
  ),
}


@cases.slow
@pytest.mark.parametrize("kind", LEAVING_NOTHING)
def test_many_datasets_leave_nothing(tmp_path, kind):
  """Datasets that are created, read, stopped and dropped leave no thread, file or memory."""
  source = Dataset.range(4).map(lambda x: tf.fill([1_000_000], tf.cast(x, tf.uint8)))
  # Rewriting takes most of the time and is not under test.
  dataset = with_options(
    LEAVING_NOTHING[kind](source, tmp_path / "store"), "experimental_optimization", apply_default_optimizations=False
  )
  dataset = with_options(dataset, "autotune", enabled=False)
  spec, graph = dataset.element_spec, dataset._as_serialized_graph()
  del dataset

  def make_and_read(number):
    # A graph is used, because tracing would take memory in TensorFlow.
    for i in range(number):
      dataset = dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)
      iterator = iter(dataset)
      for _ in range(1 + i % 4):
        next(iterator)
      del dataset, iterator
    gc.collect()

  make_and_read(100 if cases.exhaustive else 20)
  time.sleep(0.5)  # Threads end a little later than the iterators they worked for.
  before = {"threads": len(os.listdir("/proc/self/task")), "files": len(os.listdir("/proc/self/fd"))}
  memory = resident()
  make_and_read(200 if cases.exhaustive else 60)
  assert until(lambda: len(os.listdir("/proc/self/task")) <= before["threads"], 30)
  assert len(os.listdir("/proc/self/fd")) <= before["files"]
  # One leaked element per dataset would take more than 60 MB.
  assert resident() - memory < 40 * 2**20


STAGES = {
  "refurbish": lambda dataset: dataset.refurbish(tf.identity, seed=1),
  "echo": lambda dataset: dataset.echo(2),
  "adaptive echo": lambda dataset: dataset.echo(rtf.AUTOTUNE),
  "offload": lambda dataset: dataset.map(lambda _: tf.zeros([2, 2, 3], tf.uint8)).offload(
    [rtf.augment.random_flip()], 1
  ),
}


@pytest.mark.parametrize("kind", STAGES)
def test_the_autotuner_is_off_unless_the_user_has_it_on(kind):
  """If it is on, dropping an iterator waits up to a minute for the autotuner's thread."""

  def autotune(dataset):
    options = dataset.options().autotune
    return options.enabled, options.initial_parallelism

  assert autotune(STAGES[kind](Dataset.range(3)).batch(2)) == (False, 1024)
  on = with_options(Dataset.range(3), "autotune", enabled=True)
  assert autotune(STAGES[kind](on).batch(2)) == (True, None)
  assert autotune(with_options(STAGES[kind](Dataset.range(3)), "autotune", enabled=True))[0] is True
  assert autotune(STAGES[kind](with_options(Dataset.range(3), "autotune", initial_parallelism=3))) == (False, 3)


@pytest.mark.parametrize("kind", ["echo", "adaptive echo"])
def test_an_echo_in_a_function_reads_the_autotuners_options(kind):
  @tf.function
  def count():
    total = tf.constant(0, tf.int64)
    for _ in STAGES[kind](with_options(Dataset.range(3), "autotune", enabled=True)).take(3):
      total += 1
    return total

  assert count() == 3


@pytest.mark.parametrize("threads", [2, 6])
def test_autotune_of_other_stages_is_the_size_of_the_thread_pool(threads):
  calls = CallsAtOnce(seconds=0.01)
  source = Dataset.range(60).map(calls, tf.data.AUTOTUNE)
  list(with_options(source.refurbish(tf.identity, seed=1), "threading", private_threadpool_size=threads))
  assert 1 < calls.most <= threads
