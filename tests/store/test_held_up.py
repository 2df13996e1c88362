"""A process that is stopped while it holds the locks of a store delays no step, no `stats` and no end of an
iterator."""

import os
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.processes import environment, killed_at_the_end

# Takes the locks that a process holds briefly when it writes settings, joins, or extends a file.
HOLDER = """
import fcntl, os, signal, sys
files = []
for name, byte in [("lock", 0), ("index", 0), ("claims", 0), ("state", 0), ("state", 1 << 20)]:
  files.append(open(os.path.join(sys.argv[1], name), "r+b"))
  fcntl.lockf(files[-1], fcntl.LOCK_EX, 1, byte)
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def held(tmp_path):
  """Stops a process that holds the locks of a store. The process is killed after a minute, so a test can tell whether
  it had to wait."""
  with killed_at_the_end() as processes:
    timers = []

    def hold(path):
      holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True, env=environment()
      )
      processes.append(holder)
      assert holder.stdout.readline() == "held\n"
      timers.append(threading.Timer(60, holder.kill))
      timers[-1].start()
      return holder

    yield hold
    for timer in timers:
      timer.cancel()


def test_a_stopped_lock_holder_delays_no_steps_and_no_stats(tmp_path, held):
  n = 70_000  # Larger than the step in which files are extended.
  path = str(tmp_path / "store")
  dataset = tf.data.Dataset.range(n).refurbish(lambda x: x, r=2, seed=1, store=path)
  holder = held(path)
  for _ in range(2):
    iterator = iter(dataset)
    seen = {int(next(iterator)) for _ in range(100)}
    assert len(seen) == 100 and max(seen) > 65_536
    assert os.path.getsize(os.path.join(path, "claims")) >= 8 * n  # The file was extended before the first claim.
    assert rtf.stats(dataset)[0].total.fresh > 0
    del iterator
  assert holder.poll() is None, "waited until the process that was stopped was killed"


def test_an_epoch_ends_while_the_settings_are_locked(tmp_path, held):
  path = str(tmp_path / "store")
  source = tf.data.Dataset.range(20).filter(lambda x: True)  # A source of unknown length.
  dataset = source.refurbish(lambda x: x, r=2, seed=1, store=path)
  holder = held(path)
  for _ in range(3):
    assert sorted(map(int, dataset)) == list(range(20))
  # The schedule begins although the settings are locked.
  assert [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs] == [20, 10, 10]
  assert holder.poll() is None, "waited until the process that was stopped was killed"
