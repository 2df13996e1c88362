"""CPU time of a get and a put of a level that machines share, by level and size of the sample.

The servers run on this machine, each in its own process, whose CPU time does not count.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import common
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

# By name: the bytes of a sample, and how many samples.
SIZES = {"3 kB": (3_000, 500), "151 kB": (150_528, 500), "4.4 MB": (96**3 * 5, 40)}
ROUNDS, MOST_MICROSECONDS = 3, 60
PORTS = {"redis": 26379, "s3": 25000}
S3 = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORTS['s3']}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}


def measure(quick):
  """Yields the section."""
  rows = []
  with contextlib.ExitStack() as stack:
    for kind in ("redis", "s3", "file"):
      address = stack.enter_context(_level(kind))
      for size, (number_of_bytes, count) in SIZES.items():
        common.say(f"{kind}, {size}")
        name, gets, puts = f"{kind}, {size}", [], []
        if address:
          gets, puts = _gets_and_puts(address, number_of_bytes, min(count, 40) if quick else count, quick)
        else:
          name += ": not installed"
        limit = MOST_MICROSECONDS if (kind, size) == ("redis", "151 kB") else None
        rows.append(common.Row(f"get {kind} {size}", name, "µs of CPU a get", gets, limit))
        rows.append(common.Row(f"put {kind} {size}", name, "µs of CPU a put", puts))
  yield common.Section(
    "A level that machines share",
    "CPU time of all threads of this process for an epoch on a level, minus one without a level, for each sample that "
    "was found or written; a put includes the request that finds nothing. Epochs are read at less than 100 MB/s.",
    rows,
    lambda row: True,
  )


@contextlib.contextmanager
def _level(kind):
  """The address of an empty level, or None if its server is not installed."""
  commands = {"redis": ["redis-server", "--port", str(PORTS["redis"]), "--save", ""]}
  commands["s3"] = [str(pathlib.Path(sys.executable).parent / "moto_server"), "-p", str(PORTS["s3"])]
  if kind == "file":
    with tempfile.TemporaryDirectory() as directory:
      yield f"file://{directory}"
  elif shutil.which(commands[kind][0]) is None:
    yield None
  else:
    os.environ.update({**S3, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key"})
    server = subprocess.Popen(commands[kind], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(5)  # Until it answers.
    if kind == "s3":
      urllib.request.urlopen(urllib.request.Request(f"{S3['AWS_ENDPOINT_URL']}/levels", method="PUT")).close()
    yield f"redis://127.0.0.1:{PORTS['redis']}/0" if kind == "redis" else "s3://levels/benchmark"
    server.kill()


def _gets_and_puts(address, size, count, quick):
  """Microseconds of CPU of this process for a get, and for a put, by round."""
  sample = tf.constant(np.arange(size) % 251, tf.uint8)
  pause = size / 100e6 + (0.01 if address.startswith("s3") else 0.0005)
  stages = [
    tf.data.Dataset.range(count).refurbish(
      lambda index: (index, sample),
      lambda index, sample: index,
      r=1,
      store=rtf.CacheStore(shared=shared, version="1") if shared else None,
      seed=1,
      num_parallel_calls=None,
    )
    for shared in (None, address, address)
  ]
  rounds = []
  for _ in range(1 + common.rounds(quick, ROUNDS)):
    found = rtf.stats(stages[2])[0].total.from_other_jobs
    without, put, get = (
      common.cpu_of_calls({0: lambda: [time.sleep(8 * pause) for _ in stage.batch(8)]}, 1)[0][0] for stage in stages
    )
    found = max(1, rtf.stats(stages[2])[0].total.from_other_jobs - found)
    a_put = (put - without) / count
    # Samples that are not found are prepared and written.
    a_get = (get - without - (count - found) * a_put) / found
    rounds.append((1e6 * a_get, 1e6 * a_put))
  return zip(*rounds[1:])  # In the first round the clients connect.
