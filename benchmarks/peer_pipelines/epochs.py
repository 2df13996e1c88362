"""Runs epochs of one pipeline in this process on request, and reports the time of each.

Imports only modules that every peer imports itself.
"""

import json
import os
import pathlib
import pickle
import sys
import time

# Images per batch. For more than 32 MB, malloc would request memory from the system for each batch, and page faults
# would dominate.
BATCHES = {"small": 128, "large": 32, "sounds": 25}
# The batch size of the images of this process; `serve` sets it.
BATCH = None
# The number of threads or processes of a peer.
PROCESSORS = len(os.sched_getaffinity(0))
# ImageNet's mean and standard deviation, for values from 0 to 1. Photographs are normalised with them, to float32.
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# The resolution of the system's CPU times, in seconds. An epoch of a quick run may take less.
CPU_RESOLUTION = 1 / os.sysconf("SC_CLK_TCK")


def serve(**make):
  """Runs an epoch for every line of standard input. Answers with its images, wall and CPU seconds in a line of JSON.

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
    wall, cpu = time.perf_counter(), cpu_seconds()
    count = sum(len(batch) for batch in epoch())
    wall_at_end, cpu_at_end = _wait_until_idle()
    answer = {"count": count, "wall": wall_at_end - wall, "cpu": max(cpu_at_end - cpu, CPU_RESOLUTION)}
    print(json.dumps(answer), file=answers, flush=True)


def _wait_until_idle():
  """Returns the time and the CPU seconds at the end of the last work."""
  ended = last = time.perf_counter(), cpu_seconds()
  # A pipeline counts as idle after 0.3 s, which is longer than runnable work waits for a core.
  while last[0] - ended[0] < 0.3:
    time.sleep(0.05)
    now = time.perf_counter(), cpu_seconds()
    # A smaller increase is the cost of measuring itself.
    if now[1] - last[1] > 0.025:
      ended = now
    last = now
  return ended


def cpu_seconds():
  """User and system time of this process and of all its descendants, running or ended."""
  children, ticks = {}, {}
  for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      # The name of the process, in parentheses, may itself contain spaces and parentheses.
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
