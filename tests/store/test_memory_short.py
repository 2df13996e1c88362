"""While the machine is short of memory, stores in memory keep less, and the elements stay the same (G8)."""

import contextlib
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine
from support import cases, memory as machine_memory
from support.memory import NONE, PLENTY, SHORT
from support.pipelines import make_source

N = 300
# A store reads the clock once in this number of uses.
FEW = 32


@pytest.fixture
def memory(monkeypatch, tmp_path):
  with machine_memory.free_memory(monkeypatch, tmp_path) as found:
    yield found


def partial_fn(index, seed):
  return tf.stack([index, tf.random.stateless_uniform([], seed, 0, 2**40, tf.int64)])


def stage(stream=False, **options):
  # With one call, no result waits for a slow one before it, so few are prepared ahead.
  return make_source("stream" if stream else "range", N).refurbish(
    partial_fn, r=3, seed=1, shuffle_buffer_size=50, num_parallel_calls=1, **options
  )


def epoch(dataset, at=None, do=None):
  """Returns the elements of an epoch; calls `do` after `at` elements."""
  found = []
  for element in dataset:
    if len(found) == at:
      do()
    found.append(element.numpy().tolist())
  return found


def epochs_of(dataset):
  return [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs], [
    epoch.missing for epoch in rtf.stats(dataset)[0].epochs
  ]


