"""Jobs that share a cache store, as a discrete-event simulation: what `sharing` measures, by the rule alone.

A step uses one sample. A sample is kept, so that a generation of it is used r times by a job, or in transit, so that it
is used once. Jobs share a ring of the samples in transit that were prepared last, and who is preparing which sample.
"""
import collections
import dataclasses
import heapq
import itertools
import random

import numpy as np

BATCH = 32


@dataclasses.dataclass(frozen=True)
class Case:
  """Jobs and their course, in laps: epochs of the first job.

  Attributes:
    name: in words.
    speeds: of each job, or a pair between which it varies, drawn anew twenty times an epoch. The first is never slower
      than another one, unless all vary.
    starts, stops: when each begins and is killed. Empty: at once; never.
  """
  name: str
  speeds: tuple
  starts: tuple = ()
  stops: tuple = ()

  def start(self, job):
    return self.starts[job] if self.starts else 0

  def stop(self, job):
    return self.stops[job] if self.stops else float("inf")

  @property
  def last_start(self):
    return max(self.starts, default=0)

  def pace(self, job, draw):
    """Its speed from now on."""
    speed = self.speeds[job]
    return draw.uniform(*speed) if isinstance(speed, tuple) else speed


@dataclasses.dataclass(frozen=True)
class Figures:
  """Of a case, simulated or measured.

  Attributes:
    calls: preparations of all jobs over those that the fastest would make alone, while all run.
    pairs: of samples that meet in a batch, those that meet again in the next epoch, over those of a uniform shuffle.
    beyond: the most preparations beyond those it would make alone that a job makes in 256 steps.
  """
  calls: float
  pairs: float
  beyond: int


