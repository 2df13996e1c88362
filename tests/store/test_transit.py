"""Jobs use each other's samples that their store does not keep, and each has the guarantees of a single job.

The jobs run alternately in one process. test_sharing.py tests how much they save.
"""

import collections
import gc
import math
import pathlib
import random
import re
import threading
import time

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, schedule
from support.checkpoints import final_fn, partial_fn, restore, save, take
from support.datasets import stats
from support.pipelines import make_source
from support.stores import drop, new_path

pytestmark = cases.slow

SEED = 5
# The bytes of a record in a store: its header, and three words for the sample.
RECORD = 128


class Job:
  """A stage whose samples can be checked, because each has its index and the seed of its generation."""

  def __init__(self, path, n, r, order_seed, max_bytes, *, random_access=True, parallel=None, **options):
    self.n, self.r = n, r
    self.uses = collections.Counter()
    # There is no shuffle buffer, because other jobs would wait for the samples in it.
    kind = {True: "range", False: "stream of known length", "unknown": "stream"}[random_access]
    self.dataset = make_source(kind, n).refurbish(
      partial_fn,
      final_fn,
      r,
      seed=SEED,
      order_seed=order_seed,
      num_parallel_calls=parallel,
      shuffle_buffer_size=1,
      store=rtf.CacheStore(path, max_bytes=max_bytes),
      **options,
    )

  def epoch(self):
    """Yields after each element to let the other jobs run. Checks the epoch."""
    seen, final_seeds = [], set()
    for element in self.dataset:
      index, *seeds = element.numpy().tolist()
      partial_seed, final_seed = seeds[:2], tuple(seeds[2:])
      seen.append(index)
      final_seeds.add(final_seed)
      # Any generation is right, because damage to the claims may raise it.
      assert schedule.index_of(SEED, schedule.PARTIAL_FN, partial_seed) == index, f"wrong contents of sample {index}"
      self.uses[(index, *partial_seed)] += 1
      assert self.uses[(index, *partial_seed)] <= math.ceil(self.r)  # G2, for each job.
      yield index
    assert sorted(seen) == list(range(self.n))  # G1.
    assert len(final_seeds) == self.n

  def epochs(self, number):
    for _ in range(number):
      yield from self.epoch()

  @property
  def by_epoch(self):
    return stats(self.dataset).epochs

  @property
  def stats(self):
    return stats(self.dataset).total


def written():
  """Waits until the store's thread has written the samples put, which it does after 10 ms."""
  time.sleep(0.02)


def run(jobs, chance, between=None):
  """Runs generators alternately, some elements at a time."""
  jobs = list(jobs)
  while jobs:
    job = chance.choice(jobs)
    for _ in range(chance.randrange(1, 40)):
      if next(job, StopIteration) is StopIteration:
        jobs.remove(job)
        break
    if between is not None:
      between()


