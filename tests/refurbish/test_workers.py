"""The functions of `refurbish` run on the stage's workers: how many at once, on which executor, and everything that
`map` allows."""

import multiprocessing
import os
import pathlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import refurbish_tf as rtf
from support.checkpoints import restore, save
from support.datasets import CallsAtOnce, in_python, read, with_options
from support.processes import end_of, start_forked
from support.waiting import until

Dataset = tf.data.Dataset


@pytest.mark.parametrize("calls", [None, 1, 3])
def test_no_more_calls_at_once_than_asked_for(calls):
  partial, final = CallsAtOnce(), CallsAtOnce()
  dataset = Dataset.range(30).refurbish(partial, final, r=2, seed=1, num_parallel_calls=calls)
  for _ in range(2):
    assert sorted(dataset.as_numpy_iterator()) == list(range(30))
  assert max(partial.most, final.most) <= (calls or 1)
  assert len(partial.order) == 45 and len(final.order) == 60


def test_autotune_is_the_size_of_a_thread_pool_of_the_user():
  calls = CallsAtOnce()
  dataset = with_options(Dataset.range(60).refurbish(calls, seed=1), "threading", private_threadpool_size=2)
  assert sorted(dataset.as_numpy_iterator()) == list(range(60))
  assert calls.most <= 2


@pytest.mark.parametrize("bad", [-2, -7, 1025])
def test_bad_numbers_of_calls_in_a_tensor(bad):
  with pytest.raises(ValueError, match=f"num_parallel_calls .*1024.* got {bad}"):
    Dataset.range(3).refurbish(tf.identity, num_parallel_calls=tf.constant(bad, tf.int64))


def threads():
  return len(list(pathlib.Path("/proc/self/task").iterdir()))


def test_cached_samples_without_final_fn_need_no_worker_thread():
  """An epoch of cached samples without final_fn is read by its consumer alone."""
  dataset = Dataset.range(200).refurbish(tf.identity, r=1e9, seed=1, num_parallel_calls=8)
  list(dataset)
  iterator = iter(dataset)
  before = threads()
  for _ in range(100):
    next(iterator)
  assert threads() == before
  # With work there are seven worker threads, and the consumer is the eighth.
  iterator = iter(Dataset.range(200).refurbish(tf.identity, num_parallel_calls=8))
  before = threads()
  next(iterator)
  assert before < threads() <= before + 7


def test_a_slow_source_does_not_delay_cached_samples():
  """While a fresh sample is read, final_fn runs on the cached samples after it."""
  go = threading.Event()
  reading, finished = [], []

  def read(x):
    reading.append(int(x))
    go.wait(60)
    return x

  def finish(x):
    finished.append(int(x))
    return x

  go.set()
  dataset = (
    Dataset.range(64).map(in_python(read)).refurbish(tf.identity, in_python(finish), r=4, seed=1, num_parallel_calls=3)
  )
  list(dataset)
  go.clear()
  finished.clear()
  iterator = iter(dataset)
  taking = threading.Thread(target=lambda: [next(iterator) for _ in range(64)])
  taking.start()
  # 16 of the 64 places in progress are fresh.
  assert until(lambda: len(finished) >= 9, 60)
  go.set()
  taking.join(60)
  assert not taking.is_alive()


@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_slow_sample_does_not_hold_up_the_others(batch_size):
  """They are prepared in the meantime, and come after it, in order."""
  go, finished, slow = threading.Event(), [], []

  def prepare(x):
    if x in slow:
      go.wait(60)
    finished.append(int(x))
    return x

  def make():
    stage = Dataset.range(400).refurbish(in_python(prepare), seed=1, num_parallel_calls=2)
    return stage.batch(batch_size).unbatch() if batch_size else stage

  order = [int(x) for x in make()]
  slow.append(order[8])
  finished.clear()
  found = []
  taking = threading.Thread(target=lambda: found.extend(int(x) for x in make()))
  taking.start()
  assert until(lambda: len(finished) == 399, 60), len(finished)
  assert found in (order[:8], [])
  go.set()
  taking.join(60)
  assert found == order


