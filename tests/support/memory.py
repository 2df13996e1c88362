"""Simulates for the stores of this process a machine of 40 GiB, with a reserve of 4 GiB, whose free memory a test
sets."""

import contextlib
import ctypes
import gc
import os
import pathlib
import threading
import time

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine

MIB, GIB = 2**20, 2**30
PLENTY, SHORT, NONE = 30 * GIB, 3 * GIB, 0
# A store reads free memory at most every 0.1 s, and pauses for ten times as long as reading took (80 ms on a busy
# machine).
PAUSE = 0.8


def own_memory():
  """The bytes of this process that the system cannot reclaim."""
  with open("/proc/self/status", encoding="ascii") as file:
    return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))


class FreeMemory:
  def __init__(self, root, free=PLENTY):
    self._file = root / "proc" / "meminfo"
    self._file.parent.mkdir()
    self._lock = threading.Lock()
    self.set(free)

  def set(self, free):
    """Sets the free memory, from which later allocations of this process are subtracted. Stores notice after 32 more
    uses."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    self._total = free + own_memory()
    self.write()
    time.sleep(PAUSE)

  def write(self):
    with self._lock:
      free = max(0, self._total - own_memory())
      new = self._file.with_suffix(".new")
      new.write_text(f"MemTotal: {40 * GIB // 1024} kB\nMemAvailable: {free // 1024} kB\n")
      os.rename(new, self._file)


@contextlib.contextmanager
def free_memory(monkeypatch, root, free=PLENTY):
  ended = threading.Event()

  def follow():
    while not ended.wait(0.02):
      memory.write()

  with monkeypatch.context() as patch:
    patch.setattr(machine, "_ROOT", str(root))
    memory = FreeMemory(root, free)
    machine.free_memory()
    thread = threading.Thread(target=follow)
    thread.start()
    try:
      yield memory
    finally:
      ended.set()
      thread.join()
  machine.free_memory()


def check_dropped(size, make_short, held=300 * MIB, short=100 * MIB):
  """G8: after `make_short(short)` a store of samples of `size` bytes drops `short` bytes, within a tenth."""
  number = held // size
  store = rtf.CacheStore()
  dataset = (
    tf.data.Dataset.range(number)
    .refurbish(
      lambda index: tf.fill([size], tf.cast(index % 251, tf.uint8)),
      lambda sample: (sample[0], sample[-1]),
      r=1e6,
      seed=1,
      store=store,
    )
    .batch(100)
  )

  def epoch():
    found = [value for batch in dataset for value in zip(*(each.numpy().tolist() for each in batch))]
    assert sorted(found) == sorted((index % 251,) * 2 for index in range(number))

  epoch()
  assert store.stats().bytes == number * size
  make_short(short)
  for _ in range(6):
    for _ in dataset.take(2):
      pass
    time.sleep(PAUSE)
  stats = store.stats()
  assert abs(number * size - stats.bytes - short) <= short / 10, (number * size, stats.bytes)
  # The remaining samples are used, and no more are dropped.
  epoch()
  # The margin is for memory that the process itself allocates.
  assert rtf.stats(dataset)[0].epochs[-1].cached >= 0.95 * stats.entries
  assert store.stats().entries >= 0.95 * stats.entries


@contextlib.contextmanager
def control_group():
  """Yields a control group for memory, and the names of its files for limit and usage."""
  for folder, limit, usage in (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
  ):
    group = pathlib.Path(folder, f"refurbish_tf_{os.getpid()}")
    try:
      group.mkdir()
    except OSError:
      continue
    try:
      if os.access(group / limit, os.W_OK):
        yield group, limit, usage
        return
    finally:
      group.rmdir()
  pytest.skip("control groups of memory may not be made here")


def make_short_in(group, limit, usage):
  """Returns a function that limits this process's group so that free memory is `short` bytes below half the reserve."""

  def make_short(short):
    ctypes.CDLL(None).malloc_trim(0)
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    files = sum(
      int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("inactive_file", "active_file", "slab_reclaimable")
    )
    used = int((group / usage).read_text()) - files
    # Below 4 GiB the reserve is a quarter of the limit, so an eighth of the limit minus `short` must be free. The limit
    # exceeds the usage if the usage exceeds 8 * `short`.
    (group / limit).write_text(str((used - short) * 8 // 7))

  return make_short
