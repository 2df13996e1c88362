"""A store on disk when the process is short of a resource, or other code handles its signals."""

from support import cases
from support.processes import outputs_of

pytestmark = cases.slow

PREPARE = """
import faulthandler, gc, os, resource, sys, tempfile, traceback
import tensorflow as tf, refurbish_tf as rtf

root = sys.argv[1]

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

# TensorFlow is imported once, and each is a process of its own. What is there is not looked at by each `gc.collect`.
gc.freeze()
for script in sys.argv[2:]:
  process = os.fork()
  if process == 0:
    try:
      root = tempfile.mkdtemp(dir=root)
      rtf.CacheStore(root + "/first").put(0, tf.zeros([10]))  # All that is made once is there.
      exec(script)
    except BaseException:
      traceback.print_exc()
      os._exit(1)
    os._exit(0)
  assert os.waitpid(process, 0)[1] == 0, script
"""

MEMORY = """
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
outcomes = limited(resource.RLIMIT_AS, [size + (k << 17) for k in range(12)] + [size + (256 << 20)])
assert "memory" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

FILES = """
free = os.dup(0)
os.close(free)
outcomes = limited(resource.RLIMIT_NOFILE, range(free, free + 24))
assert "Too many open files" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

LENGTH = """
outcomes = limited(resource.RLIMIT_FSIZE, [0, 1, 100, 5_000, 500_000, 10_000_000])
assert "File too large" in outcomes[0] and outcomes[-1] == "stored", outcomes
"""

# The signal handler that was installed last, here that of faulthandler, is called first.
HANDLER = """
dataset = tf.data.Dataset.range(300).refurbish(lambda x: x, r=2, seed=1, store=root + "/cut")
assert len(list(dataset)) == 300
faulthandler.enable(open(os.devnull, "w"))
os.truncate(root + "/cut/index", 0)
assert len(list(dataset)) == 300
"""


def test_a_resource_shortage_gives_no_error_or_a_clear_one(tmp_path):
  """The process goes on without an error, or with an error that says what is missing."""
  outputs_of(["-c", PREPARE, tmp_path, MEMORY, FILES, LENGTH, HANDLER])
