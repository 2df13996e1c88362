"""A store in memory that ranks share by its name: prepared once, held once, and gone with the last of them."""

import collections
import itertools
import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import uuid
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import named_memory
from support import cases
from support.processes import TIMEOUT, end_of, run_forked, start_forked
from support.stores import small_disk
from support.waiting import until

N, R = 240, 2


@pytest.fixture(name="name")
def fixture_name():
  """The name of a store of which nothing is left at the end."""
  name = f"test-{uuid.uuid4().hex}"
  yield name
  assert until(lambda: not directory(name).exists(), TIMEOUT), "it was not removed"


def directory(name):
  return pathlib.Path(f"/dev/shm/refurbish_tf-{os.geteuid()}-{name}")


def shard(name, n, i, prepared, seconds=0.0, size=8):
  """A stage whose elements are the index and the seed of its generation. `prepared` counts what it prepares."""

  def prepare(index):
    time.sleep(seconds)
    with prepared.get_lock():
      prepared.value += 1
    return index

  return (
    tf.data.Dataset.range(N)
    .shard(n, i)
    .refurbish(
      lambda index, seed: (tf.numpy_function(prepare, [index], tf.int64), seed, tf.zeros([size], tf.uint8)),
      lambda index, seed, _: (tf.ensure_shape(index, []), tf.reduce_sum(tf.cast(seed, tf.int64))),
      r=R,
      seed=1,
      order_seed=i,
      store=rtf.CacheStore(name=name),
      num_parallel_calls=2,
    )
  )


def rank(name, n, i, epochs, results, together, prepared, options):
  """A process that trains on its shard. `results` gets its elements by epoch."""
  elements, stage = [], shard(name, n, i, prepared, **options)
  for _ in range(epochs):
    together.wait(TIMEOUT)
    elements.append([(int(index), int(seed)) for index, seed in stage.as_numpy_iterator()])
  results.put(elements)


def opened(name):
  rtf.CacheStore(name=name)


def hold(name, ready):
  """Keeps the store while there is no rank, as a launcher may."""
  rtf.CacheStore(name=name)
  ready.put(None)
  time.sleep(10 * TIMEOUT)


class Ranks:
  """Processes that train together. `prepared`: how often they have called `partial_fn`."""

  def __init__(self, name, n, epochs, **options):
    context = multiprocessing.get_context("forkserver")
    self._results, self._together = context.SimpleQueue(), context.Barrier(n)
    self.prepared = context.Value("i", 0)
    shared = (epochs, self._results, self._together, self.prepared, options)
    self.processes = [start_forked(rank, name, n, i, *shared) for i in range(n)]

  def finish(self):
    """Returns the elements of each epoch, over all ranks, after checks."""
    ranks = [self._results.get() for _ in self.processes]
    assert [end_of(process) for process in self.processes] == [0] * len(ranks)
    epochs = [sorted(itertools.chain(*each)) for each in zip(*ranks)]
    assert all([index for index, _ in epoch] == list(range(N)) for epoch in epochs)  # G1.
    assert max(collections.Counter(itertools.chain(*epochs)).values()) <= R  # G2.


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=cases.slow)])
def test_ranks_prepare_as_much_as_one(name, n):
  ranks = Ranks(name, n, 4)
  ranks.finish()
  assert ranks.prepared.value <= 1.02 * (N + 3 * N / R)


@cases.slow
@pytest.mark.parametrize("kill", cases.some(range(12), 2))
def test_ranks_are_killed_and_another_number_goes_on(name, kill):
  """What the killed ranks have put is found, whoever prepared it, as long as one process has the store open. `kill`:
  when, after the first epoch, at whose end it is known which samples fit, and which rank is the first."""
  draw = random.Random(kill)
  ready = multiprocessing.get_context("forkserver").SimpleQueue()
  launcher = start_forked(hold, name, ready)
  ready.get()
  ranks = Ranks(name, 2, 3, seconds=0.005)
  enough = draw.uniform(1.1, 1.4) * N
  assert until(lambda: ranks.prepared.value > enough, TIMEOUT)
  for process in draw.sample(ranks.processes, 2):
    process.kill()
    process.join()
    time.sleep(draw.uniform(0, 0.3))
  after = Ranks(name, 3, 3)
  after.finish()
  # Together they prepare as much as one process in at most five epochs.
  assert ranks.prepared.value + after.prepared.value <= 1.02 * (N + 4 * N / R)
  launcher.kill()
  launcher.join()


def test_nothing_is_left_or_found_after_the_last_process(name):
  for _ in range(2):
    ranks = Ranks(name, 2, 1)
    ranks.finish()
    assert ranks.prepared.value == N
    assert until(lambda: not directory(name).exists(), TIMEOUT)


@cases.slow
def test_what_killed_processes_have_left_is_removed(name):
  """Even if the process that removes it was killed as well, as by a batch system: whatever name is used next."""
  ready = multiprocessing.get_context("forkserver").SimpleQueue()
  process = start_forked(hold, name, ready)
  ready.get()
  removers = subprocess.run(["pgrep", "-f", str(directory(name))], capture_output=True, text=True).stdout.split()
  assert len(removers) == 1
  os.kill(int(removers[0]), signal.SIGKILL)
  (directory(name) / "store" / "left").write_text("by a killed process")
  process.kill()
  process.join()
  assert directory(name).exists()
  assert run_forked(opened, f"{name}-other") == 0
  assert not directory(name).exists()


