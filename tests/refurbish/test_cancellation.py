"""An iterator can be destroyed at any time: it is gone when the calls in progress have returned, and leaves nothing
behind."""

import faulthandler
import functools
import gc
import os
import queue
import random
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, waiting
from support.datasets import in_python, stream

Dataset = tf.data.Dataset

# Far longer than anything here takes, so that a test fails instead of hanging.
LIMIT = 30


class Gate:
  """A function for datasets whose calls wait until `open` is called, except for the elements in `passing`."""

  def __init__(self, passing):
    self.let_pass(passing)
    self._lock = threading.Lock()
    self._opened = threading.Event()
    self._began = threading.Semaphore(0)
    self.calls = 0

  def __call__(self, x):
    return in_python(self._wait)(x)

  def _wait(self, x):
    with self._lock:
      self.calls += 1
    if int(x) not in self._passing:
      self._began.release()
      if not self._opened.wait(LIMIT):
        raise RuntimeError("The gate was never opened.")
    return x

  def wait_until_blocked(self, calls):
    """Waits until this number of calls is blocked. Returns whether that happened in time."""
    return all(self._began.acquire(timeout=LIMIT / 3) for _ in range(calls))

  def let_pass(self, passing):
    """Lets only these elements pass from now on."""
    self._passing = set(passing)

  def open(self):
    self._opened.set()


def order(dataset, epoch=0):
  """Returns the order of the elements in an epoch of the dataset. It depends only on the seed."""
  return [list(dataset.as_numpy_iterator()) for _ in range(epoch + 1)][-1]


def elements(number):
  return lambda iterator: [next(iterator) for _ in range(number)]


def until(value):
  return lambda iterator: next(element for element in iterator if element == value)


def destroy_while_blocked(dataset, gate, read, blocked):
  """Drops an iterator after `read(iterator)`, which reads the elements that pass the gate, while `blocked` calls wait
  at the gate.

  Returns how many calls began after the iterator was dropped."""
  # Destroying an iterator waits for its calls, so another thread does it.
  commands = queue.Queue()
  dropping, destroyed = threading.Event(), threading.Event()

  def live():
    iterator = iter(dataset)
    read(iterator)
    commands.get(timeout=LIMIT)
    dropping.set()
    del iterator
    gc.collect()
    destroyed.set()

  thread = threading.Thread(target=live, daemon=True)
  thread.start()
  assert gate.wait_until_blocked(blocked)
  before = gate.calls
  commands.put(None)
  # Destroying has begun, and cannot end before the calls that it waits for.
  assert dropping.wait(LIMIT)
  waiting.until_asleep(thread)
  waited = not destroyed.is_set()
  gate.open()
  thread.join(LIMIT)
  assert destroyed.is_set(), "Destroying an iterator did not end with the calls that were under way."
  assert waited
  return gate.calls - before


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range, stream], ids=["random access", "stream"])
@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("disk", [False, True])
def test_refurbish_in_partial_fn(tmp_path, source, parallel, disk):
  n = 40
  calls = parallel or 1
  gate = Gate(order(source(n).refurbish(tf.identity, r=2, seed=1))[:9])
  dataset = (
    source(n)
    .refurbish(gate, r=2, seed=1, num_parallel_calls=parallel, store=tmp_path / "store" if disk else None)
    .prefetch(1)
  )
  # Nine have been read, and the thread of `prefetch` waits for the tenth.
  assert destroy_while_blocked(dataset, gate, elements(9), calls) == 0
  # No prepared sample is lost, and all epochs are whole.
  made = gate.calls
  for _ in range(2):
    assert sorted(dataset.as_numpy_iterator()) == list(range(n))
  assert gate.calls - made <= n + n // 2


@cases.each_value
@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("disk", [False, True])
def test_refurbish_in_final_fn(tmp_path, parallel, disk):
  n = 40
  gate = Gate(range(n))
  dataset = (
    Dataset.range(n)
    .refurbish(tf.identity, gate, r=4, seed=1, num_parallel_calls=parallel, store=tmp_path / "store" if disk else None)
    .prefetch(1)
  )
  assert sorted(dataset.as_numpy_iterator()) == list(range(n))
  # Now most samples come from the store.
  gate.let_pass(order(Dataset.range(n).refurbish(tf.identity, r=4, seed=1), epoch=1)[:9])
  assert destroy_while_blocked(dataset, gate, elements(9), parallel or 1) == 0
  assert sorted(dataset.as_numpy_iterator()) == list(range(n))


@pytest.mark.parametrize("kind", ["random access", "stream"])
def test_refurbish_in_the_source(kind):
  if kind == "random access":
    gate = Gate(order(Dataset.range(40).refurbish(tf.identity, r=2, seed=1))[:9])
    source, number = Dataset.range(40).map(gate), 9
  else:
    gate = Gate(range(9))
    # Four more are in the shuffle buffer.
    source, number = Dataset.range(40).map(gate).filter(lambda x: True), 5
  dataset = source.refurbish(tf.identity, r=2, seed=1, num_parallel_calls=None, shuffle_buffer_size=5).prefetch(1)
  assert destroy_while_blocked(dataset, gate, elements(number), 1) == 0
  assert sorted(dataset.as_numpy_iterator()) == list(range(40))


