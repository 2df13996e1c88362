"""The cache store on disk: guarantees of a stage on it, runs that go on where others stopped, jobs that share one."""
import collections
import gc
import itertools
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import refurbish_op
from refurbish_tf.augment import layers
from support import cases
from support.pipelines import Pipeline, RANDOM_ACCESS, Uses, assert_whole

SOME = settings(max_examples=cases.examples(10), derandomize=True)
directories = itertools.count()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  return tmp_path_factory.mktemp("stores")


def new_path(root):
  return str(root / f"store-{next(directories)}")


def drop(pipeline):
  """Ends a run: nothing of its stage is left in the process."""
  del pipeline.dataset


def delete(path):
  """Deletes a directory into which a thread may be writing."""
  while os.path.exists(path):
    shutil.rmtree(path, ignore_errors=True)


# One job ----------------------------------------------------------------------------------------------------------------


@SOME
@given(
    kind=st.sampled_from(["range", "mapped", "stream of known length", "stream"]), n=st.integers(1, 24),
    r=st.sampled_from([1, 1.5, 2, 3, math.pi]), runs=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    large=st.booleans())
def test_runs_go_on_where_the_last_one_stopped(root, kind, n, r, runs, large):
  """G1, G2, G3 and G5 over several runs, as if they were one."""
  path = new_path(root)
  uses, total, number = Uses(r), 0, 0
  for epochs in runs:
    pipeline = Pipeline(kind, n, r, store=path, sizes=[20_000 * large] * n)
    for _ in range(epochs):
      epoch = pipeline.epoch()
      assert_whole(epoch, n)
      fresh = uses.add(epoch)
      calls = pipeline.calls()
      assert set(calls.values()) <= {1}
      if number == 0:
        assert len(calls) == n
      else:
        total += len(calls)
        assert set(calls) == set(epoch[fresh, 0])
        assert total == math.floor(number * n / r + 1e-9)
      number += 1
    drop(pipeline)


@SOME
@given(
    kind=st.sampled_from(["range", "stream of known length"]), n=st.integers(2, 24), r=st.sampled_from([1.5, 2, 3]),
    data=st.data())
