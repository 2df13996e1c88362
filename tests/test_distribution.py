"""Many workers: what each of the recipes of docs/workers.md keeps, with workers that are processes of their own."""
import collections
import contextlib
import json
import os
import pathlib
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

import refurbish_tf as rtf

service = tf.data.experimental.service
Policy = service.ShardingPolicy
SHARD_HINT = tf.data.experimental.SHARD_HINT

N, R, EPOCHS = 12, 2, 4
# Long enough for a machine that does something else, too; only what has gone wrong takes it.
TIMEOUT = 180

# Elements tell which worker made them by a file in its working directory.
WORKER = """
import pathlib, sys
import tensorflow as tf
dispatcher, name, port, package = sys.argv[1:]
if package:
  __import__(package)
pathlib.Path("name").write_text(name)
worker = tf.data.experimental.service.WorkerServer(tf.data.experimental.service.WorkerConfig(
    dispatcher_address=dispatcher, port=int(port), heartbeat_interval_ms=500))
print("ready", worker._address, flush=True)
sys.stdin.read()
"""


def partial_fn(index, seed):
  """The second number is another one for each generation of a sample."""
  return tf.stack([index, tf.cast(seed[0], tf.int64)])


def final_fn(sample):
  worker = tf.strings.to_number(tf.io.read_file("name"), tf.int64)
  return tf.concat([[worker], sample], axis=0)


def within_timeout(function, *args):
  """What `function` returns. TimeoutError rather than waiting for ever for a worker that is not there."""
  outcome = queue.Queue()

  def call():
    try:
      outcome.put((function(*args), None))
    except BaseException as error:  # pylint: disable=broad-except
      outcome.put((None, error))

  threading.Thread(target=call, daemon=True).start()
  try:
    result, error = outcome.get(timeout=TIMEOUT)
  except queue.Empty:
    raise TimeoutError(f"not done after {TIMEOUT} s") from None
  if error is not None:
    raise error
  return result


def to_list(dataset):
  return within_timeout(lambda: [element.tolist() for element in dataset.as_numpy_iterator()])