# The adaptive stage repeats an element an unknown number of times, but reads only two elements ahead.
@cases.each_value
@pytest.mark.parametrize("e, read", [(2, elements(10)), (rtf.AUTOTUNE, until(3))], ids=["number", "adaptive"])
@pytest.mark.parametrize("parallel", [None, 2])
def test_echo(e, read, parallel):
  gate = Gate(range(5))
  dataset = Dataset.range(40).map(gate, num_parallel_calls=parallel).echo(e, max_e=3).prefetch(1)
  assert destroy_while_blocked(dataset, gate, read, parallel or 1) == 0
  assert sorted(set(dataset.as_numpy_iterator())) == list(range(40))


@pytest.mark.parametrize("behind", ["refurbish", "source"])
def test_offload(behind):
  gate = Gate(range(9))
  source = (
    Dataset.range(40).map(gate)
    if behind == "source"
    else stream(40).refurbish(gate, r=2, seed=1, num_parallel_calls=None, shuffle_buffer_size=1)
  )
  offloaded = source.map(lambda x: (tf.zeros([2, 2, 3], tf.uint8), x)).offload([rtf.augment.random_flip()], 4)
  dataset = offloaded.map(lambda batch, x: x).prefetch(1)
  # The third batch waits for its second element. The second batch may also wait, because the consumer helps.
  assert destroy_while_blocked(dataset, gate, elements(1), 1) == 0
  assert sorted(x for batch in dataset.as_numpy_iterator() for x in batch) == list(range(40))


@in_python
def slow(x):
  """Sleeps for some samples, computes for others and fails for one, so that different things are in progress at the
  end."""
  if x % 7 == 3:
    time.sleep(0.0005)
  if x % 19 == 18 and FAILING.is_set():
    raise ValueError("spoilt")
  return x


FAILING = threading.Event()
# The number of `pipelines`, from the first one on, that yield each of their 40 samples once.
EPOCHS_OF_40 = 6


def pipelines(directory):
  return [
    Dataset.range(40).refurbish(slow, r=2, seed=1, num_parallel_calls=None),
    Dataset.range(40).refurbish(slow, slow, r=2, seed=1, num_parallel_calls=3).prefetch(2),
    Dataset.range(40)
    .refurbish(slow, r=3, seed=1, num_parallel_calls=2, store=directory / "store")
    .batch(4)
    .prefetch(1),
    stream(40).refurbish(slow, r=3, seed=1, num_parallel_calls=2, store=directory / "another store").prefetch(1),
    stream(40).refurbish(slow, slow, r=1.5, seed=1, num_parallel_calls=2, shuffle_buffer_size=7).prefetch(3),
    Dataset.range(40)
    .refurbish(slow, r=2, seed=1, num_parallel_calls=2, store=rtf.CacheStore(max_bytes=160))
    .prefetch(1),
    Dataset.range(40)
    .map(slow, num_parallel_calls=2)
    .prefetch(2)
    .refurbish(tf.identity, r=2, seed=1)
    .repeat(3)
    .prefetch(1),
    Dataset.range(40).map(slow, num_parallel_calls=2).echo(1.5, seed=1).prefetch(2),
    Dataset.range(40).map(slow, num_parallel_calls=2).echo(rtf.AUTOTUNE, max_e=3),
    Dataset.range(40).refurbish(slow, r=2, seed=1, num_parallel_calls=2).echo(rtf.AUTOTUNE, max_e=3).prefetch(1),
  ]


def read_some(iterator, number):
  for _ in range(number):
    try:
      next(iterator)
    except StopIteration:
      return
    except tf.errors.InvalidArgumentError as error:
      assert "spoilt" in str(error)


def drop(iterators, how, commands):
  """Destroys the iterators in this thread, or in another one, which may first read on from one of them."""
  if how == "elsewhere":
    commands.put(list(iterators).clear)
  elif how == "reading":
    commands.put(functools.partial(read_some, iterators.pop(), 5))
  iterators.clear()


def destroy_at_random(datasets, number, randomly):
  """Makes `number` iterators, reads from them and destroys them, with the help of two threads."""
  commands, failures = queue.Queue(maxsize=4), []

  def work():
    while (command := commands.get()) is not None:
      try:
        command()
      except BaseException as error:
        failures.append(error)
      del command

  def repeat():
    made = 0
    while made < number:
      (FAILING.set if randomly.random() < 0.3 else FAILING.clear)()
      iterators = []
      dataset = randomly.choice(datasets)
      for _ in range(randomly.choice([1, 1, 1, 3])):
        iterators.append(iter(dataset))
        made += 1
        read_some(iterators[-1], randomly.choice([0, 1, 3, 10, 60]))
      drop(iterators, randomly.choice(["here", "here", "elsewhere", "reading"]), commands)
    for _ in range(2):
      commands.put(None)

  threads = [threading.Thread(target=target, daemon=True) for target in (work, work, repeat)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(8 * LIMIT)
    if thread.is_alive():
      faulthandler.dump_traceback(all_threads=True)
    assert not thread.is_alive(), "Deadlock."
  FAILING.clear()
  assert not failures, failures


def test_iterators_destroyed_at_random(tmp_path):
  randomly = random.Random(1)
  datasets = list(pipelines(tmp_path))
  for dataset in datasets:
    list(dataset)
  # By now tf.data has created its thread pools.
  time.sleep(1)
  base = len(os.listdir("/proc/self/task"))
  destroy_at_random(datasets, 1000 if cases.exhaustive else 80, randomly)
  gc.collect()
  assert waiting.until(lambda: len(os.listdir("/proc/self/task")) <= base, LIMIT)
  for _ in range(2):
    for i, dataset in enumerate(datasets):
      values = np.concatenate([np.ravel(value) for value in dataset.as_numpy_iterator()])
      assert set(values) == set(range(40))
      if i < EPOCHS_OF_40:
        assert len(values) == 40
