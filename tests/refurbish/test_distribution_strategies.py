"""Distribution strategies: which epochs are whole for each worker, as docs/workers.md says."""

import json
import subprocess
import sys

import pytest

from support import cases
from support.processes import N, TIMEOUT, environment, free_port, killed_at_the_end, write_files

pytestmark = cases.slow


@pytest.fixture(scope="module", name="files")
def fixture_files(tmp_path_factory):
  return write_files(tmp_path_factory)


def run(program, *arguments, config=None):
  """Starts a program that prints a line of JSON when it ends."""
  variables = environment()
  if config is not None:
    variables["TF_CONFIG"] = json.dumps(config)
  return subprocess.Popen(
    [sys.executable, "-c", program, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=variables,
    text=True,
  )


def result(process):
  output, errors = process.communicate(timeout=TIMEOUT)
  assert process.returncode == 0, errors
  return json.loads(output.splitlines()[-1])


COMMON = """
import json, os, sys
import tensorflow as tf
if "TF_CONFIG" in os.environ:
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
  device, = tf.config.list_physical_devices("CPU")
  tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
  strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
import refurbish_tf as rtf
assert not {"refurbish_tf.cli", "tensorflow_datasets"} & set(sys.modules)  # They cost seconds, and few need them.

N, EPOCHS = 40, 2
Policy = tf.data.experimental.AutoShardPolicy
SHARD_HINT = tf.data.experimental.SHARD_HINT
source = tf.data.Dataset.range(N)
share = source.shard(SHARD_HINT, SHARD_HINT)


def counts(dataset):
  stage, = rtf.stats(dataset)
  return [[epoch.fresh, epoch.cached] for epoch in stage.epochs]


def read(dataset):
  epochs = []
  for _ in range(EPOCHS):
    epochs.append([])
    for batch in dataset:
      for part in strategy.experimental_local_results(batch):
        epochs[-1] += part.numpy().tolist()
  return epochs


def distribute(source, policy, before=lambda dataset: None, **how):
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = policy
  dataset = source.refurbish(tf.identity, r=2, **{"seed": 1, **how}).batch(8).with_options(options)
  before(dataset)
  return read(strategy.experimental_distribute_dataset(dataset)), counts(dataset)
"""
MIRRORED = (
  COMMON
  + """
import keras


def final_fn(index):
  # Sums of these tell whether every sample came once; float32 holds them exactly.
  seen = tf.cast(tf.stack([1, index, index * index % 251]), tf.float32)
  return seen / N, seen


class Seen(keras.metrics.Metric):
  def __init__(self, column):
    super().__init__(name=f"seen_{column}")
    self.column = column
    self.total = self.add_variable((), "zeros", name="total")

  def update_state(self, y_true, y_pred, sample_weight=None):
    self.total.assign_add(tf.reduce_sum(y_true[:, self.column]))

  def result(self):
    return self.total + 0.0  # Not the variable, which Keras 3.10 would put into the history.


def refused(dataset):
  try:
    next(iter(dataset))
  except tf.errors.FailedPreconditionError as error:
    assert "SHARD_HINT" in error.message


dataset = source.refurbish(tf.identity, final_fn, r=2, seed=1).batch(8)
with strategy.scope():
  model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
  model.compile("sgd", "mse", metrics=[Seen(0), Seen(1), Seen(2)])
for _ in range(3):
  iter(strategy.experimental_distribute_dataset(dataset))  # Not read, it begins no epoch.
assert counts(dataset) == []
history = model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False).history
print(json.dumps({
    "fit": ([history[f"seen_{column}"] for column in range(3)], counts(dataset)),
    "auto": distribute(source, Policy.AUTO), "hint": distribute(share, Policy.HINT),
    "hint, read before": distribute(share, Policy.HINT, refused)}))
"""
)


def test_mirrored_strategy_trains_on_every_sample_once_an_epoch():
  with killed_at_the_end() as processes:
    processes.append(run(MIRRORED))
    found = result(processes[0])
  n, epochs = 40, 2
  seen, counts = found.pop("fit")
  assert seen == [[sum(map(each, range(n)))] * epochs for each in (lambda i: 1, lambda i: i, lambda i: i * i % 251)]
  # Keras reads one more iterator to build the model, and drops it before the end.
  assert 0 < counts[0][0] <= n and counts[0][1] == 0
  assert [sum(epoch) for epoch in counts[1:]] == [n] * epochs and counts[-1] == [n // 2, n // 2]
  for name, (read, counts) in found.items():
    assert [sorted(epoch) for epoch in read] == [list(range(n))] * epochs
    # One iterator feeds both devices.
    assert counts[:epochs] == [[n, 0], [n // 2, n // 2]] or name == "hint, read before"


MULTI_WORKER = (
  COMMON
  + """
worker = strategy.cluster_resolver.task_id
records = tf.data.TFRecordDataset(json.loads(sys.argv[1])).map(lambda text: tf.strings.to_number(text, tf.int64))
result = {
    "shard": distribute(source.shard(2, worker), Policy.OFF, seed=None),
    "hint": distribute(share, Policy.HINT, seed=None),
    "auto": distribute(source, Policy.AUTO),
    "auto, files": distribute(records, Policy.AUTO),
    "off": distribute(source, Policy.OFF)}


def make(context):
  return source.shard(context.num_input_pipelines, context.input_pipeline_id).refurbish(tf.identity, r=2).batch(4)


result["hint, disk"] = distribute(share, Policy.HINT, store=f"{sys.argv[2]} {worker}")
result["hint, the same disk"] = distribute(share, Policy.HINT, store=f"{sys.argv[2]} {worker}")[0], None
result["function"] = read(strategy.distribute_datasets_from_function(make)), None
print(json.dumps(result))
"""
)


# Tests TensorFlow's own strategy, in addition to the policies above and the shards in test_distribution.py.
@cases.only_exhaustive
def test_multi_worker_mirrored_strategy(files, tmp_path):
  """If sharded before the stage, each worker has whole epochs of its shard. With auto-sharding, only all workers
  together have whole epochs."""
  n = 40
  with killed_at_the_end() as processes:
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    for index in range(2):
      processes.append(
        run(
          MULTI_WORKER,
          json.dumps(files),
          str(tmp_path / "store"),
          config={"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}},
        )
      )
    workers = [result(process) for process in processes]
  for name in ("shard", "hint", "hint, disk", "hint, the same disk", "function"):
    for index, worker in enumerate(workers):
      epochs, counts = worker[name]
      assert [sorted(epoch) for epoch in epochs] == [list(range(index, n, 2))] * 2
      assert counts in (None, [[n // 2, 0], [n // 4, n // 4]])
  for name, size in (("auto", n), ("auto, files", N)):
    for both in zip(*(worker[name][0] for worker in workers)):
      assert sorted(both[0] + both[1]) == list(range(size))
    for worker in workers:
      # Each worker prepares all samples.
      assert worker[name][1] == [[size, 0], [size // 2, size // 2]]
  for worker in workers:
    assert [sorted(epoch) for epoch in worker["off"][0]] == [list(range(n))] * 2
