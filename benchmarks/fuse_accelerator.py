"""An accelerator that is simulated, for `fuse`: it holds each batch for some time, and takes no processor meanwhile."""
import contextlib
import itertools
import os
import subprocess
import sys
import time

from refurbish_tf._internal import dataset_graph

SHARES = (0, 1 / 8, 1 / 4, 1 / 2, 1)
# Until fixed shares have filled what is queued.
SETTLING = 12
PREFETCH = 2
# Makes a pipeline endless in practice.
REPEATED = 10**6


class Accelerator:
  """Trains on batches: `train` seconds each, and `device` seconds if all of its images are unfinished.

  Attributes:
    train, device: see above.
    processor: the seconds that each step takes a processor, as a step's launches do.
    steps_at_once: so many batches are fetched, and the next ones when all of these are trained on. 0: as with
      asynchronous dispatch, the host fetches the next batch while one is trained on.
  """

  def __init__(self, train=0.0, device=0.0, processor=0.0, steps_at_once=0):
    self.train = train
    self.device = device
    self.processor = processor
    self.steps_at_once = steps_at_once

  def seconds(self, batches, skipped, counted):
    """Seconds a batch, of `counted` batches behind `skipped` others."""
    free = time.perf_counter()
    for number, batch in enumerate(itertools.islice(batches, skipped + counted)):
      if number == skipped:
        began = free
      begins = max(free, time.perf_counter())
      free = begins + self.train + self.device * _unfinished(batch)
      _compute(self.processor)
      if not self.steps_at_once:
        time.sleep(max(0.0, begins - time.perf_counter()))
      elif (number + 1) % self.steps_at_once == 0:
        time.sleep(max(0.0, free - time.perf_counter()))
    return (free - began) / counted


def _unfinished(batch):
  """The share of a batch's images whose policies are the accelerator's, or 0 for one without `fuse`."""
  return float(batch["draws"][:, 0].numpy().mean()) if isinstance(batch, dict) else 0.0


def _compute(seconds):
  until = time.thread_time() + seconds
  while time.thread_time() < until:
    pass


def batches_of(dataset, prefetch=PREFETCH):
  """An iterator of a training's input."""
  return iter(dataset_graph.without_autotuner(dataset.prefetch(prefetch) if prefetch else dataset))


@contextlib.contextmanager
def half_as_fast():
  """Keeps each processor busy with other work, so that half of it is left."""
  others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
  try:
    yield
  finally:
    for other in others:
      other.kill()
      other.wait()