def environment():
  path = [str(pathlib.Path(rtf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
  return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": "-1"}


@contextlib.contextmanager
def killed_at_the_end():
  """A list of processes, which are killed however the test ends."""
  processes = []
  try:
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.communicate()


class Service:
  """A dispatcher in this process, and workers that are processes of their own."""

  def __init__(self, directory, processes, num_workers=2, package="refurbish_tf"):
    self.directory = directory
    self.processes = processes
    self.package = package
    # Static sharding wants to know the workers beforehand; that of each is filled in when it comes.
    self.dispatcher = service.DispatchServer(service.DispatcherConfig(
        worker_addresses=["localhost:%port%"] * num_workers, worker_timeout_ms=2000))
    self.started = [self.start(name) for name in range(num_workers)]
    self.ports = [within_timeout(self.port, process) for process in self.started]

  def start(self, name, port=0):
    directory = self.directory / f"worker {name}"
    directory.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, self.dispatcher.target.split("://")[1], str(name), str(port), self.package],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory, env=environment(), text=True)
    self.processes.append(process)
    return process

  @staticmethod
  def port(process):
    ready, address = process.stdout.readline().split()
    assert ready == "ready"
    return int(address.split(":")[1])

  def distribute(self, policy, dataset, **options):
    return dataset.apply(service.distribute(policy, self.dispatcher.target, **options))

  def read(self, policy, dataset):
    return to_list(self.distribute(policy, dataset))


@pytest.fixture(scope="module", name="two_workers")
def fixture_two_workers(tmp_path_factory):
  with killed_at_the_end() as processes:
    yield Service(tmp_path_factory.mktemp("service"), processes)


@pytest.fixture(scope="module", name="files")
def fixture_files(tmp_path_factory):
  """Three files of N / 3 records."""
  paths = [str(tmp_path_factory.mktemp("files") / f"{i}.tfrecord") for i in range(3)]
  for i, path in enumerate(paths):
    with tf.io.TFRecordWriter(path) as writer:
      for index in range(i * N // 3, (i + 1) * N // 3):
        writer.write(str(index).encode())
  return paths


def records(paths):
  return paths.interleave(tf.data.TFRecordDataset, cycle_length=2).map(
      lambda text: tf.strings.to_number(text, tf.int64))


def stream():
  return tf.data.Dataset.range(N).filter(lambda index: True)


def refurbish(source, **options):
  return source.refurbish(partial_fn, final_fn, r=R, seed=1, **options)


def by_worker(elements):
  """For each worker what it has made, in order: (index, generation) each."""
  workers = collections.defaultdict(list)
  for worker, index, generation in elements:
    workers[worker].append((index, generation))
  return workers


def assert_refurbished(elements, indices, epochs=EPOCHS):
  """G1, G2 and G3 of one worker: whole epochs of `indices`, each sample prepared used at most R times."""
  n = len(indices)
  assert len(elements) == epochs * n
  for begin in range(0, epochs * n, n):
    assert sorted(index for index, _ in elements[begin:begin + n]) == list(indices)
  uses = collections.Counter(elements)
  assert max(uses.values()) <= R
  assert len(uses) == n + (epochs - 1) * n // R


@pytest.mark.parametrize("source", [lambda: tf.data.Dataset.range(N), stream])
def test_off_each_worker_yields_whole_epochs(two_workers, source):
  workers = by_worker(two_workers.read(Policy.OFF, refurbish(source()).repeat(EPOCHS)))
  assert sorted(workers) == [0, 1]
  for elements in workers.values():
    assert_refurbished(elements, range(N))


def test_functions_bring_what_they_capture_and_call(two_workers):
  """To another process, which traces nothing: values, control flow, functions of their own, of refurbish and of echo."""
  table, steps = tf.constant([10 * k for k in range(N)], tf.int64), tf.constant(3, tf.int64)

  @tf.function
  def look_up(x):
    return tf.gather(table, x)

  def partial(x):
    y = look_up(x)
    for _ in tf.range(steps):
      y = y + 1 if x % 2 == 0 else y - 1
    return y

  def final(y):
    return tf.map_fn(lambda k: y + k + steps, tf.range(2, dtype=tf.int64))

  dataset = tf.data.Dataset.range(N).refurbish(partial, final, r=2, seed=1).echo(
      1, "after_augment", augment_fn=lambda y: y + table[1], batch_size=1)
  found = two_workers.distribute(Policy.OFF, dataset)
  expected = [10 * x + (3 if x % 2 == 0 else -3) + 3 + 10 for x in range(N)]
  assert sorted(int(pair[0, 0]) for pair in found) == sorted(2 * expected)
  assert all(pair[0, 1] == pair[0, 0] + 1 for pair in found)


@pytest.mark.parametrize("n", [N, N + 1])
def test_hint_each_worker_yields_whole_epochs_of_its_share(two_workers, n):
  source = tf.data.Dataset.range(n).shard(SHARD_HINT, SHARD_HINT)
  workers = by_worker(two_workers.read(Policy.HINT, refurbish(source).repeat(2 * R)))
  shards = {elements[0][0] % 2: elements for elements in workers.values()}
  assert sorted(shards) == [0, 1]
  for shard, elements in shards.items():
    if n % 2 == 0 or shard == 1:
      assert_refurbished(elements, range(shard, n, 2), epochs=2 * R)
  counts = collections.Counter(index for elements in workers.values() for index, _ in elements)
  assert counts == {index: 2 * R for index in range(n)}


def test_hint_works_on_file_names(two_workers, files):
  source = records(tf.data.Dataset.from_tensor_slices(files).shard(SHARD_HINT, SHARD_HINT))
  workers = by_worker(two_workers.read(Policy.HINT, refurbish(source).repeat(EPOCHS)))
  shares = sorted(sorted({index for index, _ in elements}) for elements in workers.values())
  assert shares == [[*range(N // 3), *range(2 * N // 3, N)], [*range(N // 3, 2 * N // 3)]]
  for elements in workers.values():
    assert_refurbished(elements, sorted({index for index, _ in elements}))


def test_hint_works_where_the_source_has_as_many_elements_as_there_are_workers(two_workers):
  """TensorFlow says that two elements, sharded by a hint, are infinitely many."""
  dataset = refurbish(tf.data.Dataset.range(2).shard(SHARD_HINT, SHARD_HINT))
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  elements = two_workers.read(Policy.HINT, dataset.repeat(3))
  assert sorted(index for _, index, _ in elements) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("policy, source", [(Policy.DATA, "range"), (Policy.FILE_OR_DATA, "files")])
def test_data_all_workers_together_yield_whole_epochs(two_workers, files, policy, source):
  """Each worker prepares every sample and drops those of the others."""
  source = tf.data.Dataset.range(N) if source == "range" else records(tf.data.Dataset.from_tensor_slices(files))
  workers = by_worker(two_workers.read(policy, refurbish(source).repeat(EPOCHS)))
  assert sorted(workers) == [0, 1]
  for begin in range(0, EPOCHS * N // 2, N // 2):
    epoch = [index for elements in workers.values() for index, _ in elements[begin:begin + N // 2]]
    assert sorted(epoch) == list(range(N))


def test_file_is_refused(two_workers, files):
  """By TensorFlow, which knows its own stages only."""
  source = records(tf.data.Dataset.from_tensor_slices(files))
  with pytest.raises(tf.errors.NotFoundError, match="(?s)Did not find a shardable source.*Refurbish"):
    two_workers.read(Policy.FILE, refurbish(source))


@pytest.mark.parametrize("source", [lambda: tf.data.Dataset.range(N), stream])
def test_dynamic_is_refused(two_workers, source):
  with pytest.raises(tf.errors.FailedPreconditionError, match="Dynamic sharding .* Use ShardingPolicy.OFF"):
    two_workers.read(Policy.DYNAMIC, refurbish(source()).repeat(EPOCHS))


def test_a_job_without_repeat_begins_anew(two_workers):
  """Each iteration is a job, and a worker keeps nothing of the one before: so put repeat before distribute."""
  dataset = two_workers.distribute(Policy.OFF, refurbish(tf.data.Dataset.range(N)))
  epochs = [to_list(dataset) for _ in range(2)]
  for epoch in epochs:
    for elements in by_worker(epoch).values():
      assert_refurbished(elements, range(N), epochs=1)
  assert sorted(epochs[0]) == sorted(epochs[1])


def test_a_job_goes_on_with_a_store_on_disk(two_workers, tmp_path):
  dataset = two_workers.distribute(Policy.OFF, refurbish(tf.data.Dataset.range(N), store=tmp_path))
  generations = set()
  for _ in range(3):
    for elements in by_worker(to_list(dataset)).values():
      assert sorted(index for index, _ in elements) == list(range(N))
      generations.update(elements)
  assert len(generations) > N


def test_shares_cannot_have_one_store_on_disk(two_workers, tmp_path):
  source = tf.data.Dataset.range(N).shard(SHARD_HINT, SHARD_HINT)
  with pytest.raises(tf.errors.FailedPreconditionError, match="shard is . of 2, but it was . of 2"):
    two_workers.read(Policy.HINT, refurbish(source, store=tmp_path).repeat(EPOCHS))
  refurbish(tf.data.Dataset.range(N).shard(2, 0), store=tmp_path / "other")
  with pytest.raises(ValueError, match="shard is 1 of 2, but it was 0 of 2"):
    refurbish(tf.data.Dataset.range(N).shard(2, 1), store=tmp_path / "other")


def test_shares_cannot_have_one_process():
  dispatcher = service.DispatchServer(service.DispatcherConfig(worker_addresses=["localhost:%port%"] * 2))
  config = service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
  workers = [service.WorkerServer(config) for _ in range(2)]
  dataset = tf.data.Dataset.range(N).shard(SHARD_HINT, SHARD_HINT).refurbish(partial_fn, r=R).apply(
      service.distribute(Policy.HINT, dispatcher.target))
  with pytest.raises(tf.errors.FailedPreconditionError, match="Let each worker .* be a process of its own"):
    within_timeout(lambda: list(dataset))
  del workers


def test_killed_worker_begins_its_share_anew(tmp_path):
  """The job ends when the worker is back at its address. Every element came at least once; of others none too many."""
  n = 200
  sources = {
      Policy.OFF: tf.data.Dataset.range(n), Policy.HINT: tf.data.Dataset.range(n).shard(SHARD_HINT, SHARD_HINT)}
  elements = {policy: [] for policy in sources}
  with killed_at_the_end() as processes:
    workers = Service(tmp_path, processes)
    # Batches of one element and few of them under way, so that much is left when the worker is killed.
    iterators = {
        policy: iter(workers.distribute(
            policy, refurbish(source, num_parallel_calls=1).repeat(EPOCHS).batch(1), max_outstanding_requests=2))
        for policy, source in sources.items()}

    def read_until_it_has_begun(policy):
      while len(by_worker(elements[policy])[0]) < n // 10:
        elements[policy] += next(iterators[policy]).numpy().tolist()

    def read_to_the_end(policy):
      for batch in iterators[policy]:
        elements[policy] += batch.numpy().tolist()

    for policy in sources:
      within_timeout(read_until_it_has_begun, policy)
    workers.started[0].send_signal(signal.SIGKILL)
    workers.started[0].wait()
    within_timeout(workers.port, workers.start(2, workers.ports[0]))
    for policy in sources:
      within_timeout(read_to_the_end, policy)
  for policy in sources:
    made = by_worker(elements[policy])
    shares = {worker: sorted({index for index, _ in made[worker]}) for worker in (1, 2)}
    assert len(made[0]) < EPOCHS * len(shares[2])
    assert_refurbished(made[1], shares[1])
    assert_refurbished(made[2], shares[2])
    assert sorted({*shares[1], *shares[2]}) == list(range(n))
    assert len(shares[1]) == len(shares[2]) == (n if policy == Policy.OFF else n // 2)


def test_worker_without_the_package_is_told_of_it(tmp_path):
  with killed_at_the_end() as processes:
    workers = Service(tmp_path, processes, num_workers=1, package="")
    with pytest.raises(tf.errors.NotFoundError, match="Op type not registered 'RefurbishTf>"):
      workers.read(Policy.OFF, refurbish(tf.data.Dataset.range(N)))


def run(program, *arguments, config=None):
  """Starts a program that prints a line of JSON at its end."""
  variables = environment()
  if config is not None:
    variables["TF_CONFIG"] = json.dumps(config)
  return subprocess.Popen(
      [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
      text=True)


def result(process):
  output, errors = process.communicate(timeout=TIMEOUT)
  assert process.returncode == 0, errors
  return json.loads(output.splitlines()[-1])


MIRRORED = """
import json
import tensorflow as tf
device, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import refurbish_tf as rtf

N, EPOCHS = 40, 3
Policy = tf.data.experimental.AutoShardPolicy
SHARD_HINT = tf.data.experimental.SHARD_HINT
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2


def refurbish(source, final_fn=None):
  return source.refurbish(tf.identity, final_fn, r=2, seed=1)


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
    return self.total


dataset = refurbish(tf.data.Dataset.range(N), final_fn).batch(8)
with strategy.scope():
  model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
  model.compile("sgd", "mse", metrics=[Seen(0), Seen(1), Seen(2)])
history = model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False).history
result = {"fit": [history[f"seen_{column}"] for column in range(3)], "fit counts": counts(dataset)}
for name in ("AUTO", "DATA", "OFF", "HINT", "HINT, read before"):
  source = tf.data.Dataset.range(N)
  if name.startswith("HINT"):
    source = source.shard(SHARD_HINT, SHARD_HINT)
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = getattr(Policy, name.split(",")[0])
  dataset = refurbish(source).batch(8).with_options(options)
  if name == "HINT, read before":
    try:
      next(iter(dataset))
    except tf.errors.FailedPreconditionError as error:
      assert "SHARD_HINT" in error.message
  result[name] = read(strategy.experimental_distribute_dataset(dataset))
  result[name + " counts"] = counts(dataset)
print(json.dumps(result))
"""


def test_mirrored_strategy_trains_on_every_sample_once_an_epoch():
  with killed_at_the_end() as processes:
    processes.append(run(MIRRORED))
    found = result(processes[0])
  n, epochs = 40, 3
  for column, each in enumerate([lambda i: 1, lambda i: i, lambda i: i * i % 251]):
    assert found["fit"][column] == [sum(map(each, range(n)))] * epochs
  for name in ("AUTO", "DATA", "OFF", "HINT", "HINT, read before"):
    assert [sorted(epoch) for epoch in found[name]] == [list(range(n))] * epochs
  # Keras makes one more iterator to build the model, and drops it on its way.
  assert found["fit counts"][0][0] <= n and found["fit counts"][-2:] == [[n // 2, n // 2]] * 2
  for name in ("AUTO", "DATA", "OFF", "HINT"):
    # One iterator feeds both devices.
    assert found[f"{name} counts"][:epochs] == [[n, 0]] + [[n // 2, n // 2]] * (epochs - 1)


MULTI_WORKER = """
import json, sys
import tensorflow as tf
import refurbish_tf as rtf

N, EPOCHS = 40, 3
Policy = tf.data.experimental.AutoShardPolicy
SHARD_HINT = tf.data.experimental.SHARD_HINT
strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id
paths = json.loads(sys.argv[1])


def read(dataset):
  epochs = []
  for _ in range(EPOCHS):
    epochs.append([])
    for batch in dataset:
      for part in strategy.experimental_local_results(batch):
        epochs[-1] += part.numpy().tolist()
  return epochs


def distribute(source, policy, seed=1, **how):
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = policy
  dataset = source.refurbish(tf.identity, r=2, seed=seed, **how).batch(8).with_options(options)
  epochs = read(strategy.experimental_distribute_dataset(dataset))
  stage, = rtf.stats(dataset)
  return epochs, [[epoch.fresh, epoch.cached] for epoch in stage.epochs]


source = tf.data.Dataset.range(N)
records = tf.data.TFRecordDataset(paths).map(lambda text: tf.strings.to_number(text, tf.int64))
result = {
    "shard": distribute(source.shard(2, worker), Policy.OFF, seed=None),
    "hint": distribute(source.shard(SHARD_HINT, SHARD_HINT), Policy.HINT, seed=None),
    "auto": distribute(source, Policy.AUTO),
    "auto, files": distribute(records, Policy.AUTO),
    "off": distribute(source, Policy.OFF)}


def make(context):
  return source.shard(context.num_input_pipelines, context.input_pipeline_id).refurbish(tf.identity, r=2).batch(4)


share = source.shard(SHARD_HINT, SHARD_HINT)
result["hint, disk"] = distribute(share, Policy.HINT, store=f"{sys.argv[2]} {worker}")
result["hint, the same disk"] = distribute(share, Policy.HINT, store=f"{sys.argv[2]} {worker}")[0], None
try:
  distribute(share, Policy.HINT, store=f"{sys.argv[2]} {1 - worker}")
except tf.errors.FailedPreconditionError as error:
  result["store of the other"] = error.message
result["function"] = read(strategy.distribute_datasets_from_function(make)), None
try:
  distribute(records, Policy.FILE)
except tf.errors.NotFoundError as error:
  result["file"] = error.message
print(json.dumps(result))
"""


def free_port():
  """One that the system gives to nobody who asks for any: below those, so that no other test gets it meanwhile."""
  while True:
    port = random.randrange(20_000, 32_768)
    with socket.socket() as found, contextlib.suppress(OSError):
      found.bind(("localhost", port))
      return port


def test_multi_worker_mirrored_strategy(files, tmp_path):
  """Sharded before the stage, each worker has whole epochs of its share. With auto-sharding all have them together."""
  n = 40
  with killed_at_the_end() as processes:
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    for index in range(2):
      processes.append(run(MULTI_WORKER, json.dumps(files), str(tmp_path / "store"), config={
          "cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}))
    workers = [result(process) for process in processes]
  for name in ("shard", "hint", "hint, disk", "hint, the same disk", "function"):
    for index, worker in enumerate(workers):
      epochs, counts = worker[name]
      assert [sorted(epoch) for epoch in epochs] == [list(range(index, n, 2))] * 3
      assert counts in (None, [[n // 2, 0], [n // 4, n // 4], [n // 4, n // 4]])
  for name, size in (("auto", n), ("auto, files", N)):
    for both in zip(*(worker[name][0] for worker in workers)):
      assert sorted(both[0] + both[1]) == list(range(size))
    for worker in workers:
      # Each prepares what all need.
      assert worker[name][1] == [[size, 0]] + [[size // 2, size // 2]] * 2
  for worker in workers:
    assert [sorted(epoch) for epoch in worker["off"][0]] == [list(range(n))] * 3
    assert "Did not find a shardable source" in worker["file"]
    assert re.search("shard is . of 2, but it was . of 2", worker["store of the other"])