def test_early_stops_removals_and_lost_stores(root, kind, n, r, data):
  """G1 and G2 whatever happens to the store; a sample prepared again is the same one."""
  path = new_path(root)
  store = rtf.CacheStore(path)
  pipeline = Pipeline(kind, n, r, store=store)
  counts, content = collections.Counter(), {}
  for _ in range(6):
    event = data.draw(st.sampled_from(["nothing", "stop early", "remove", "clear", "damage"]))
    stop = data.draw(st.integers(0, n)) if event == "stop early" else None
    if event == "remove":
      store.remove(data.draw(st.integers(0, n - 1)))
    elif event == "clear":
      store.clear()
    elif event == "damage":
      time.sleep(0.05)  # What is in memory is written.
      for file in pathlib.Path(path).glob("small-*"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    epoch = pipeline.epoch(stop)
    if stop is None:
      assert_whole(epoch, n)
    for index, *seeds in epoch.tolist():
      counts[index, *seeds[:2]] += 1
      assert counts[index, *seeds[:2]] <= math.ceil(r)
    assert len(set(epoch[:, 0])) == len(epoch)
  drop(pipeline)


@pytest.mark.parametrize("kind", RANDOM_ACCESS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_yields_what_the_store_in_memory_yields(root, kind, epochs):
  """Identity: the store decides what is prepared and never what comes out, also when it is lost between two runs.

  Only the order of that epoch differs then: that a sample is lost is found out when it is read.
  """
  memory = Pipeline(kind, 50, 3)
  expected = [memory.epoch() for _ in range(6)]
  path = new_path(root)
  disk = Pipeline(kind, 50, 3, store=path)
  for number in range(epochs):
    np.testing.assert_array_equal(disk.epoch(), expected[number])
  drop(disk)
  for name in os.listdir(path):
    if name.startswith("small-"):
      os.remove(os.path.join(path, name))
  disk = Pipeline(kind, 50, 3, store=path)
  np.testing.assert_array_equal(sorted(disk.epoch().tolist()), sorted(expected[epochs].tolist()))
  for number in range(epochs + 1, 6):
    np.testing.assert_array_equal(disk.epoch(), expected[number])
  drop(disk)


def test_second_run_prepares_what_the_schedule_evicts(root):
  path = new_path(root)
  first = Pipeline("range", 300, 3, store=path)
  for _ in range(2):
    first.epoch()
  drop(first)
  second = Pipeline("range", 300, 3, store=path)
  second.epoch()
  assert sum(second.calls().values()) == 100
  assert rtf.CacheStore(path).stats().foreign_hits == 200
  drop(second)


def test_takes_the_seed_of_the_store(root):
  path = new_path(root)
  first = Pipeline("range", 20, 2, seed=None, store=path)
  first.epoch()
  drop(first)
  second = Pipeline("range", 20, 2, seed=None, store=path)
  second.epoch()
  assert sum(second.calls().values()) == 10
  drop(second)


@pytest.mark.parametrize("samples", [
    lambda x: {"image": tf.fill([40, 40], x), "name": tf.strings.as_string(x)},
    lambda x: (tf.ragged.range(tf.stack([x, 0, 2 * x])), tf.sparse.from_dense([x, 0, x])),
    lambda x: (x % 2 == 0, tf.cast(x, tf.complex64), tf.cast(tf.fill([x % 3, 700], x), tf.bfloat16), tf.zeros([0, 3])),
    lambda x: ((), x, (tf.fill([10], tf.cast(x, tf.float32)), {"b": tf.fill([1000], tf.strings.as_string(x))})),
])
def test_keeps_samples_of_any_structure(root, samples):
  source = tf.data.Dataset.range(1, 9)
  expected = [tf.nest.map_structure(_dense, element, expand_composites=False) for element in source.map(samples)]
  dataset = source.refurbish(samples, r=4, seed=3, store=new_path(root))
  for _ in range(3):
    got = [tf.nest.map_structure(_dense, element, expand_composites=False) for element in dataset]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))
  assert rtf.stats(dataset)[0].total.cached > 0


def _dense(component):
  if isinstance(component, tf.RaggedTensor):
    return component.to_list()
  if isinstance(component, tf.SparseTensor):
    return tf.sparse.to_dense(component).numpy().tolist()
  return np.asarray(component).tolist()


def test_aligned_as_tensorflow_wants_it(root):
  """Kernels abort on tensors that are not."""
  dataset = tf.data.Dataset.range(64).refurbish(
      lambda x: (x, tf.fill([600], tf.cast(x, tf.float32)), tf.fill([100], tf.cast(x, tf.float64))),
      lambda x, a, b: tf.reduce_sum(tf.linalg.matmul(a[None], a[:, None])) + tf.cast(tf.reduce_sum(b), tf.float32),
      r=3, store=new_path(root))
  for _ in range(3):
    assert sorted(dataset.as_numpy_iterator()) == [600.0 * x * x + 100 * x for x in range(64)]


def test_limit(root):
  """G8: beyond max_bytes samples are prepared in every epoch, evenly spread, and the others as ever."""
  n = 40
  store = rtf.CacheStore(new_path(root), max_bytes=20 * 1152)  # Of a sample of 1,000 bytes.
  dataset = tf.data.Dataset.range(n).refurbish(
      lambda x: (x, tf.zeros([1000], tf.uint8)), lambda x, _: x, r=2, store=store)
  for epoch in range(6):
    assert sorted(dataset.as_numpy_iterator()) == list(range(n))
    assert store.stats().bytes <= store.max_bytes
    assert rtf.stats(dataset)[0].epochs[epoch].fresh == (n if epoch == 0 else 20 + 10)


