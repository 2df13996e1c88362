"""Many workers: the guarantees of each recipe for the tf.data service in docs/workers.md, with real worker
processes."""

import collections
import queue
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, services
from support.processes import N, TIMEOUT, environment, killed_at_the_end, write_files

pytestmark = cases.slow  # A service starts processes.

service = tf.data.experimental.service
Policy = service.ShardingPolicy
SHARD_HINT = tf.data.experimental.SHARD_HINT

R, EPOCHS = 2, 4

# Elements include their worker's number, from a file in its working directory.
WORKER = """
import pathlib, sys
import tensorflow as tf

import refurbish_tf as rtf
import refurbish_tf
dispatcher, name = sys.argv[1:]
pathlib.Path("name").write_text(name)
worker = tf.data.experimental.service.WorkerServer(tf.data.experimental.service.WorkerConfig(
    dispatcher_address=dispatcher, heartbeat_interval_ms=500))
print("ready", flush=True)
sys.stdin.read()
"""


def partial_fn(index, seed):
  """The second number differs for each generation of a sample."""
  return tf.stack([index, tf.cast(seed[0], tf.int64)])


def final_fn(sample):
  worker = tf.strings.to_number(tf.io.read_file("name"), tf.int64)
  return tf.concat([[worker], sample], axis=0)


def within_timeout(function, *args):
  """Returns what `function` returns. Raises TimeoutError instead of waiting permanently for a missing worker."""
  outcome = queue.Queue()

  def call():
    try:
      outcome.put((function(*args), None))
    except BaseException as error:
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


class Service:
  """A dispatcher in this process, and workers in separate processes."""

  def __init__(self, directory, processes):
    # Static sharding needs the workers' addresses beforehand; ports are filled in when a worker starts.
    self.dispatcher = service.DispatchServer(
      service.DispatcherConfig(worker_addresses=["localhost:%port%"] * 2, worker_timeout_ms=2000)
    )
    for name in "01":
      (directory / name).mkdir()
      processes.append(
        subprocess.Popen(
          [sys.executable, "-c", WORKER, self.dispatcher.target.split("://")[1], name],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          cwd=directory / name,
          env=environment(),
          text=True,
        )
      )
    for process in processes:
      assert within_timeout(process.stdout.readline) == "ready\n"

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
  return write_files(tmp_path_factory)


def records(paths):
  return paths.interleave(tf.data.TFRecordDataset, cycle_length=2).map(
    lambda text: tf.strings.to_number(text, tf.int64)
  )


def stream():
  return tf.data.Dataset.range(N).filter(lambda index: True)


def refurbish(source, **options):
  return source.refurbish(partial_fn, final_fn, r=R, seed=1, **options)


def by_worker(elements):
  """Returns the elements of each worker, in order, as (index, generation)."""
  workers = collections.defaultdict(list)
  for worker, index, generation in elements:
    workers[worker].append((index, generation))
  return workers


def assert_refurbished(elements, indices, epochs=EPOCHS):
  """Checks G1, G2 and G3 of one worker: whole epochs of `indices`, and each prepared sample used at most R times."""
  n = len(indices)
  assert len(elements) == epochs * n
  for begin in range(0, epochs * n, n):
    assert sorted(index for index, _ in elements[begin : begin + n]) == list(indices)
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
  """Captured values, control flow and inner functions of refurbish and echo work in another process, which traces
  nothing."""
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

  dataset = (
    tf.data.Dataset.range(N)
    .refurbish(partial, final, r=2, seed=1)
    .echo(1, "after_augment", augment_fn=lambda y: y + table[1], batch_size=1)
  )
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
  assert counts == dict.fromkeys(range(n), 2 * R)


