"""A stage in a worker of a tf.data service, which is another process."""
import subprocess
import sys

import tensorflow as tf

import refurbish_tf as rtf  # Attaches the method.

WORKER = """
import sys
import tensorflow as tf
import refurbish_tf
worker = tf.data.experimental.service.WorkerServer(
    tf.data.experimental.service.WorkerConfig(dispatcher_address=sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_worker_that_imported_the_package_refurbishes():
  dispatcher = tf.data.experimental.service.DispatchServer()
  address = dispatcher.target.split("://")[1]
  dataset = tf.data.Dataset.range(12).refurbish(lambda x: 10 * x, lambda x: x + 1, r=2, seed=1).repeat(3).apply(
      tf.data.experimental.service.distribute("parallel_epochs", dispatcher.target))
  with subprocess.Popen(
      [sys.executable, "-c", WORKER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
    try:
      assert worker.stdout.readline() == "ready\n"
      assert sorted(dataset.as_numpy_iterator()) == sorted(3 * [10 * i + 1 for i in range(12)])
    finally:
      worker.kill()
  assert rtf.stats(dataset) == []