@cases.each_value
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("free", [SHORT, NONE])
def test_the_same_samples_in_the_same_order(memory, free, stream):
  """G1, G2, G6 and G7 hold, whatever is kept. Dropped samples are prepared again until memory is free again.

  In a stream, a sample that is prepared again comes at its position in the stream."""
  same = sorted if stream else list
  plain, short = stage(stream), stage(stream)
  expected = [epoch(plain) for _ in range(8)]
  states = []
  assert epoch(short, at=N // 2, do=lambda: memory.set(free)) == expected[0]
  for number in range(1, 4):
    states.append(short.saved_state())
    assert same(epoch(short)) == same(expected[number])
  memory.set(PLENTY)
  for number in range(4, 8):
    assert same(epoch(short)) == same(expected[number])
  assert short.saved_state() == plain.saved_state()
  at = {"next_epoch": 0, "scheduled": 0}
  assert [{**state, **at} for state in states] == [{**plain.saved_state(), **at}] * 3
  missing = epochs_of(short)[1]
  assert missing[1] and (stream or all(missing[2:4])) and not missing[0] and not any(missing[6:])
  if free == SHORT:
    # When memory became short, half of the samples were prepared; more than a third of them had their last use.
    assert all(N - each > N // 4 for each in epochs_of(short)[0][1:4])
  else:
    # All samples were dropped, and none is kept.
    assert epochs_of(short)[0][2:4] == [N, N]
  assert not any(epochs_of(plain)[1])


def test_short_memory_causes_one_python_warning(memory):
  """A PipelineWarning says how many samples are kept and what to do. While memory is free there is no warning."""
  dataset = stage()
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    epoch(dataset)
    assert not caught
    memory.set(SHORT)
    store = rtf.CacheStore()
    dataset = stage(store=store)
    for _ in range(3):
      epoch(dataset)
      memory.set(SHORT)
  [warning] = caught
  assert warning.category is rtf.PipelineWarning
  for text in ("samples (0 MiB)", "can still use 30", "CacheStore(max_bytes=...)", "directory"):
    assert text in str(warning.message)
  # The samples put before the store read the clock again, after 32 uses.
  assert len(store) <= 64


@pytest.mark.parametrize("free", [SHORT, NONE])
def test_the_limit_still_decides_how_many_are_kept(memory, free):
  """If the first epoch finds out how many samples fit, short memory in that epoch does not change the number."""
  states = []
  for each in (PLENTY, free):
    dataset = tf.data.Dataset.range(N).refurbish(
      lambda index: tf.fill([1 + index % 5], index), r=3, seed=1, store=rtf.CacheStore(max_bytes=8 * N)
    )
    memory.set(PLENTY)
    epoch(dataset, at=N // 2, do=lambda: memory.set(each))
    states.append(dataset.saved_state())
  assert states[0] == states[1]


def test_an_epoch_of_hits_sees_that_memory_is_very_short(memory):
  store = rtf.CacheStore()
  dataset = tf.data.Dataset.range(N).refurbish(lambda index: index, r=1e6, store=store)
  epoch(dataset)
  memory.set(NONE)
  epoch(dataset)
  assert not len(store)


def test_put_by_hand(memory):
  store = rtf.CacheStore()
  for index in range(2 * FEW):
    store.put(index, index)
  memory.set(SHORT)
  for index in range(FEW):
    assert int(store.get(index)) == index
  with pytest.raises(tf.errors.ResourceExhaustedError, match="memory is short.*holds 256 bytes.*directory"):
    store.put(1000, 1)
  # A sample may still be replaced, or put after another one was removed.
  store.put(3, 4)
  store.remove(5)
  store.put(1000, 1)
  assert len(store) == 2 * FEW
  memory.set(PLENTY)
  for _ in range(FEW):
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
      store.put(1001, 1)
  store.put(1002, 1)


def test_cached_rereads_elements_that_do_not_fit(memory):
  reads = tf.Variable(tf.zeros([N], tf.int64))

  def read(index):
    reads.scatter_nd_add([[index]], [1])
    return index

  elements = rtf.sources.cached(tf.data.Dataset.range(N).map(read))
  assert epoch(elements, at=N // 2, do=lambda: memory.set(SHORT)) == list(range(N))
  for _ in range(2):
    assert epoch(elements) == list(range(N))
  once = np.sum(reads.numpy() == 1)
  assert N // 2 <= once <= N // 2 + 4 * FEW and np.sum(reads.numpy() == 3) == N - once
  # Although nothing is put, the store notices that it must drop its samples.
  memory.set(NONE)
  epoch(elements)
  epoch(elements)
  assert np.min(reads.numpy()) > 1


def test_the_memory_of_the_samples_is_predicted(memory):
  described = rtf.describe(stage()).splitlines()
  assert "  store   memory, without a limit; 200 samples of 16 bytes take 3.2 kB" in described
  assert "take" not in rtf.describe(stage(stream=True))
  large = tf.data.Dataset.range(N).refurbish(lambda index: tf.zeros([2**28], tf.uint8), r=2)
  assert (
    "150 samples of 268 MB take 40.3 GB, and memory now has room for 27.9 GB: the rest is prepared again"
    in rtf.describe(large)
  )
  elements = rtf.sources.cached(tf.data.Dataset.range(N).map(lambda index: tf.zeros([2**28], tf.uint8)))
  assert "300 elements of 268 MB take 80.5 GB, and memory now has room for 27.9 GB: the rest is read" in rtf.describe(
    elements
  )
  assert "take" not in rtf.describe(rtf.sources.cached(tf.data.Dataset.range(N).map(tf.as_string)))
  assert machine.room_for_samples() == pytest.approx(PLENTY - 4 * 2**30, abs=2**26)
  memory.set(SHORT)
  assert machine.free_memory() == pytest.approx(SHORT, abs=2**26) and machine.room_for_samples() == 0


# Small samples are in slabs. Large ones are in TensorFlow's own pool, which keeps freed memory.
@pytest.mark.parametrize("size", cases.some([3_000, 150_000, 600_000], 2))
def test_drops_as_many_bytes_as_memory_is_short(memory, size):
  machine_memory.check_dropped(size, lambda short: memory.set(2 * 2**30 - short))


def test_container_memory_limits_the_number_of_samples(memory, tmp_path):
  for name, text in {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(2**20)}.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match="has 1000000 elements; refurbish takes at most 209715, the number"):
    tf.data.Dataset.range(1_000_000).refurbish(partial_fn)
