"""Stages on a level that machines share: each generation is prepared once in all, and the guarantees hold."""

import multiprocessing
import random
import statistics
import time

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.cli import startup
from support import cases, checkpoints
from support.processes import TIMEOUT, start_forked
from support.shared_levels import CALLS, KINDS, Job, Machine, Object, Proxy, empty_levels, start_machines
from support.waiting import until

N, EPOCHS = 48, 3
service = tf.data.experimental.service


@pytest.fixture(scope="module", name="levels")
def fixture_levels(tmp_path_factory):
  with empty_levels(tmp_path_factory.mktemp("levels")) as empty:
    yield empty


@pytest.fixture(params=KINDS)
def level(request, levels):
  return levels(request.param)


def generator(n):
  return tf.data.Dataset.from_generator(lambda: range(n), output_signature=tf.TensorSpec([], tf.int64))


def test_each_generation_is_prepared_once(level):
  """Of two jobs that take turns, one prepares as much as a job without a level, and the other takes it."""
  first, second = Job(level.address, order_seed=0), Job(level.address, seconds=level.slow)
  alone = Job()
  for _ in range(EPOCHS):
    elements = sorted(first.epoch())
    level.wait_for(first)
    assert sorted(second.epoch()) == elements == sorted(alone.epoch())
  assert sorted(first.prepared) == sorted(alone.prepared) and len(second.prepared) <= EPOCHS * CALLS


def test_what_is_found_is_not_read():
  """A job does not read what it finds from a source by index, apart from what it reads before the first answer."""
  level, reads = Object(), []
  read = lambda index: (reads.append(int(index)), time.sleep(0.02), index)[2]
  source = tf.data.Dataset.range(N).map(lambda x: tf.ensure_shape(tf.numpy_function(read, [x], tf.int64), []))
  first = Job(level, source=source)
  first.epoch()
  level.wait_for(first)
  reads.clear()
  Job(level, source=source, seconds=level.slow).epoch()
  assert len(reads) <= N // 2


def test_jobs_without_a_seed_share():
  """The stages of a level have one seed, and each an order of its own."""
  level, calls = Object(), []

  def epoch(seconds):
    prepare = lambda index, seed: (calls.append(int(index)), time.sleep(seconds), seed)[2]
    stage = tf.data.Dataset.range(N).refurbish(
      lambda index, seed: (index, tf.ensure_shape(tf.numpy_function(prepare, [index, seed], tf.int32), [2])),
      store=rtf.CacheStore(shared=level, version="1"),
      num_parallel_calls=CALLS,
    )
    elements = [(int(index), *seed.tolist()) for index, seed in stage.as_numpy_iterator()]
    assert until(lambda: len(level.records()) == N, 30)
    return elements

  one, other = epoch(0), epoch(level.slow)
  assert sorted(one) == sorted(other) and one != other and len(calls) <= N + CALLS


@pytest.mark.parametrize("kind", ["index", "generator", "batch"])
@pytest.mark.parametrize("r", cases.some([2, 1, 3, 1.5], 2))
def test_epochs_are_whole_and_reuse_is_bounded(kind, r):
  """Jobs that get ahead of each other, and stop in epochs, have whole epochs and use no generation more than r times.
  `Job` checks both."""
  level, turns = Object(), random.Random(7)
  options = {"index": {}, "generator": {"source": generator(N)}, "batch": {"batch": 5}}[kind]
  jobs = [Job(level, r=r, order_seed=number, seconds=0.001 * number, **options) for number in range(3)]
  for _ in range(16):
    job = turns.choice(jobs)
    if turns.random() < 0.7:
      job.epoch()
    else:
      begun = job.elements(iter(job.dataset.batch(5) if job.batch else job.dataset))
      for _ in range(turns.randrange(1, N)):
        next(begun)


def test_moved_samples_are_found():
  """After a change of the number of workers, samples that another worker has prepared are found."""
  level = Object()

  def workers(number, seconds):
    for i in range(number):
      source = tf.data.Dataset.range(N).shard(number, i)
      yield Job(level, source=source, indices=range(i, N, number), order_seed=i, seconds=seconds)

  for job in workers(2, 0):
    job.epoch()
    level.wait_for(job)
    assert len(job.prepared) == N / 2
  for job in workers(3, level.slow):
    job.epoch()
    assert len(job.prepared) <= CALLS