def simulate(case, n, *, laps=5, kept=0, r=1, ring=None, delay=BATCH, cost=0.0):
  """Simulates a case.

  Args:
    case: a `Case`.
    n: the number of samples.
    laps: for how long all run, in epochs of the first job.
    kept: how many samples are kept.
    r: how often a job uses a generation of them.
    ring: how many samples in transit there is room for; 2 % of n unless given.
    delay: how many steps after a sample was asked for others see it.
    cost: how much longer a step takes with a preparation; 0 where all wait for an accelerator.

  Returns:
    `Figures`.
  """
  store = _Store(n, kept, r, ring or max(2, n // 50))
  draw, count = random.Random(n), itertools.count()
  jobs = [_Job(store, k) for k in range(len(case.speeds))]
  pace = [1.0] * len(jobs)
  later = sorted(range(len(jobs)), key=case.start, reverse=True)
  events = []  # A heap: when, who, and what was prepared and is seen by others from then on.
  progress, begin, before = 0, 0.0, 0
  now = 0.0
  while progress < (case.last_start + laps) * n:
    while later and progress >= case.start(later[-1]) * n:
      heapq.heappush(events, (now, next(count), later.pop(), None))
      begin, before = now, store.prepared
    now, _, k, made = heapq.heappop(events)
    job = jobs[k]
    if progress >= case.stop(k) * n:
      if job in store.jobs:
        store.died(job)
    elif made is not None:
      store.put(*made)
    else:
      if job not in store.jobs:
        job.begin_epoch()
        store.jobs.append(job)
      if len(job.whens) % max(1, n // 20) == 0:
        pace[k] = case.pace(k, draw)
      made = job.step(now)
      if made is not None:
        heapq.heappush(events, (now + delay + cost, next(count), k, made))
      heapq.heappush(events, (now + 1 / pace[k] + cost * (made is not None), next(count), k, None))
      progress += k == 0
  steps = [[alone for alone, when in zip(job.alone, job.whens) if when >= begin] for job in jobs]
  alone = sum(max(steps, key=len))
  orders = [[order for order in job.orders if len(order) == n] for job in jobs]
  return Figures((store.prepared - before) / alone, pairs_again(orders), max(most_beyond(job.own, job.alone) for job in jobs))


def pairs_again(jobs):
  """Pairs that meet in a batch again in the next epoch, over those of a uniform shuffle; None without two epochs.

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
      again.append((counts * (counts - 1)).sum() / (n * (BATCH - 1)**2 / (n - 1)))
  return float(np.mean(again)) if again else None


def most_beyond(own, alone, width=256):
  """The most that `own` exceeds `alone` in so many steps one after the other; both are 1 where a sample is prepared."""
  beyond = np.cumsum([0, *(np.asarray(own, int) - np.asarray(alone, int))])
  return int((beyond[width:] - beyond[:-width]).max(initial=0)) if len(beyond) > width else int(beyond[-1])


class _Store:
  """What all jobs see."""

  def __init__(self, n, kept, r, ring):
    self.n, self.kept, self.r, self.room = n, kept, r, ring
    self.random = np.random.default_rng(n)
    self.eviction = self.random.permutation(n)  # The place of each sample in the eviction order; the first are kept.
    self.is_kept = (self.eviction < kept).tolist()
    self.begun = [-1] * n  # The generation whose preparation was begun last,
    self.claim = [None] * n  # and the job that is at it.
    self.stored = [-1] * n  # The generation of a kept sample.
    self.ring = collections.OrderedDict()  # Sample in transit -> generation, oldest first.
    self.jobs = []
    self.prepared = 0

  def generations(self, epoch):
    """Of all samples, by the schedule of those that are kept."""
    rounds, hand = divmod(epoch * self.kept // self.r, max(1, self.kept))
    return rounds + (self.eviction < hand)

  def put(self, sample, generation):
    self.claim[sample] = None
    if self.is_kept[sample]:
      self.stored[sample] = max(self.stored[sample], generation)
      return
    self.ring.pop(sample, None)
    self.ring[sample] = generation
    for job in self.jobs:
      job.note(sample, generation)
    if len(self.ring) > self.room:
      oldest, _ = self.ring.popitem(last=False)
      for job in self.jobs:
        job.found.pop(oldest, None)

  def died(self, job):
    """Its claims count no more; what it has put stays."""
    self.jobs.remove(job)
    self.claim = [None if claim is job else claim for claim in self.claim]


class _Job:

  def __init__(self, store, number):
    self.store, self.epoch = store, -1
    self.random = np.random.default_rng([store.n, number])
    self.last, self.uses = [-1] * store.n, [0] * store.n  # The generation used last, and how often.
    self.found = collections.OrderedDict()  # What lies in the ring and is needed -> generation, oldest first.
    self.orders = []  # Of each epoch, and of all steps: whether it prepared, whether it would alone, when.
    self.own, self.alone, self.whens = [], [], []

  def begin_epoch(self):
    store, n = self.store, self.store.n
    self.epoch = self.epoch + 1 if self.epoch >= 0 else max((job.epoch for job in store.jobs), default=0)
    generations, is_kept = store.generations(self.epoch), np.array(store.is_kept)
    fresh = ~is_kept
    fresh |= True if self.epoch == 0 else generations != store.generations(self.epoch - 1)
    self.scheduled, self.fresh = generations.tolist(), fresh.tolist()
    place = np.zeros(n)  # Those to prepare are spread evenly among the kept ones.
    for which in (fresh & is_kept, ~fresh):
      place[which] = (self.random.permutation(which.sum()) + self.random.random()) / max(1, which.sum())
    kept = np.flatnonzero(is_kept)
    self.kept, self.deferred = kept[np.argsort(-place[kept])].tolist(), []
    own = self.random.permutation(np.flatnonzero(~is_kept)).tolist()
    self.need, self.own_order, self.passed = set(own), own, []
    self.found.clear()
    for sample, generation in store.ring.items():
      self.note(sample, generation)
    self.orders.append([])

  def note(self, sample, generation):
    """Something lies in the ring."""
    if sample in self.need and generation > self.last[sample]:
      self.found.pop(sample, None)
      self.found[sample] = generation

  def step(self, now):
    """Uses one sample. If it has to be prepared, returns it and its generation."""
    store = self.store
    if not self.orders or len(self.orders[-1]) == store.n:
      self.begin_epoch()
    done = len(self.orders[-1])
    turn_of_kept = (done + 1) * store.kept // store.n > done * store.kept // store.n
    sample, made = (turn_of_kept and self._use_kept(False)) or (self.need and self._use_in_transit()) or self._use_kept(True)
    self.orders[-1].append(sample)
    self.own.append(made is not None)
    self.alone.append(self.fresh[sample])
    self.whens.append(now)
    return made

  def _prepare(self, sample, generation):
    self.store.begun[sample], self.store.claim[sample] = generation, self
    self.store.prepared += 1
    return sample, generation

  def _use_kept(self, at_end):
    store = self.store
    while self.kept or (at_end and self.deferred):
      in_order = bool(self.kept)
      sample = self.kept.pop() if in_order else self.deferred.pop()
      least = max(self.scheduled[sample], self.last[sample] + (self.uses[sample] >= store.r))
      is_stored = store.stored[sample] >= least
      if not is_stored and in_order and store.claim[sample] and store.begun[sample] >= least:
        self.deferred.append(sample)  # Another job is preparing it.
        continue
      use = store.stored[sample] if is_stored else least
      self.uses[sample] = self.uses[sample] + 1 if use == self.last[sample] else 1
      self.last[sample] = use
      return sample, None if is_stored else self._prepare(sample, use)
    return None

  def _use_in_transit(self):
    """The rule: the oldest of the ring that it needs; else it prepares the next of its own order."""
    made = None
    if self.found:
      sample, self.last[sample] = self.found.popitem(last=False)
    else:
      sample = self._next_to_prepare()
      self.last[sample] = max(self.store.begun[sample], self.last[sample]) + 1
      made = self._prepare(sample, self.last[sample])
    self.need.remove(sample)
    return sample, made

  def _next_to_prepare(self):
    """The next of its own order that nobody is preparing; at the end of the epoch, of those that others are preparing."""
    self.passed = [sample for sample in self.passed if sample in self.need]
    for at, sample in enumerate(self.passed):
      if self.store.claim[sample] is None:
        return self.passed.pop(at)
    while self.own_order:
      sample = self.own_order.pop()
      if sample in self.need:
        if self.store.claim[sample] is None:
          return sample
        self.passed.append(sample)
    return self.passed.pop(0)