def own_memory():
  """This process' memory in bytes, its share of what other processes have as well."""
  rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
  return 1024 * int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])


def measured(name, n, i, results, together, prepared):
  """Puts how many bytes a rank needs for two epochs, while all ranks have the store open."""
  stage = shard(name, n, i, prepared, size=2_000_000)
  before = own_memory()
  for _ in range(2):
    for _ in stage:
      pass
  together.wait(TIMEOUT)
  results.put(own_memory() - before)
  together.wait(TIMEOUT)


@cases.slow
def test_each_process_sees_to_the_removal(name):
  """The first one and what it has started are killed together, as by a batch system; the second one is killed later."""
  ready, processes = multiprocessing.get_context("forkserver").SimpleQueue(), []
  for _ in range(2):
    processes.append(start_forked(hold, name, ready))
    ready.get()
  removers = subprocess.run(["pgrep", "-f", str(directory(name))], capture_output=True, text=True).stdout.split()
  os.kill(int(removers[0]), signal.SIGKILL)
  for process in processes:
    assert directory(name).exists()
    process.kill()
    process.join()


@cases.slow
def test_memory_counts_once(name):
  """Two ranks need as much as one, with the files of the store, which are in memory."""
  context = multiprocessing.get_context("forkserver")
  taken, prepared = {}, context.Value("i", 0)
  for n in (1, 2):
    results, together = context.SimpleQueue(), context.Barrier(n + 1)
    processes = [start_forked(measured, name, n, i, results, together, prepared) for i in range(n)]
    together.wait(TIMEOUT)
    taken[n] = sum(512 * file.stat().st_blocks for file in directory(name).rglob("*"))
    taken[n] += sum(results.get() for _ in processes)
    together.wait(TIMEOUT)
    assert [end_of(process) for process in processes] == [0] * n
    assert until(lambda: not directory(name).exists(), TIMEOUT)
  assert N * 2_000_000 < taken[1] and taken[2] <= 1.1 * taken[1]


@pytest.mark.parametrize("given", [None, 2**40])
def test_a_small_file_system_makes_a_small_store(tmp_path, monkeypatch, given):
  """Containers have 64 MB. Samples that do not fit are prepared again."""
  with small_disk(tmp_path / "shm", 64 << 20) as folder:
    monkeypatch.setattr(named_memory, "FOLDER", str(folder))
    with pytest.warns(rtf.PipelineWarning, match="has 67.1 MB, so the store named 'small' holds at most 33.6 MB"):
      store = rtf.CacheStore(name="small", max_bytes=given)
    assert store.max_bytes == 32 << 20
    stage = tf.data.Dataset.range(N).refurbish(lambda i: (i, tf.zeros([600_000], tf.uint8)), r=R, seed=1, store=store)
    for _ in range(3):
      assert sorted(int(index) for index, _ in stage) == list(range(N))
    assert 0 < len(store) < N / 2
    del stage, store


@pytest.mark.parametrize("name", ["", ".x", "a/b", "a" * 101])
def test_bad_names(name):
  with pytest.raises(ValueError, match="name must be 1 to 100 letters"):
    rtf.CacheStore(name=name)


def test_bad_arguments(tmp_path, monkeypatch):
  with pytest.raises(TypeError, match="name must be a string such as 'train', got 3"):
    rtf.CacheStore(name=3)
  with pytest.raises(ValueError, match="Give only one"):
    rtf.CacheStore(tmp_path, name="train")
  monkeypatch.setattr(named_memory, "FOLDER", str(tmp_path / "missing"))
  with pytest.raises(ValueError, match="cannot be used .No such file or directory.. Give another"):
    rtf.CacheStore(name="train")


def test_a_full_file_system(tmp_path, monkeypatch):
  with small_disk(tmp_path / "shm", 64 << 20) as folder:
    monkeypatch.setattr(named_memory, "FOLDER", str(folder))
    (folder / "left").write_bytes(bytes(63 << 20))
    with pytest.raises(ValueError, match="which has 1.0[0-9] MB left"):
      rtf.CacheStore(name="full")


def of_files(path, first):
  files = np.roll([f"{i}.jpg" for i in range(20)], first)
  return tf.data.Dataset.from_tensor_slices(files).shard(2, 0).refurbish(tf.identity, seed=1, store=path)


def build(path, ready):
  stage = of_files(path, 0)
  ready.put(None)
  time.sleep(10 * TIMEOUT)
  del stage


def test_another_source_is_noticed_before_anything_is_prepared(tmp_path):
  """Ranks that list their files themselves would get each other's samples. No job that has ended is meant."""
  ready = multiprocessing.get_context("forkserver").SimpleQueue()
  process = start_forked(build, tmp_path / "store", ready)
  ready.get()
  with pytest.warns(rtf.PipelineWarning, match=f"used by process {process.pid} with a different source.*source.shard"):
    of_files(tmp_path / "store", 1)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    of_files(tmp_path / "store", 0)
    process.kill()
    process.join()
    of_files(tmp_path / "store", 1)
