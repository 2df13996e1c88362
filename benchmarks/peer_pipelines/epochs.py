"""Runs epochs of one pipeline in this process on request, and reports the time of each.

Imports only modules that every peer imports itself.
"""

import json
import os
import pathlib
import pickle
import sys
import time

# For batches of more than 32 MB, malloc would request memory from the system each time, and page faults would dominate.
BATCHES = {"small": 128, "large": 32}
# The batch size of the kind that is being run.
BATCH = None
# Threads or processes of a peer.
PROCESSORS = len(os.sched_getaffinity(0))
# ImageNet's, for values from 0 to 1. Photographs are normalised with them, to float32.
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# The resolution of the system's CPU times, in seconds: an epoch of a quick run may take less.
CPU_RESOLUTION = 1 / os.sysconf("SC_CLK_TCK")


def serve(**make):
  """Runs an epoch for every line of the standard input. Answers its images, wall and CPU seconds, as a line of JSON.

  Some pipelines work several batches ahead into the next epoch. So an epoch lasts until nothing is running any more,
  and as many batches are ready as at its beginning.

  Args:
    **make: for each kind of images, a function from a sequence of them to `epoch()`, which yields one epoch's batches.
  """
  # Output of libraries must not mix with the answers.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  global BATCH
  kind, path = sys.argv[1:3]
  BATCH = BATCHES[kind]
  epoch = make[kind](pickle.loads(pathlib.Path(path).read_bytes()))
  for _ in sys.stdin:
    wall, cpu = time.perf_counter(), _cpu_seconds()
    count = sum(len(batch) for batch in epoch())
    wall_at_end, cpu_at_end = _wait_until_idle()
    answer = {"count": count, "wall": wall_at_end - wall, "cpu": max(cpu_at_end - cpu, CPU_RESOLUTION)}
    print(json.dumps(answer), file=answers, flush=True)


def _wait_until_idle():
  """Returns the time and the CPU seconds at the end of the last work."""
  ended = last = time.perf_counter(), _cpu_seconds()
  # Longer than work that is ready may wait for a core.
  while last[0] - ended[0] < 0.3:
    time.sleep(0.05)
    now = time.perf_counter(), _cpu_seconds()
    # Less than this is the cost of measuring.
    if now[1] - last[1] > 0.025:
      ended = now
    last = now
  return ended


def _cpu_seconds():
  """User and system time of this process and of all its descendants, running or ended."""
  children, ticks = {}, {}
  for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      # The name, in parentheses, may contain anything.
      fields = stat.read_text().rpartition(")")[2].split()
    except OSError:  # The process has ended in the meantime.
      continue
    pid = int(stat.parent.name)
    children.setdefault(int(fields[1]), []).append(pid)
    ticks[pid] = sum(map(int, fields[11:15]))
  total, below = 0, [os.getpid()]
  while below:
    pid = below.pop()
    total += ticks[pid]
    below += children.get(pid, [])
  return total * CPU_RESOLUTION
