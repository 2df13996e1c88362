"""Jobs that share a cache store, as processes that record what they use, for `sharing`."""

import dataclasses
import itertools
import math
import multiprocessing
import pathlib
import tempfile
import time
import warnings

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

BATCH = 32
# More seconds than the jobs of any cell of the table take.
PATIENCE = 900
# RING: the least fraction of the samples that the ring has room for. With r = 1 the ring takes the whole room, at least
# ROOM_OF_A_JOB samples per job. These are twice what a job prepares at a time, or more, because a job short of CPU
# waits some 50 ms for a core while the others go on.
RING, ROOM_OF_A_JOB = 0.02, 128
# What a job records of each sample that it gets.
COLUMNS = ("index", "own", "when", "wait", "epoch")


@dataclasses.dataclass(frozen=True)
class Cell:
  """Jobs on one store.

  Attributes:
    starts: when each job begins, in epochs of the first job.
    r: the reuse factor.
    share: the fraction of samples that the store keeps, or has room for in transit with r = 1, besides the ring.
    n: the number of samples.
    laps: how long all jobs run together, in epochs of the first job.
    step: seconds of a batch, as on an accelerator.
  """

  starts: tuple
  r: int
  share: float
  n: int
  laps: int
  step: float

  @property
  def room(self):
    """The room of the store in records: those that are kept, and the ring."""
    kept = round(self.share * self.n)
    if kept >= self.n:
      return self.n
    room = kept + math.ceil(RING * self.n)
    while room - _ring(room, self.n) < kept:
      room += 1
    return max(room, ROOM_OF_A_JOB * len(self.starts)) if self.r == 1 else room

  @property
  def kept(self):
    """The number of records that are kept."""
    if self.r == 1:
      return 0
    return self.n if self.room >= self.n else self.room - _ring(self.room, self.n)