# Kinds of functions. --------------------------------------------------------------------------------------------------


@tf.function
def traced_elsewhere(x):
  return tf.cond(x % 2 == 0, lambda: 10 * x, lambda: -x)


def outcome_of_traced_elsewhere(x):
  return 10 * x if x % 2 == 0 else -x


class Table:
  """The table is created at the first call."""

  def __call__(self, x):
    keys = tf.range(8, dtype=tf.int64)
    self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * keys), -1)
    return self.table.lookup(x)


def old_style(x):
  """Control flow of version 1, which the single-threaded executor rejects."""
  graph_def = tf.Graph()
  with graph_def.as_default():
    tf.compat.v1.disable_control_flow_v2()
    try:
      given = tf.compat.v1.placeholder(tf.int64, [])
      tf.compat.v1.cond(given > 3, lambda: given + 100, lambda: given - 100, name="result")
    finally:
      tf.compat.v1.enable_control_flow_v2()
  name = next(node.name for node in graph_def.as_graph_def().node if node.op == "Merge")
  (result,) = tf.graph_util.import_graph_def(graph_def.as_graph_def(), {given.op.name: x}, [f"{name}:0"])
  return result


def branch(x):
  if x > 3:
    return x
  else:
    return -x


# A function, and the same function in Python.
FUNCTIONS = {
  "cond": (lambda x: tf.cond(x > 3, lambda: x, lambda: -x), lambda x: x if x > 3 else -x),
  "if": (branch, branch),
  "switch_case": (
    lambda x: tf.switch_case(tf.cast(x % 3, tf.int32), [lambda: x, lambda: x + 10, lambda: x + 20]),
    lambda x: x + 10 * (x % 3),
  ),
  "a long while": (
    lambda x: x + tf.cast(tf.while_loop(lambda k: k < 20_000, lambda k: (k + 1,), [0])[0], tf.int64),
    lambda x: x + 20_000,
  ),
  "map_fn": (
    lambda x: tf.reduce_sum(tf.map_fn(lambda y: y + x, tf.range(1_000, dtype=tf.int64))),
    lambda x: 1_000 * x + 499_500,
  ),
  "a tf.function that was traced before": (traced_elsewhere, outcome_of_traced_elsewhere),
  "table": (Table(), lambda x: x * x),
  "numpy_function": (in_python(lambda x: x + 5), lambda x: x + 5),
  "py_function": (lambda x: tf.ensure_shape(tf.py_function(lambda x: x + 5, [x], tf.int64), []), lambda x: x + 5),
  "a dataset within": (
    lambda x: Dataset.range(x).reduce(tf.constant(0, tf.int64), lambda a, b: a + b),
    lambda x: x * (x - 1) // 2,
  ),
  "compiled": (tf.function(lambda x: x + 1, jit_compile=True), lambda x: x + 1),
  "strings": (lambda x: tf.strings.to_number(tf.strings.as_string(x) + "1", tf.int64), lambda x: 10 * x + 1),
  "control flow of version 1": (old_style, lambda x: x + 100 if x > 3 else x - 100),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(kind):
  """Each kind of function works as partial_fn and as final_fn, with and without threads."""
  traced_elsewhere.get_concrete_function(tf.TensorSpec([], tf.int64))
  function, outcome = FUNCTIONS[kind]
  n = 2 if kind in ("a long while", "map_fn") else 8
  for calls in (None, 2):
    dataset = Dataset.range(n).refurbish(tf.identity, function, seed=1, num_parallel_calls=calls)
    expected = sorted(map(outcome, range(n)))
    assert sorted(dataset.as_numpy_iterator()) == expected
    dataset = Dataset.range(n).refurbish(function, seed=1, num_parallel_calls=calls)
    for _ in range(2):
      assert sorted(dataset.as_numpy_iterator()) == expected


def test_describe_names_the_executor_of_a_function():
  inline = Dataset.range(3).refurbish(tf.identity, traced_elsewhere)
  assert "executor" not in rtf.describe(inline)
  usual = Dataset.range(3).refurbish(tf.identity, old_style)
  assert "TensorFlow's default executor runs final_fn," in rtf.describe(usual)


def test_user_functions_are_not_modified():
  """How the stage runs a function does not change the user's function."""

  def make():
    return tf.function(lambda x: tf.cond(x > 3, lambda: x + 1, lambda: x - 1))

  spec = tf.TensorSpec([], tf.int64)
  ops = lambda function: sorted(
    (node.op, str(sorted(node.attr))) for node in function.get_concrete_function(spec).graph.as_graph_def().node
  )
  ours, theirs = make(), make()
  list(Dataset.range(8).refurbish(ours))
  assert ops(ours) == ops(theirs)
  assert [int(ours(tf.constant(x, tf.int64))) for x in (1, 5)] == [0, 6]


def test_the_end_of_a_sequence_is_an_error_of_the_function():
  """An iterator within a function reports its end by OutOfRange, which does not end the stage's epoch."""

  def last(x):
    return Dataset.range(x % 2).get_single_element() + x

  for functions, what in (((tf.identity, last), "The final augmentation of sample"), ((last,), "Preparing sample")):
    values, errors = read(Dataset.range(4).refurbish(*functions, seed=1))
    assert sorted(map(int, values)) == [1, 3] and len(errors) == 2
    assert all(isinstance(error, tf.errors.InvalidArgumentError) and what in error.message for error in errors)


def test_a_cancelled_operation_is_an_error_of_its_sample():
  """Only a cancelled iterator ends the epoch."""
  queue = tf.queue.FIFOQueue(1, [tf.int64])
  queue.close()

  def prepare(x):
    if x == 2:
      queue.enqueue(x)
    return x

  dataset = Dataset.range(4).refurbish(prepare, seed=1)
  for _ in range(2):
    iterator, values = iter(dataset), []
    for _ in range(4):
      try:
        values.append(int(next(iterator)))
      except tf.errors.CancelledError as error:
        assert "Preparing sample 2 of the source" in error.message
        values.append(2)
    assert sorted(values) == [0, 1, 2, 3]
    with pytest.raises(StopIteration):
      next(iterator)


def test_op_determinism():
  """Stateful functions are then called one at a time, in the order of the elements."""
  generator = tf.random.Generator.from_seed(1)

  def run():
    generator.reset_from_seed(1)
    dataset = Dataset.range(40).refurbish(
      lambda x: (x, generator.uniform([], 0, 2**31, tf.int64)),
      lambda x, y: (x, y, generator.uniform([], 0, 9, tf.int64)),
      r=2,
      seed=1,
      num_parallel_calls=8,
      deterministic=False,
    )
    return [np.array(list(dataset.as_numpy_iterator())).tolist() for _ in range(2)]

  tf.config.experimental.enable_op_determinism()
  try:
    assert run() == run()
  finally:
    config.disable_op_determinism()


def seconds_by_thread():
  """Returns CPU seconds by thread number."""
  found = {}
  for thread in pathlib.Path("/proc/self/task").iterdir():
    user, system = (thread / "stat").read_text(encoding="ascii").rpartition(") ")[2].split()[11:13]
    found[int(thread.name)] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
  return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor nothing is cut in pieces")
@pytest.mark.parametrize("options", [{}, {"max_intra_op_parallelism": 1}])
def test_operations_are_not_split_while_calls_run_in_parallel(options):
  """Splitting would only wake TensorFlow's other threads. The test runs with and without the option."""

  def work(x):
    y = tf.fill([1_000_000], tf.cast(x, tf.float32))
    for _ in range(10):
      y = tf.exp(-y)
    return tf.reduce_sum(y)

  work(tf.constant(1))  # Starts the threads of TensorFlow.
  before = seconds_by_thread()
  for _ in with_options(Dataset.range(60).refurbish(work, r=1, seed=1), "threading", **options):
    pass
  took = {number: seconds - before[number] for number, seconds in seconds_by_thread().items() if number in before}
  del took[threading.get_native_id()]
  # The workers' threads are new and not in `before`; together they take many times as long.
  assert sum(took.values()) <= 0.05, took


def test_after_an_error_of_a_stream_nothing_is_kept():
  """The stream may have lost several elements, so later indices are unknown: the next epoch prepares those samples
  again."""
  bad = [3]

  def check(x):
    if int(x) in bad:
      raise ValueError("broken")
    return x

  source = Dataset.range(10).map(in_python(check)).filter(lambda x: True)
  store = rtf.CacheStore()
  dataset = source.refurbish(tf.identity, r=5, seed=1, store=store)
  values, errors = read(dataset)
  assert len(errors) == 1 and sorted(map(int, values)) == [0, 1, 2, *range(4, 10)]
  kept = [index for index in range(10) if index in store]
  assert set(kept) <= {0, 1, 2}
  bad.clear()
  assert read(dataset)[1] == []


def test_a_stage_without_a_seed_takes_that_of_the_checkpoint(tmp_path):
  def make(**options):
    return Dataset.range(20).refurbish(tf.identity, r=2, **options)

  dataset = make()
  iterator = iter(dataset)
  list(iterator)
  iterator = iter(dataset)
  first = [int(next(iterator)) for _ in range(7)]
  path = save(iterator, tmp_path)
  expected = [int(x) for x in iterator] + [int(x) for x in dataset]
  other = make()
  list(other)  # Its cached samples have its own seed.
  iterator = restore(other, path)
  found = [int(x) for x in iterator]
  assert found + [int(x) for x in other] == expected
  assert sorted(first + found) == list(range(20))
  seed = rtf.describe(dataset).split("seed ")[1].split("\n")[0]
  assert f"seed {seed}\n" in rtf.describe(other)
  # A restore is refused while an iterator is in an epoch, or if another seed was given.
  other = make()
  busy = iter(other)
  next(busy)
  with pytest.raises(
    tf.errors.FailedPreconditionError, match=f"perhaps the restored one, has already started.*seed={seed}"
  ):
    restore(other, path)
  with pytest.raises(tf.errors.InvalidArgumentError, match="another pipeline: seed "):
    restore(make(seed=1), path)


def train_on_cores(results):
  """Puts the most calls at once at the end of three epochs: on two cores; on one, soon after its beginning; on two."""
  two = sorted(os.sched_getaffinity(0))[:2]
  under_way, numbers, most, lock = [0], [], [0], threading.Lock()

  def work(index):
    with lock:
      numbers.append(index)
      under_way[0] += 1
      most[0] = max(most[0], under_way[0]) if len(numbers) > 150 else 0
    time.sleep(0.02)
    with lock:
      under_way[0] -= 1
    return index

  dataset = Dataset.range(200).refurbish(lambda index: tf.numpy_function(work, [index], tf.int64), r=1)
  for cores in (two, two[:1], two):
    numbers.clear()
    for number, _ in enumerate(dataset):
      if number == 5:
        for thread in os.listdir("/proc/self/task"):
          os.sched_setaffinity(int(thread), cores)
    results.put(most[0])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="counts calls on two CPU cores")
def test_the_number_of_calls_follows_the_cores_within_an_epoch():
  results = multiprocessing.get_context("forkserver").SimpleQueue()
  process = start_forked(train_on_cores, results)
  assert [results.get() for _ in range(3)] == [2, 1, 2]
  assert end_of(process) == 0