@pytest.mark.parametrize("kind", ["index", "generator"])
def test_alone_on_an_empty_level_a_job_is_reproducible(kind):
  """The same seeds give the same samples in the same order, epoch by epoch."""

  def run():
    job = Job(Object(), source=generator(N) if kind == "generator" else None, order_seed=3)
    return [job.epoch() for _ in range(EPOCHS)]

  assert run() == run()


@pytest.mark.parametrize("stop", [1, N // 2, N - 1])
def test_a_restored_job_continues(tmp_path, stop):
  """The rest of the epoch has the samples and generations of the unbroken run; what is on the level is not prepared."""
  level, unbroken = Object(), Job(Object())
  expected = [unbroken.epoch() for _ in range(2)][1]
  job = Job(level)
  job.epoch()
  iterator = iter(job.dataset)
  elements = job.elements(iterator)
  begun = [next(elements) for _ in range(stop)]
  saved = checkpoints.save(iterator, tmp_path)
  level.wait_for(job)
  restored = Job(level, seconds=level.slow)
  rest = list(restored.elements(checkpoints.restore(restored.dataset, saved)))
  assert sorted(begun + rest) == sorted(expected)
  assert len(set(restored.prepared) & set(job.prepared)) <= CALLS


def test_all_jobs_keep_the_same_samples_on_a_limited_level(levels):
  """A level keeps a fixed set of samples, about as large as its limit; Redis passes on the others, for a minute."""
  limit, options, kept = 63_000, {"n": 120, "size": 1000}, None
  for order_seed, kind in enumerate(["redis", "redis", "file"]):
    level = levels(kind)
    job = Job(level.address, order_seed=order_seed, shared_max_bytes=limit, **options)
    job.epoch()
    now = lambda: {*level.records()}
    if kind == "redis":
      level.wait_for(job)
      now = lambda: {index for index, life in level.lives().items() if life == -1}
      assert 1 <= max(level.lives().values()) <= 60
      other = Job(level.address, order_seed=9, shared_max_bytes=limit, seconds=level.slow, **options)
      other.epoch()
      assert len(other.prepared) <= CALLS
    kept = kept or now()
    assert until(lambda: now() == kept, 30)
    assert 0.7 * limit < sum(len(record) for index, record in level.records().items() if index in kept) < 1.3 * limit


def test_stages_of_a_process_have_limits_of_their_own(levels):
  level = levels("redis")
  limited, job = Job(level.address, n=CALLS, shared_max_bytes=1), Job(level.address)
  iterator = iter(limited.dataset)
  next(iterator)
  job.epoch()
  level.wait_for(job)
  assert [*level.lives().values()].count(-1) >= len(job.prepared) - CALLS > 0


# How often four machines call `partial_fn`, over one alone: if they begin together; at random times of an epoch. What
# all have under way at once is prepared more than once, which counts more the fewer samples there are.
AT_ONCE, AT_RANDOM, WITH_FEW = 1.1, 1.15, 0.1


@cases.each_value
@pytest.mark.parametrize("kind", cases.some(["file", "s3", "redis"], 2))
@pytest.mark.parametrize("at_random", [False, True])
@pytest.mark.parametrize(
  "n, calls",
  [pytest.param(1200, 4, marks=cases.slow), pytest.param(20_000, 16, marks=cases.only_exhaustive)],
)
def test_four_machines_prepare_as_much_as_one(levels, kind, at_random, n, calls):
  """Machines with memory of their own, at most a few calls under way, prepare each generation about once in all."""
  address, options = levels(kind).address, {"n": n, "size": 3000, "seconds": 0.02, "num_parallel_calls": calls}
  starts = [random.Random(k).uniform(0, n * 0.02 / calls / 4) if at_random else 0 for k in range(4)]
  _, finish = start_machines(*[Machine(address, {**options, "order_seed": k}, start=starts[k]) for k in range(4)])
  results = finish()
  most = (AT_RANDOM if at_random else AT_ONCE) + (WITH_FEW if n < 20_000 else 0)
  assert sum(calls for calls, _, _ in results) <= most * (n + 2 * n / 2)


@cases.only_exhaustive
@pytest.mark.alone
def test_latency_is_hidden(levels):
  """With 30 ms of latency each way and 1 Gbit/s, four machines are at least 0.95 times as fast as without latency."""
  quotients = []
  for _ in range(3):
    seconds = []
    for delay in (0, 0.03):
      level = levels("redis")
      proxies = [Proxy(level.port, delay, 125e6) for _ in range(4)]
      addresses = [f"redis://127.0.0.1:{proxy.port}/{level.address[-1]}" for proxy in proxies]
      options = {"n": 1600, "size": 3000, "seconds": 0.02, "num_parallel_calls": 4}
      _, finish = start_machines(*[Machine(each, {**options, "order_seed": i}) for i, each in enumerate(addresses)])
      seconds.append(max(each[1] for each in finish()))
    quotients.append(seconds[0] / seconds[1])
  assert statistics.median(quotients) >= 0.95


def serve(pipe):
  """A dispatcher and a worker of a tf.data service, which know only the graph."""
  dispatcher = service.DispatchServer()
  worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
  pipe.send(dispatcher.target)
  worker.join()


@cases.slow
def test_workers_of_a_service_share(levels, tmp_path):
  """A worker in another process, which has only the graph, writes to the level and finds what is there."""
  level, calls = levels("redis"), tmp_path / "calls"

  steps = tmp_path / "steps"  # A fingerprint does not cover the contents of files.

  def prepare(index):
    tf.print(index, output_stream=f"file://{calls}")
    # Without the index TensorFlow would optimize the graph endlessly.
    many = tf.strings.to_number(tf.io.read_file(str(steps)), tf.int64) + tf.minimum(index, 0)
    return 10 * index + 0 * tf.while_loop(lambda i: i < many, lambda i: (i + 1,), [tf.constant(0, tf.int64)])[0]

  def stage(order_seed):
    return tf.data.Dataset.range(N).refurbish(
      prepare, r=2, order_seed=order_seed, store=rtf.CacheStore(shared=level.address, version="1"), num_parallel_calls=2
    )

  pipe, other = multiprocessing.Pipe()
  process = start_forked(serve, other)
  try:
    assert pipe.poll(TIMEOUT)
    target = pipe.recv()
    for order_seed, number in enumerate([0, 30_000]):
      steps.write_text(str(number))
      found = stage(order_seed).apply(service.distribute("parallel_epochs", target))
      assert sorted(found.as_numpy_iterator()) == list(range(0, 10 * N, 10))
      assert until(lambda: len(level.records()) == N, 30)
      assert N <= len(calls.read_text().split()) <= N + order_seed * CALLS
  finally:
    process.kill()


def test_the_command_lists_and_deletes(level, capsys):
  """`refurbish-tf store ADDRESS` names each prefix with its version and samples; `--delete PREFIX` deletes only that
  one."""
  if level.address is level:
    pytest.skip("a user's own object has no address")
  jobs = [Job(level.address, version=version) for version in ("my data 1", "my data 2")]
  for job in jobs:
    job.epoch()
  assert until(lambda: sum("about" not in key for key in level.entries()) == 2 * N, 30)
  assert startup.main(["store", level.address]) == 0
  printed = capsys.readouterr().out
  prefixes = sorted({key.rpartition("refurbish/")[2].split("/")[0] for key in level.entries()})
  assert len(prefixes) == 2 and all(f"refurbish/{prefix}" in printed for prefix in prefixes)
  assert "my data 1" in printed and "my data 2" in printed and printed.count(f"{N}") >= 2
  assert startup.main(["store", level.address, "--delete", f"refurbish/{prefixes[0]}"]) == 0
  assert {key.rpartition("refurbish/")[2].split("/")[0] for key in level.entries()} == {prefixes[1]}
