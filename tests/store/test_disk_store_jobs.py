"""Jobs on one cache store on disk prepare together as much as a single job, and each has the guarantees of a single
job."""

import collections
import contextlib
import json
import math
import sys
import time

import numpy as np
import pytest

import refurbish_tf as rtf
from support import cases
from support.pipelines import Pipeline
from support.processes import run_forked
from support.stores import drop, new_path

pytestmark = cases.slow


class Job:
  """A stage on a shared store, which records its uses of each partially augmented sample."""

  def __init__(self, path, n, r, order_seed, kind="range"):
    # There is no shuffle buffer and no parallel call: other jobs would wait in vain for the samples in them.
    self.pipeline = Pipeline(
      kind, n, r, seed=5, order_seed=order_seed, store=path, num_parallel_calls=None, shuffle_buffer_size=1
    )
    self.counts = collections.Counter()
    self.n, self.r = n, r

  def epoch(self):
    """Yields after each element to let the other jobs run."""
    seen = []
    for element in self.pipeline.dataset:
      index, *seeds = element.numpy().tolist()
      seen.append(index)
      self.counts[(index, *seeds[:2])] += 1
      assert self.counts[(index, *seeds[:2])] <= math.ceil(self.r)  # G2, for each job.
      yield
    assert sorted(seen) == list(range(self.n))  # G1.

  def epochs(self, number):
    for _ in range(number):
      yield from self.epoch()


def take_turns(jobs, random, pause=0):
  """Runs generators in rounds, one step of each per round. `pause`: seconds after each step."""
  jobs = list(jobs)
  while jobs:
    random.shuffle(jobs)
    for job in list(jobs):
      if next(job, StopIteration) is StopIteration:
        jobs.remove(job)
      time.sleep(pause)


@cases.each_value
@pytest.mark.parametrize("kind", ["range", "stream of known length"])
@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("same_order", [False, True])
def test_jobs_prepare_together_what_one_prepares_alone(root, kind, r, same_order):
  n, epochs = 400, 4
  path = new_path(root)
  jobs = [Job(path, n, r, 0 if same_order else seed, kind) for seed in range(4)]
  turns = [job.epochs(epochs) for job in jobs]
  for turn in turns:  # All jobs are in the same epoch.
    next(turn)
  # With r = 1 all samples go from job to job; a partial_fn of 40 µs would be faster than the threads that write and
  # read them.
  take_turns(turns, np.random.default_rng(0), pause=0.0002 if r == 1 else 0)
  together = sum(sum(job.pipeline.calls().values()) for job in jobs)
  alone = n + (epochs - 1) * n / r
  assert alone <= together <= 1.1 * alone
  for job in jobs:
    drop(job.pipeline)


@pytest.mark.parametrize("kind", cases.some(["range", "stream of known length"], 1))
def test_job_far_behind_harms_none(root, kind):
  """The slow job uses the samples that the others have left, of any generation, each at most r times."""
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
  # The same samples with the final seeds of the same epoch, in another order.
  joined = late.pipeline.epoch()
  assert joined.tolist() != latest.tolist() and sorted(joined.tolist()) == sorted(latest.tolist())
  assert sum(late.pipeline.calls().values()) == 0
  for job in (first, late):
    drop(job.pipeline)


@pytest.mark.parametrize("r", cases.some([1, 3, 2, 1.5], 2))
def test_reuse_is_bounded_for_jobs_of_different_speed_and_for_iterators_side_by_side(root, r):
  """G2 holds for the uses by all iterators of a job together."""
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
  """G6: a single job has the same order on disk as in memory, whichever op gets to a sample first."""
  memory = Pipeline("range", 200, 2, num_parallel_calls=2)
  disk = Pipeline("range", 200, 2, num_parallel_calls=2, store=new_path(root))
  for _ in range(6):
    np.testing.assert_array_equal(disk.epoch(), memory.epoch())
  drop(disk)


JOBS = """
import json, multiprocessing, os, signal, sys
import numpy as np, tensorflow as tf, refurbish_tf as rtf

path, n, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
calls = []

def partial_fn(index, seed):
  def record(index):
    calls.append(int(index))
    return index
  index = tf.ensure_shape(tf.numpy_function(record, [index], tf.int64), [])
  noise = tf.random.stateless_uniform([700], seed, 0, 256, tf.int32)
  # With its own checksum.
  return index, noise, tf.reduce_sum(noise * tf.range(700)) + tf.cast(index, tf.int32)

def train(order_seed, output):
  dataset = tf.data.Dataset.range(n).refurbish(partial_fn, r=2, seed=1, order_seed=order_seed, store=path)
  together.wait(180)  # A job that begins when others have ended has its own epochs, and prepares more.
  for epoch in range(epochs):
    seen = []
    for index, noise, check in dataset.as_numpy_iterator():
      assert np.sum(noise * np.arange(700, dtype=np.int32), dtype=np.int32) + np.int32(index) == check, "wrong bytes"
      seen.append(int(index))
    assert sorted(seen) == list(range(n)), "not whole"
    print("epoch", file=output, flush=True)
  print(json.dumps([len(calls), rtf.CacheStore(path).stats().corrupt]), file=output, flush=True)

# TensorFlow is imported once, and each job is a process of its own.
jobs, together = {}, multiprocessing.get_context("fork").Barrier(3)
for order_seed in range(3):
  reading, writing = os.pipe()
  process = os.fork()
  if process == 0:
    train(order_seed, os.fdopen(writing, "w"))
    os._exit(0)
  os.close(writing)
  jobs[process] = os.fdopen(reading)
killed, *others = jobs
assert jobs[killed].readline() == "epoch\\n"
os.kill(killed, signal.SIGKILL)  # In its second epoch.
for process in others:
  print(jobs[process].readlines()[-1])
  assert os.waitpid(process, 0)[1] == 0
"""


def run_jobs(arguments, output):
  sys.argv = ["", *arguments]
  with open(output, "w") as file, contextlib.redirect_stdout(file):
    exec(compile(JOBS, "jobs", "exec"), {"__name__": "__main__"})


def test_processes_share_and_one_is_killed(root):
  n, epochs = 600, 4
  output = root / "output"
  assert run_forked(run_jobs, [new_path(root), str(n), str(epochs)], output) == 0
  results = [json.loads(line) for line in output.read_text().split("\n") if line]
  assert len(results) == 2 and all(corrupt == 0 for _, corrupt in results)
  # As many calls as one job alone, plus samples that the killed one had not written. Separate jobs would prepare twice.
  assert sum(calls for calls, _ in results) <= 1.4 * (n + (epochs - 1) * n / 2)


def test_a_position_is_decided_although_others_prepare_all_samples(root):
  """The job gives up after 1024 refused claims, each of which is a system call. It does not try the whole order."""
  path, n = new_path(root), 1200
  # This job requests its whole stream at once, which claims all samples.
  other = Pipeline("stream of known length", n, 2, seed=5, store=path, num_parallel_calls=None, shuffle_buffer_size=n)
  beside = iter(other.dataset)
  next(beside)
  job = Pipeline("range", n, 2, seed=5, store=path, num_parallel_calls=None)
  seen, missing = [], []
  for element in job.dataset:
    seen.append(element.numpy()[0])
    (stage,) = rtf.stats(job.dataset)
    missing.append(stage.total.missing)
  assert sorted(seen) == list(range(n))  # G1.
  # Samples that are deferred to the end of the order count as missing.
  assert missing[3] == 0 < missing[-1] < n - 10
  drop(job)
  drop(other)