def test_store_by_hand_is_there_in_the_next_run(root):
  path = new_path(root)
  store = rtf.CacheStore(path)
  store.put(2**20, {"a": tf.constant([1.0, 2.0]), "b": "text"})
  store.put(7, {"a": tf.constant([3.0]), "b": "more"})
  store.put(7, {"a": tf.constant([4.0]), "b": "replaced"})
  del store
  store = rtf.CacheStore(path)
  assert len(store) == 2 and 7 in store and 8 not in store
  assert store.get(2**20)["a"].numpy().tolist() == [1.0, 2.0]
  assert store.get(7)["b"].numpy() == b"replaced"
  assert store.remove(7).numpy() and 7 not in store
  assert store.verify() == (1, 0)
  with pytest.raises(tf.errors.NotFoundError, match="no sample at index 7"):
    store.get(7)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"below 2\*\*28"):
    store.put(2**28, {"a": tf.constant([4.0]), "b": "far"})


def test_structure_is_kept_when_a_put_is_refused(root):
  """Nothing wrong is written where a stage would find it, now or in the next run."""
  path = new_path(root)
  early = rtf.CacheStore(path)
  dataset = tf.data.Dataset.range(10).refurbish(lambda x: x + 1, r=1000, store=path)
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))
  with pytest.raises(ValueError, match="Got a sample of structure"):
    early.put(3, tf.constant(1.5))
  assert early.get(3).numpy() == 4
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))
  again = rtf.CacheStore(path, element_spec=dataset.element_spec)
  assert again.get(5).numpy() == 6


def test_limit_with_samples_of_different_size_after_an_early_stop(root):
  """As many are kept as without one."""
  n = 60
  sizes = [200 + 100 * (i % 7) for i in range(n)]

  def run(stops):
    path = new_path(root)
    for stop in stops:
      store = rtf.CacheStore(path, max_bytes=20_000)
      # One by one, for few to be read ahead of a stop.
      pipeline = Pipeline("range", n, 2, sizes=sizes, store=store, num_parallel_calls=None)
      pipeline.epoch(stop)
      drop(pipeline)
      del store
    return int(rtf.CacheStore(path)._agree({})["num_kept_samples"])

  kept = run([None])
  assert 10 < kept < n
  # So that the store is about full, but has not had to choose.
  for stop in range(20, 40, 2):
    assert run([stop, None]) == kept
  assert run([50, 10, None]) == kept


def test_stages_without_a_seed_take_the_same(root):
  path = new_path(root)
  store = rtf.CacheStore(path)
  seeds = {refurbish_op._seed_of(store) for _ in range(3)}
  assert len(seeds) == 1


def test_only_the_owner_may_look_inside(root):
  path = pathlib.Path(new_path(root)) / "below"
  store = rtf.CacheStore(path)
  store.put(0, tf.zeros([10]))
  store.put(1, tf.zeros([10_000]))
  expected = {"store", "state", "index", "claims", "lock", "small", "large"}
  deadline = time.monotonic() + 30
  while (names := {file.name.split("-")[0] for file in path.iterdir()}) != expected and time.monotonic() < deadline:
    time.sleep(0.05)  # What is in memory is written.
  assert names == expected
  assert stat.S_IMODE(path.stat().st_mode) == 0o700
  assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


# Several jobs -----------------------------------------------------------------------------------------------------------


class Job:
  """A stage on a store that others share, with its uses of every partially augmented sample."""

  def __init__(self, path, n, r, order_seed, kind="range"):
    self.pipeline = Pipeline(kind, n, r, seed=5, order_seed=order_seed, store=path, num_parallel_calls=None)
    self.counts = collections.Counter()
    self.n, self.r = n, r

  def epoch(self):
    """Yields after each element, to let the others come to their turn."""
    seen = []
    for element in self.pipeline.dataset:
      index, *seeds = element.numpy().tolist()
      seen.append(index)
      self.counts[index, *seeds[:2]] += 1
      assert self.counts[index, *seeds[:2]] <= math.ceil(self.r)  # G2, for each job.
      yield
    assert sorted(seen) == list(range(self.n))  # G1.

  def epochs(self, number):
    for _ in range(number):
      yield from self.epoch()


def take_turns(jobs, random):
  """Runs generators side by side, each of them a step in each round."""
  jobs = list(jobs)
  while jobs:
    random.shuffle(jobs)
    for job in list(jobs):
      if next(job, StopIteration) is StopIteration:
        jobs.remove(job)