def _ring(room, n):
  """How much of the room is for transit, by the rule of a store that keeps samples."""
  return min(room, max(math.ceil(RING * n), min(256, room // 4)))


@dataclasses.dataclass(frozen=True)
class Measured:
  """The results of a cell.

  Attributes:
    calls: preparations of all jobs, divided by those that the fastest would make alone, while all run.
    pairs: how many samples that meet in a batch meet again in the next epoch, divided by those of a uniform shuffle.
    images_per_second: images that all jobs get, while all run.
    longest_wait: the most seconds that a step waited for its batch, except an epoch's first, which starts the pipeline.
  """

  calls: float
  pairs: float
  images_per_second: float
  longest_wait: float


def measure(cell):
  """Runs the jobs of a cell. Returns `Measured`."""
  with tempfile.TemporaryDirectory(prefix="refurbish-sharing-") as path:
    path = pathlib.Path(path)
    number = len(cell.starts)
    # A sparse log file for each job, with room for a job that is three times as fast as the first.
    rows = int(3 * (max(cell.starts) + cell.laps + 1) * cell.n)
    for k in range(number):
      np.lib.format.open_memmap(path / f"job-{k}.npy", "w+", np.int64, (rows, len(COLUMNS)))
    np.save(path / "progress.npy", np.zeros(1, np.int64))
    run(_job, number, cell, path)
    logs = []
    for k in range(number):
      log = np.load(path / f"job-{k}.npy", mmap_mode="r")
      logs.append(dict(zip(COLUMNS, np.array(log[: np.argmin(log[:, COLUMNS.index("when")])]).T)))
  return _figures(cell, logs)


def run(function, number, *arguments):
  """Runs `function(k, barrier, *arguments)` in `number` new processes, which wait for each other at the barrier.

  Raises:
    RuntimeError: a process failed or hangs.
  """
  # Processes are forked from a server that has only imported the package, because importing it takes seconds.
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["refurbish_tf"])
  barrier = context.Barrier(number, timeout=PATIENCE)
  processes = [context.Process(target=function, args=(k, barrier, *arguments), daemon=True) for k in range(number)]
  for process in processes:
    process.start()
  deadline = time.monotonic() + PATIENCE
  try:
    for process in processes:
      process.join(max(0, deadline - time.monotonic()))
    ended = [process.exitcode for process in processes]
    if any(code != 0 for code in ended):
      raise RuntimeError(f"The jobs ended with {ended} (None: not within {PATIENCE} seconds).")
  finally:
    for process in processes:
      process.kill()


class _Source:
  """Elements that say which job has read them: index, job, and the number of the job's reads so far."""

  def __init__(self, n, job):
    self._n, self._job = n, job
    self.reads = 0

  def __len__(self):
    return self._n

  def __getitem__(self, index):
    self.reads += 1
    return np.array([index, self._job, self.reads])


def record_bytes(sample, path):
  """The bytes of a sample in a store on disk."""
  store = rtf.CacheStore(path)
  store.put(0, sample)
  return store.stats().bytes


def _job(k, barrier, cell, path):
  warnings.filterwarnings(
    "ignore", "The source of refurbish yields other elements"
  )  # Each element says which job has read it.
  n = cell.n
  log = np.lib.format.open_memmap(path / f"job-{k}.npy", "r+")
  progress = np.lib.format.open_memmap(path / "progress.npy", "r+")
  source = _Source(n, k)

  store = rtf.CacheStore(
    path / "store", max_bytes=cell.room * record_bytes(tf.zeros([3], tf.int64), path / f"record-{k}")
  )
  dataset = (
    rtf.sources.data_source(source, element_spec=tf.TensorSpec([3], tf.int64))
    .refurbish(tf.identity, r=cell.r, seed=1, order_seed=k, store=store)
    .batch(BATCH)
  )
  # The job joins the others when its first epoch begins.
  barrier.wait()
  while progress[0] < cell.starts[k] * n:
    time.sleep(0.001)
  seen, done, end = set(), 0, (max(cell.starts) + cell.laps) * n
  for epoch in range(len(log)):
    iterator, first = iter(dataset), True
    while progress[0] < end and done + BATCH <= len(log):
      asked = time.monotonic_ns()
      batch = next(iterator, None)
      if batch is None:
        break
      now = time.monotonic_ns()
      index, job, serial = batch.numpy().T
      own = [j == k and s not in seen for j, s in zip(job.tolist(), serial.tolist())]
      seen.update(serial[own].tolist())
      rows = np.empty([len(index), log.shape[1]], np.int64)
      for column, values in enumerate((index, own, now, 0 if first else now - asked, epoch)):
        rows[:, column] = values
      log[done : done + len(index)] = rows
      done, first = done + len(index), False
      if k == 0:
        progress[0] = done
      time.sleep(cell.step)
    else:
      break


def _figures(cell, logs):
  n = cell.n
  firsts = [log["when"][0] for log in logs]
  begin, end = max(firsts), logs[0]["when"][-1]
  joined = [int(np.searchsorted(logs[0]["when"], first)) // n for first in firsts]
  own, used, alone, orders = 0, [], [], []
  for log, epoch in zip(logs, joined):
    within = (begin <= log["when"]) & (log["when"] <= end)
    expected = _alone(cell, log["epoch"] + epoch)
    own += log["own"][within].sum()
    used.append(within.sum())
    alone.append(expected[within].sum())
    epochs = [log["index"][log["epoch"] == e] for e in range(log["epoch"][-1] + 1)]
    for order in epochs:
      if len(set(order.tolist())) != len(order) or (order is not epochs[-1] and len(order) != n):
        raise RuntimeError("An epoch was not whole.")
    orders.append([order for order in epochs if len(order) == n])
  by_fastest = alone[int(np.argmax(used))]
  return Measured(
    calls=float(own / by_fastest),
    pairs=_pairs_again(orders),
    images_per_second=float(sum(used) / (1e-9 * (end - begin))),
    longest_wait=1e-9 * float(max(log["wait"].max() for log in logs)),
  )


def _alone(cell, epochs):
  """For each sample, in the order of these epochs: whether the job would prepare it if it ran alone and fresh samples
  were spread evenly."""
  n, expected = cell.n, np.zeros(len(epochs), int)
  for epoch in np.unique(epochs):
    places = np.flatnonzero(epochs == epoch)
    fresh = n if epoch == 0 else n - cell.kept + cell.kept / cell.r
    until = np.floor(np.arange(len(places) + 1) * fresh / n)
    expected[places] = np.diff(until)
  return expected


def _pairs_again(jobs):
  """Pairs that meet in a batch again in the next epoch, divided by those of a uniform shuffle; None without two epochs.

  Args:
    jobs: for each job its whole epochs, each the order of its samples.
  """
  again = []
  for orders in jobs:
    batches = [np.argsort(order) // BATCH for order in orders]
    for a, b in itertools.pairwise(batches):
      n = len(a)
      counts = np.zeros((n // BATCH + 1, n // BATCH + 1))
      np.add.at(counts, (a, b), 1)
      again.append((counts * (counts - 1)).sum() / (n * (BATCH - 1) ** 2 / (n - 1)))
  return float(np.mean(again)) if again else None