def test_hint_works_on_file_names(two_workers, files):
  source = records(tf.data.Dataset.from_tensor_slices(files).shard(SHARD_HINT, SHARD_HINT))
  workers = by_worker(two_workers.read(Policy.HINT, refurbish(source).repeat(EPOCHS)))
  shares = sorted(sorted({index for index, _ in elements}) for elements in workers.values())
  assert shares == [[*range(N // 3), *range(2 * N // 3, N)], [*range(N // 3, 2 * N // 3)]]
  for elements in workers.values():
    assert_refurbished(elements, sorted({index for index, _ in elements}))


def test_hint_works_where_the_source_has_as_many_elements_as_there_are_workers(two_workers):
  """TensorFlow reports an infinite length for two elements that are sharded by a hint."""
  dataset = refurbish(tf.data.Dataset.range(2).shard(SHARD_HINT, SHARD_HINT))
  assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
  elements = two_workers.read(Policy.HINT, dataset.repeat(3))
  assert sorted(index for _, index, _ in elements) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("policy, source", [(Policy.DATA, "range"), (Policy.FILE_OR_DATA, "files")])
def test_data_all_workers_together_yield_whole_epochs(two_workers, files, policy, source):
  """Each worker prepares every sample and drops those of the other workers."""
  source = tf.data.Dataset.range(N) if source == "range" else records(tf.data.Dataset.from_tensor_slices(files))
  workers = by_worker(two_workers.read(policy, refurbish(source).repeat(EPOCHS)))
  assert sorted(workers) == [0, 1]
  for begin in range(0, EPOCHS * N // 2, N // 2):
    epoch = [index for elements in workers.values() for index, _ in elements[begin : begin + N // 2]]
    assert sorted(epoch) == list(range(N))


def test_file_is_refused(two_workers, files):
  """TensorFlow refuses it, because it knows only its own stages."""
  source = records(tf.data.Dataset.from_tensor_slices(files))
  with pytest.raises(tf.errors.NotFoundError, match="(?s)Did not find a shardable source.*Refurbish"):
    two_workers.read(Policy.FILE, refurbish(source))


@pytest.mark.parametrize("source", [lambda: tf.data.Dataset.range(N), stream])
def test_dynamic_is_refused(two_workers, source):
  with pytest.raises(tf.errors.FailedPreconditionError, match="DYNAMIC.*ShardingPolicy.OFF"):
    two_workers.read(Policy.DYNAMIC, refurbish(source()).repeat(EPOCHS))


def test_a_job_without_repeat_starts_from_scratch(two_workers):
  """Each iteration is a new job for which a worker keeps nothing, so put repeat before distribute."""
  dataset = two_workers.distribute(Policy.OFF, refurbish(tf.data.Dataset.range(N)))
  epochs = [to_list(dataset) for _ in range(2)]
  for epoch in epochs:
    for elements in by_worker(epoch).values():
      assert_refurbished(elements, range(N), epochs=1)
  assert sorted(epochs[0]) == sorted(epochs[1])


def test_shards_use_one_store_on_disk(two_workers, tmp_path):
  source = tf.data.Dataset.range(N).shard(SHARD_HINT, SHARD_HINT)
  read = two_workers.read(Policy.HINT, refurbish(source, store=tmp_path).repeat(EPOCHS))
  assert sorted(index for _, index, _ in read) == sorted([*range(N)] * EPOCHS)
  assert len(rtf.CacheStore(tmp_path)) == N


def test_shards_with_unknown_samples_cannot_use_one_store_on_disk(tmp_path):
  files = lambda i: tf.data.Dataset.range(2).shard(2, i).interleave(lambda _: tf.data.Dataset.range(N))
  refurbish(files(0), store=tmp_path)
  with pytest.raises(ValueError, match="shard is 1 of 2, but it was 0 of 2"):
    refurbish(files(1), store=tmp_path)


def test_shards_cannot_run_in_one_process():
  sharded = tf.data.Dataset.range(N).shard(SHARD_HINT, SHARD_HINT).refurbish(partial_fn, r=R)
  with services.in_this_process(2) as address:
    dataset = sharded.apply(service.distribute(Policy.HINT, address))
    with pytest.raises(tf.errors.FailedPreconditionError, match="shard . of 2 .*shard . of 2"):
      within_timeout(lambda: list(dataset))


def test_functions_in_python_are_refused_with_the_reason(two_workers):
  """Such functions exist only in the process that built the pipeline."""

  def same(index, rng):
    return index

  dataset = tf.data.Dataset.range(N).refurbish([rtf.augment.numpy_layer(same, processes=1)], r=2, seed=1)
  with pytest.raises(
    tf.errors.OpError, match="sample .* of the source.*numpy_layer.*only in the process that built the stage"
  ):
    two_workers.read(Policy.OFF, dataset)
  behind = two_workers.distribute(Policy.OFF, tf.data.Dataset.range(N).refurbish(tf.identity, r=2, seed=1))
  layer = rtf.augment.numpy_layer(same, processes=1)
  assert sorted(to_list(behind.map(lambda index: layer(index, seed=[7, 0])))) == sorted([*range(N)] * 2)