@cases.each_value
@pytest.mark.parametrize("kind", ["range", "stream of known length"])
@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("same_order", [False, True])
def test_jobs_prepare_together_what_one_prepares_alone(root, kind, r, same_order):
  n, epochs = 400, 4
  path = new_path(root)
  jobs = [Job(path, n, r, 0 if same_order else seed, kind) for seed in range(4)]
  turns = [job.epochs(epochs) for job in jobs]
  for turn in turns:  # All in the same epoch.
    next(turn)
  take_turns(turns, np.random.default_rng(0))
  together = sum(sum(job.pipeline.calls().values()) for job in jobs)
  alone = n + (epochs - 1) * n / r
  assert alone <= together <= 1.1 * alone
  for job in jobs:
    drop(job.pipeline)


@pytest.mark.parametrize("kind", ["range", "stream of known length"])
def test_job_far_behind_harms_none(root, kind):
  """It uses what the others have left, whichever generation that is, and none of it more than r times."""
  path = new_path(root)
  ahead, behind = Job(path, 60, 2, 1, kind), Job(path, 60, 2, 2, kind)
  slow = behind.epochs(3)
  next(slow)
  for _ in ahead.epochs(10):
    pass
  prepared = sum(ahead.pipeline.calls().values())
  assert prepared <= 60 + 9 * 30
  take_turns([slow, ahead.epochs(3)], np.random.default_rng(1))
  for job in (ahead, behind):
    drop(job.pipeline)


def test_job_that_joins_begins_where_the_others_are(root):
  path = new_path(root)
  first = Job(path, 30, 3, 1)
  latest = [first.pipeline.epoch() for _ in range(4)][-1]
  late = Job(path, 30, 3, 2)
  # The same samples, finished with the seeds of the same epoch, in another order.
  joined = late.pipeline.epoch()
  assert joined.tolist() != latest.tolist() and sorted(joined.tolist()) == sorted(latest.tolist())
  assert sum(late.pipeline.calls().values()) == 0
  for job in (first, late):
    drop(job.pipeline)


JOB = """
import json, os, sys
import numpy as np, tensorflow as tf, refurbish_tf as rtf

path, order_seed, n, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
calls = []

def partial_fn(index, seed):
  def record(index):
    calls.append(int(index))
    return index
  index = tf.ensure_shape(tf.numpy_function(record, [index], tf.int64), [])
  noise = tf.random.stateless_uniform([700], seed, 0, 256, tf.int32)
  # With its own checksum.
  return index, noise, tf.reduce_sum(noise * tf.range(700)) + tf.cast(index, tf.int32)

dataset = tf.data.Dataset.range(n).refurbish(partial_fn, r=2, seed=1, order_seed=order_seed, store=path)
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(epochs):
  seen = []
  for index, noise, check in dataset.as_numpy_iterator():
    assert np.sum(noise * np.arange(700, dtype=np.int32), dtype=np.int32) + np.int32(index) == check, "wrong bytes"
    seen.append(int(index))
  assert sorted(seen) == list(range(n)), "not whole"
  print("epoch", flush=True)
print(json.dumps({"calls": len(calls), "corrupt": rtf.CacheStore(path).stats().corrupt}), flush=True)
"""


@pytest.mark.parametrize("r", [1, 1.5, 2, 3])
def test_reuse_is_bounded_for_jobs_of_different_speed_and_for_iterators_side_by_side(root, r):
  """G2: of the uses of all iterators of a job together."""
  path = new_path(root)
  jobs = [Job(path, 40, r, seed) for seed in range(3)]
  turns = [jobs[0].epochs(8), jobs[0].epochs(8), jobs[1].epochs(5), jobs[2].epochs(2)]
  steps = [9, 8, 3, 1]
  running = dict(enumerate(turns))
  while running:
    for k in list(running):
      for _ in range(steps[k]):
        if next(running[k], StopIteration) is StopIteration:
          del running[k]
          break
  for job in jobs:
    drop(job.pipeline)


