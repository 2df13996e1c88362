"""Jobs on one store prepare each sample about once for all of them, whatever part of the samples the store holds."""

import dataclasses

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import stats
from support.stores import new_path

pytestmark = cases.slow

N, LAPS = 1000, 3
# The samples that a job reads in one turn, and so has in progress.
TURN = 8


@dataclasses.dataclass(frozen=True)
class Cell:
  """Jobs with these speeds that begin in these rounds, on a store with room for `room` samples, of which it keeps
  `kept`."""

  speeds: tuple
  starts: tuple
  r: float
  room: int
  kept: int
  limit: float


# The ring has a quarter of the room, 83 of 333 samples; with r = 1 it has all of it. Without the ring, 4 jobs would
# make 3 to 4 times the calls of one.
CELLS = {
  "together": Cell((1,) * 4, (0,) * 4, r=1, room=64, kept=0, limit=1.05),
  "half an epoch apart": Cell((1,) * 2, (0, N // 2 // TURN), r=2, room=333, kept=250, limit=1.1),
  "unequal speeds": Cell((1, 1, 0.9, 0.7), (0,) * 4, r=1, room=285, kept=0, limit=1.2),
}


class Job:
  def __init__(self, store, r, number):
    self.dataset = tf.data.Dataset.range(N).refurbish(
      lambda index: index, r=r, seed=5, order_seed=number, store=store, num_parallel_calls=None
    )
    self.used = []  # The samples used in the current epoch.
    self.iterator = None

  def turn(self):
    """Reads the next samples. Checks at the end of an epoch that it was whole."""
    if self.iterator is None:
      self.iterator = iter(self.dataset.batch(TURN))
    self.used += next(self.iterator).numpy().tolist()
    if len(self.used) == N:
      assert sorted(self.used) == list(range(N))
      assert next(self.iterator, None) is None
      self.used, self.iterator = [], None

  @property
  def calls(self):
    return stats(self.dataset).total.fresh


@pytest.mark.parametrize("name", CELLS)
def test_each_sample_is_prepared_about_once_for_all(root, name):
  cell = CELLS[name]
  probe = rtf.CacheStore(new_path(root))
  probe.put(0, tf.constant(0, tf.int64))
  store = rtf.CacheStore(new_path(root), max_bytes=cell.room * probe.stats().bytes)
  jobs = [Job(store, cell.r, number) for number in range(len(cell.speeds))]
  rounds, begin = N // TURN, max(cell.starts)
  before = 0
  for now in range(begin + LAPS * rounds):
    if now == begin:
      before = sum(job.calls for job in jobs)
    for job, speed, start in zip(jobs, cell.speeds, cell.starts):
      if now >= start and int((now - start + 1) * speed) > int((now - start) * speed):
        job.turn()
    store.verify()  # Writes the samples that were put, so that other jobs see them.
  calls = sum(job.calls for job in jobs) - before
  # The calls of the fastest job if it ran alone. It prepares all samples in its first epoch.
  first = N - begin * TURN
  alone = first + (LAPS * N - first) * (1 - cell.kept / N * (1 - 1 / cell.r))
  assert 0.95 * alone <= calls <= cell.limit * alone
  # Every sample that was read was used.
  assert store.stats().hits == sum(rtf.stats(job.dataset)[0].total.cached for job in jobs)