@pytest.mark.parametrize("r", [1, 2.5])
@pytest.mark.parametrize("random_access", [True, False])
def test_a_sample_of_another_job_is_used_once(root, r, random_access):
  path, n = new_path(root), 600
  jobs = [Job(path, n, r, seed, n // 2 * RECORD, random_access=random_access) for seed in range(2)]
  first, second = (job.epochs(2) for job in jobs)
  next(first), next(second)
  for _ in range(n // 2):
    next(first)
  written()
  for _ in range(n // 4):
    next(second)
  assert jobs[1].stats.from_other_jobs > 20
  run([first, second], random.Random(1))
  for job in jobs:
    assert job.stats.fresh + job.stats.cached == 2 * n
    drop(job)


def test_samples_used_in_the_first_pass_are_not_taken_from_the_ring(root):
  """The first pass of a stream of unknown length follows no schedule."""
  path, n, r = new_path(root), 300, 2
  job, other = (Job(path, n, r, seed, n // 2 * RECORD, random_access="unknown") for seed in range(2))
  collections.deque(job.epoch(), maxlen=0)
  beside, turns = other.epochs(3), job.epochs(2)
  for step in range(3 * n):
    next(beside, None)
    if step > n // 2:
      next(turns, None)
    if step % 20 == 0:
      written()
  assert job.stats.from_other_jobs > 0
  assert len({index for (index, *_), times in job.uses.items() if times > 1}) <= num_kept_by(job)
  drop(job)
  drop(other)


def test_the_ring_is_used_after_the_first_pass_of_a_source_of_unknown_length(root):
  path, n, r = new_path(root), 300, 2
  first = Job(path, n, r, 0, n // 2 * RECORD, random_access="unknown")
  collections.deque(first.epoch(), maxlen=0)
  drop(first)
  gc.collect()
  jobs = [Job(path, n, r, seed, n // 2 * RECORD, random_access="unknown") for seed in (1, 2)]
  turns = [job.epochs(2) for job in jobs]
  assert all("room for 9 in transit" in str(rtf.describe(job.dataset)) for job in jobs)
  run(turns, random.Random(1))
  assert rtf.CacheStore(path).stats().transit_bytes_put > 0
  for job in jobs:
    drop(job)


def test_a_stream_does_not_skip_samples_that_are_not_kept(root):
  """A stream prepares a sample even if the store happens to have it."""
  path, n = new_path(root), 120
  job = Job(path, n, 2, 1, n // 2 * RECORD, random_access=False)
  store = rtf.CacheStore(path, max_bytes=n // 2 * RECORD)
  for index in range(n // 4):
    first, second = schedule.stateless_seed(SEED, schedule.PARTIAL_FN, 0, index)
    store.put(index, tf.constant(np.array([index, first, second], np.uint32).astype(np.int32).astype(np.int64)))
  assert len(set(job.epoch())) == n
  drop(job)


def test_a_single_job_behaves_as_without_a_ring(root):
  """Order, content and generations are the same, even if others have left samples in the ring."""
  n, r, path = 300, 2, new_path(root)
  others = [Job(path, n, r, seed, 200 * RECORD) for seed in (1, 2)]
  run([job.epoch() for job in others], random.Random(0))
  num_kept = num_kept_by(others[0])
  assert num_kept < 200 and rtf.CacheStore(path).stats().transit_bytes_put > 0
  while others:
    drop(others.pop())
  gc.collect()
  alone = Job(path, n, r, 3, 200 * RECORD)
  memory = Job(None, n, r, 3, num_kept * 3 * 8)
  # The store's next epoch is the second.
  expected = [elements(memory) for _ in range(5)][1:]
  assert [elements(alone) for _ in range(4)] == expected
  assert (
    rtf.CacheStore(path).stats().transit_bytes_put == 0
  )  # The others' bytes were counted for a store that is closed.
  drop(alone)


def test_a_job_with_a_uniform_shuffle_takes_no_part(root):
  """This holds even if the job took over settings from other jobs."""
  path, n = new_path(root), 300
  other = Job(path, n, 2, 1, n // 2 * RECORD)
  beside = other.epoch()
  next(beside)
  job = Job(path, n, 2, 2, n // 2 * RECORD, shuffle="uniform")
  assert num_kept_by(job) == num_kept_by(other) < n // 2
  store = rtf.CacheStore(path)
  for turn, takes_part in (job.epoch(), False), (beside, True):
    collections.deque(turn, maxlen=0)
    store.verify()  # Writes the samples that were put.
    assert (store.stats().transit_bytes_put > 0) == takes_part
  drop(job)
  drop(other)


def test_a_restored_single_job_continues_bit_for_bit(root, tmp_path):
  n, r, path = 100, 2, new_path(root)
  job = Job(path, n, r, 3, 70 * RECORD)
  iterator = iter(job.dataset.repeat())
  take(iterator, n + n // 3)
  saved = save(iterator, tmp_path)
  expected = take(iterator, 2 * n)
  del iterator
  drop(job)
  gc.collect()
  again = Job(path, n, r, 3, 70 * RECORD)
  assert take(restore(again.dataset.repeat(), saved), 2 * n) == expected
  drop(again)


@pytest.mark.parametrize("same_store", [True, False])
def test_a_job_restored_while_others_run_yields_the_same_set(root, tmp_path, same_store):
  """A sample that is not kept and was used before the checkpoint is not used again."""
  n, r, path = 400, 2, new_path(root)
  job, other = (Job(path, n, r, seed, n // 2 * RECORD) for seed in (3, 4))
  beside = other.epochs(6)
  next(beside)
  iterator = iter(job.dataset.repeat())
  before = []
  # At the end of this loop all samples in the ring were used, in the epoch before.
  for step in range(n + 10):
    before += take(iterator, 1)
    if step % 3 != 0:
      next(beside)
    if step % 40 == 0:
      written()
  assert job.stats.from_other_jobs > 20
  saved = save(iterator, tmp_path)
  put_before = rtf.CacheStore(path).stats().transit_bytes_put
  del iterator
  drop(job)
  gc.collect()
  if not same_store:
    path = new_path(root)
    other = Job(path, n, r, 4, n // 2 * RECORD)
    beside = other.epochs(6)
    next(beside)
  again = Job(path, n, r, 3, n // 2 * RECORD)
  iterator = restore(again.dataset.repeat(), saved)
  rest = []
  for step in range(n - 10 + n):
    rest += take(iterator, 1)
    next(beside)
    if step % 40 == 0:
      written()
    if step == n // 3 and not same_store:
      # The head of the old ring does not apply to the new ring, which has not yet come that far.
      assert again.stats.from_other_jobs > 20
      assert rtf.CacheStore(path).stats().transit_bytes_put < put_before
  assert again.stats.from_other_jobs > 20
  done = {index for index, *_ in before[n:]}
  assert sorted(index for index, *_ in rest[: n - 10]) == sorted(set(range(n)) - done)
  assert sorted(index for index, *_ in rest[n - 10 :]) == list(range(n))
  if same_store:
    uses = collections.Counter(tuple(element[:3]) for element in before + rest)
    assert max(uses.values()) <= r
    # Only kept samples are used twice (r is 2); each generation of another sample is used once.
    assert len({index for (index, *_), times in uses.items() if times > 1}) <= num_kept_by(again)
  drop(again)
  drop(other)


def test_samples_lost_from_the_ring_are_prepared(root):
  """The records of the ring are lost, but not its words."""
  path, n = new_path(root), 600
  jobs = [Job(path, n, 1, seed, n // 2 * RECORD) for seed in range(2)]
  first, second = (job.epochs(2) for job in jobs)
  next(first), next(second)
  for _ in range(4):
    for _ in range(n // 8):
      next(first)
    written()
    (pathlib.Path(path) / "transit").write_bytes(b"")
    for _ in range(n // 8):
      next(second)
  run([first, second], random.Random(1))
  for job in jobs:
    drop(job)


def test_the_older_of_two_epochs_of_a_stage_takes_nothing(root):
  path, n = new_path(root), 600
  job, other = (Job(path, n, 1, seed, n // 2 * RECORD) for seed in range(2))
  older, newer, beside = job.epoch(), job.epoch(), other.epochs(2)
  next(beside), next(older), next(newer)
  for _ in range(n // 4):
    next(beside)
  written()
  taken = job.by_epoch[0].from_other_jobs
  for _ in older:
    pass
  assert job.by_epoch[0].from_other_jobs == taken
  run([newer, beside], random.Random(1))
  assert job.by_epoch[1].from_other_jobs > 0
  drop(job)
  drop(other)


def test_only_one_of_two_concurrent_epochs_uses_the_ring(root):
  path, n = new_path(root), 1_000_000  # Large enough that beginning an epoch takes some time.
  job, other = (Job(path, n, 1, seed, n // 2 * RECORD) for seed in range(2))
  earlier, beside = job.epoch(), other.epoch()
  next(earlier)
  for _ in range(500):
    next(beside)
  written()
  iterators = [iter(job.dataset) for _ in range(2)]
  barrier = threading.Barrier(len(iterators))

  def first(iterator):
    barrier.wait()
    next(iterator)

  threads = [threading.Thread(target=first, args=(iterator,)) for iterator in iterators]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  # Before the second epoch began, the first may have decided some places.
  taken = []
  for _ in range(2):
    for iterator in iterators:
      take(iterator, 100)
    taken.append([epoch.from_other_jobs for epoch in job.by_epoch[1:]])
    for _ in range(500):
      next(beside)
    written()
  (older, newer), (older_then, newer_then) = taken
  assert older == older_then and newer < newer_then
  del iterators
  drop(job)
  drop(other)


def elements(job):
  return [tuple(element.numpy().tolist()) for element in job.dataset]


def num_kept_by(job):
  """Returns the number of kept samples that `describe` reports."""
  return int(re.search(r"([\d,]+) of [\d,]+ samples kept", rtf.describe(job.dataset))[1].replace(",", ""))


# Files that are damaged while the jobs run.
FILES = ("ring", "transit", "claims", "state", "index")


def attack(path, chance):
  file = pathlib.Path(path) / chance.choice(FILES)
  if not file.exists():
    return
  size = file.stat().st_size
  with open(file, "r+b") as opened:
    if chance.random() < 0.2:
      opened.truncate(chance.randrange(size + 1))
      return
    for _ in range(chance.choice([1, 10, 200])):
      # The file has its data near the beginning.
      opened.seek(chance.randrange(min(size, chance.choice([64, 4096, 2**20])) or 1))
      opened.write(chance.randbytes(chance.choice([1, 8, 64])))


@hypothesis.settings(max_examples=cases.examples(4), deadline=None, derandomize=True)
@hypothesis.given(st.randoms(use_true_random=False), st.booleans())
def test_jobs_keep_the_guarantees_whatever_happens(root, chance, attacked):
  """G1, G2 and G9 hold with random limits, joins, kills, restores and attacks. (After an attack, a restored job may use
  a sample again, because the record of used samples may be lost.)"""
  n, r, path = chance.choice([30, 120, 250]), chance.choice([1, 1.5, 2, 3]), new_path(root)
  options = {
    "max_bytes": chance.choice([None, *(round(n * share) * RECORD for share in (0.05, 0.3, 0.7))]),
    "random_access": chance.random() < 0.7,
    "parallel": chance.choice([None, 2]),
  }
  jobs = {}

  def join():
    order_seed = chance.randrange(1000)
    job = Job(path, n, r, order_seed, **options)
    jobs[job] = job.epochs(chance.randrange(1, 4))

  join()
  for _ in range(40):
    if len(jobs) < 4 and (not jobs or chance.random() < 0.2):
      join()
    job = chance.choice(list(jobs))
    if chance.random() < 0.05:
      jobs.pop(job).close()
      drop(job)  # The job stops in the middle of an epoch.
      continue
    for _ in range(chance.randrange(1, n)):
      if next(jobs[job], StopIteration) is StopIteration:
        del jobs[job]
        drop(job)
        break
    if attacked and chance.random() < 0.2:
      attack(path, chance)
  for job, turn in jobs.items():
    turn.close()
    drop(job)