def test_order_does_not_depend_on_what_upstream_reads_ahead(root):
  """G6: one job alone yields on disk the order that it yields in memory, whichever op comes first to a sample."""
  memory = Pipeline("range", 500, 2, num_parallel_calls=2)
  disk = Pipeline("range", 500, 2, num_parallel_calls=2, store=new_path(root))
  for _ in range(8):
    np.testing.assert_array_equal(disk.epoch(), memory.epoch())
  drop(disk)


class Process:
  """A job in a process of its own."""

  def __init__(self, path, order_seed, n, epochs, **options):
    self._process = subprocess.Popen(
        [sys.executable, "-c", JOB, path, str(order_seed), str(n), str(epochs)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

  def until(self, word):
    for line in self._process.stdout:
      if line.startswith(word):
        return
    pytest.fail(self._process.stderr.read())

  def go(self):
    self._process.stdin.write("\n")
    self._process.stdin.flush()

  def kill(self):
    self._process.send_signal(signal.SIGKILL)
    self._process.wait()
    self._process.communicate()

  def result(self):
    out, err = self._process.communicate(timeout=120)
    assert self._process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def test_processes_share_and_one_is_killed(root):
  n, epochs = 3000, 4
  path = new_path(root)
  processes = [Process(path, seed, n, epochs) for seed in range(3)]
  for process in processes:
    process.until("ready")
  for process in processes:
    process.go()
  processes[0].until("epoch")
  processes[0].kill()  # In its second epoch.
  results = [process.result()[0] for process in processes[1:]]
  assert all(result["corrupt"] == 0 for result in results)
  # What the one that was killed had prepared and not written is prepared again.
  assert sum(result["calls"] for result in results) <= 1.1 * (n + (epochs - 1) * n / 2)


@cases.only_exhaustive  # By default KilledProcessesLeaveNothingWrongAndNothingBehind, in C++, and the test above.
def test_killed_runs_leave_nothing_to_repair(root):
  path = new_path(root)
  random = np.random.default_rng(0)
  for _ in range(3):
    process = Process(path, 0, 2000, 50)
    process.until("ready")
    process.go()
    time.sleep(random.uniform(0, 0.7))
    process.kill()
  process = Process(path, 0, 2000, 3)
  process.go()
  result, _ = process.result()
  assert result["corrupt"] == 0
  # All of the first epoch at worst, and half of each other.
  assert result["calls"] <= 2000 + 2 * 1000


def test_disk_full(root):
  """Training goes on; what does not fit is prepared afresh; one warning."""
  path = new_path(root)
  process = Process(
      path, 0, 1000, 3,
      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY)))
  process.go()
  result, errors = process.result()
  assert 2400 < result["calls"] <= 3000 and result["corrupt"] == 0
  assert errors.count("cannot write") == 1


@pytest.mark.parametrize("kind, read", [("range", 80), ("stream", 20), ("stream", 80)])
def test_training_goes_on_without_its_directory(root, capfd, kind, read):
  """G1: all epochs are whole, with one line at most; what cannot be kept is prepared again."""
  n, path = 40, new_path(root)
  pipeline = Pipeline(kind, n, 2, sizes=[20_000] * n, store=path)
  for _ in range(read // n):
    pipeline.epoch()
  pipeline.epoch(read % n)
  delete(path)
  for _ in range(4):
    assert_whole(pipeline.epoch(), n)
  assert not os.path.exists(path)
  assert capfd.readouterr().err.count("the cache store") <= 1
  drop(pipeline)


@pytest.mark.parametrize("made_anew", [False, True])
def test_store_whose_directory_was_deleted_is_not_handed_out(root, made_anew):
  """Nobody could find again what is put into it. When nothing uses it any more the directory can be used again."""
  path = new_path(root)
  store = rtf.CacheStore(path)
  dataset = tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=store)
  list(dataset)
  delete(path)
  if made_anew:
    os.mkdir(path)
  for open_again in (
      lambda: rtf.CacheStore(path), lambda: tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=path),
      lambda: tf.data.Dataset.range(6).refurbish(tf.identity, r=2, seed=1, store=store)):
    with pytest.raises(ValueError, match="was deleted while the store was in use in this process. Drop the CacheStore"):
      open_again()
  assert sorted(map(int, dataset)) == list(range(6))  # Who has it goes on.
  del store, dataset
  gc.collect()
  store = rtf.CacheStore(path)
  assert len(store) == 0
  store.put(0, 5)
  assert int(rtf.CacheStore(path).get(0)) == 5


