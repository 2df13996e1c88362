"""A store on disk where the process has too little of something, or others handle its signals."""
import subprocess
import sys

import pytest

PREPARE = """
import faulthandler, gc, os, resource, sys, tempfile
import tensorflow as tf, refurbish_tf as rtf

root = tempfile.mkdtemp(dir=sys.argv[1])
rtf.CacheStore(root + "/first").put(0, tf.zeros([10]))  # All that is made once is there.

def outcome(name):
  try:
    rtf.CacheStore(f"{root}/{name}").put(1, tf.zeros([10]))
    return "stored"
  except (ValueError, tf.errors.ResourceExhaustedError) as error:
    return str(error)
  finally:
    gc.collect()

def limited(kind, values):
  soft, hard = resource.getrlimit(kind)
  outcomes = []
  for value in values:
    resource.setrlimit(kind, (value, hard))
    outcomes.append(outcome(f"{kind}-{value}"))
    resource.setrlimit(kind, (soft, hard))
  return outcomes
"""

MEMORY = PREPARE + """
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
outcomes = limited(resource.RLIMIT_AS, [size + (k << 17) for k in range(12)] + [size + (256 << 20)])
assert "memory" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

FILES = PREPARE + """
free = os.dup(0)
os.close(free)
outcomes = limited(resource.RLIMIT_NOFILE, range(free, free + 24))
assert "Too many open files" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

LENGTH = PREPARE + """
outcomes = limited(resource.RLIMIT_FSIZE, [0, 1, 100, 5_000, 500_000, 10_000_000])
assert "File too large" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

# Whoever comes later is asked first.
HANDLER = PREPARE + """
dataset = tf.data.Dataset.range(300).refurbish(lambda x: x, r=2, seed=1, store=root + "/cut")
assert len(list(dataset)) == 300
faulthandler.enable(open(os.devnull, "w"))
os.truncate(root + "/cut/index", 0)
assert len(list(dataset)) == 300
"""


@pytest.mark.parametrize("script", [MEMORY, FILES, LENGTH, HANDLER], ids=["memory", "open files", "length of files", "handler"])
def test_ends_well(tmp_path, script):
  """An error that says what there is too little of, or none; the process goes on."""
  done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=200, check=False)
  assert done.returncode == 0, done.stderr