# Bad input --------------------------------------------------------------------------------------------------------------


def test_other_settings(root):
  path = new_path(root)

  def build(n=10, r=2, seed=1, fn=lambda x: tf.fill([3], x), **options):
    store = rtf.CacheStore(path, version="one", **options)
    return tf.data.Dataset.range(n).refurbish(fn, r=r, seed=seed, store=store)

  for _ in range(2):
    list(build())
  for options, difference in [
      ({"r": 3}, "r is 3, but it was 2"),
      ({"seed": 2}, "seed is 2, but it was 1"),
      ({"n": 11}, "num_samples is 11, but it was 10"),
      ({"fn": lambda x: tf.fill([4], x)}, r"element_spec is .*4.*, but it was .*3"),
      ({"max_bytes": 128 * 5}, "num_kept_samples is 5, but it was 10")]:
    with pytest.raises(ValueError, match=difference) as error:
      build(**options)
    assert "overwrite=True" in str(error.value) and "version=" in str(error.value)
    assert "structure" not in str(error.value)  # Which says nothing to people.
  del error  # Whose traceback holds a stage.
  gc.collect()
  with pytest.raises(ValueError, match="version is two, but it was one"):
    rtf.CacheStore(path, version="two")
  assert rtf.CacheStore(path, version="one").verify() == (10, 0)  # Nothing is lost.
  assert len(rtf.CacheStore(path, version="two", overwrite=True)) == 0


def test_samples_of_other_layers(root, monkeypatch):
  """What layers have made that drew other random numbers, as version 1 did, is refused, and nothing of it is lost."""
  path = new_path(root)

  def build(**options):
    return tf.data.Dataset.range(10).refurbish(tf.identity, r=100, seed=1, store=rtf.CacheStore(path, **options))

  with monkeypatch.context() as before:
    before.setattr(layers, "DRAWS_VERSION", 1)
    list(build())
  gc.collect()
  now = f"rtf.augment version {layers.DRAWS_VERSION}"
  assert now != "rtf.augment version 1"
  with pytest.raises(ValueError, match=f"(?s)with the layers of rtf.augment version 1, .* {now}, .*overwrite=True") as error:
    build()
  del error  # Whose traceback holds a stage.
  gc.collect()
  assert rtf.CacheStore(path)._agree({})["layers"] == "rtf.augment version 1"
  assert rtf.CacheStore(path).verify() == (10, 0)
  list(build(overwrite=True))
  assert rtf.CacheStore(path)._agree({})["layers"] == now


def test_store_by_hand_has_no_layers(root, monkeypatch):
  """What was put into it is its user's own, whatever the layers draw; also after a stage was refused on it."""
  path = new_path(root)
  store = rtf.CacheStore(path)
  store.put(0, tf.constant(1, tf.int64))
  with pytest.raises(ValueError, match="put into it by hand"):
    tf.data.Dataset.range(3).refurbish(tf.identity, store=store)
  monkeypatch.setattr(layers, "DRAWS_VERSION", layers.DRAWS_VERSION + 1)
  assert int(rtf.CacheStore(path).get(0)) == 1
  assert "layers" not in store._agree({})


def test_directory_of_others_is_left_untouched(root):
  path = root / "photographs"
  path.mkdir()
  (path / "cat.jpeg").write_text("cat")
  for overwrite in (False, True):
    with pytest.raises(ValueError, match="it holds cat.jpeg, which is not of a cache store"):
      rtf.CacheStore(path, overwrite=overwrite)
  assert os.listdir(path) == ["cat.jpeg"]
  with pytest.raises(ValueError, match="it is a file"):
    rtf.CacheStore(path / "cat.jpeg")


def test_store_of_a_newer_format_is_left_untouched(root):
  path = pathlib.Path(new_path(root))
  rtf.CacheStore(path).put(0, 1)
  text = (path / "store").read_text().replace("format 1", "format 99")
  body = text[:text.rindex("crc32c")]
  (path / "store").write_text(f"{body}crc32c {_crc32c(body.encode()):08x}\n")
  before = {file.name: file.read_bytes() for file in path.iterdir()}
  with pytest.raises(ValueError, match="format 99.*formats up to 1"):
    rtf.CacheStore(path)
  assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def _crc32c(data):
  crc = 0xffffffff
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
  return crc ^ 0xffffffff


def test_in_use(root):
  path = new_path(root)
  store = rtf.CacheStore(path)
  with pytest.raises(ValueError, match="in use in this process.*overwrite"):
    rtf.CacheStore(path, overwrite=True)
  with pytest.raises(ValueError, match="max_bytes=9223372036854775807, got 4096"):
    rtf.CacheStore(path, max_bytes=4096)
  store.put(0, 1)
  with pytest.raises(ValueError, match="put into it by hand"):
    tf.data.Dataset.range(3).refurbish(lambda x: tf.cast(x, tf.int32), store=store)


@pytest.mark.parametrize("arguments, error, message", [
    ({"path": 3}, TypeError, "path must be the name of a directory"),
    ({"path": ""}, TypeError, "path must be the name of a directory"),
    ({"path": "gs://bucket/cache"}, ValueError, "directory of a local disk, got 'gs://bucket/cache'"),
    ({"path": os.fsdecode(b"/tmp/\xff")}, ValueError, r"path must be a directory whose .* in UTF-8, got '/tmp/\\udcff'. Rename"),
    ({"path": "/tmp/\0x"}, ValueError, r"path must be the name of a directory, got '/tmp/\\x00x', which has a null"),
    ({"path": "/proc/nowhere"}, ValueError, "Cannot make the directory /proc/nowhere"),
    ({"version": "a"}, ValueError, "version and overwrite are for a store on disk"),
    ({"overwrite": True}, ValueError, "version and overwrite are for a store on disk"),
    ({"path": "x", "version": 3}, TypeError, "version must be a string"),
    ({"path": "x", "overwrite": 1}, TypeError, "overwrite must be True or False"),
])
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    rtf.CacheStore(**arguments)


@pytest.mark.parametrize("store, error", [
    ("", TypeError), ("gs://bucket/cache", ValueError), (os.fsdecode(b"/tmp/\xff"), ValueError),
    (pathlib.Path(os.fsdecode(b"/tmp/\xff/cache")), ValueError), ("/tmp/\0x", ValueError)])
def test_bad_store_of_a_stage(store, error):
  """The argument is called what it is called there, and it is told before there is a source."""
  with pytest.raises(error, match="^store must be"):
    rtf.refurbish(tf.identity, store=store)
  with pytest.raises(error, match="^store must be"):
    tf.data.Dataset.range(3).refurbish(tf.identity, store=store)


def test_directory_that_leads_to_a_name_that_is_not_in_utf_8(root):
  """Whichever part of the name it is, also where it is only seen when links are followed."""
  strange = os.fsdecode(os.fsencode(root) + b"/\xff")
  os.mkdir(strange)
  link = root / "link"
  link.symlink_to(strange)
  with pytest.raises(ValueError, match=r"path must be .* in UTF-8, got '.*/\\udcff/cache'"):
    rtf.CacheStore(link / "cache")
  assert os.listdir(strange) == []


def test_samples_that_cannot_be_stored(root):
  source = tf.data.Dataset.range(3)
  with pytest.raises(ValueError, match="cannot keep"):
    source.refurbish(lambda x: tf.data.Dataset.range(x), store=new_path(root))
  with pytest.raises(TypeError, match="order_seed must be a whole number"):
    source.refurbish(tf.identity, order_seed=0.5)
