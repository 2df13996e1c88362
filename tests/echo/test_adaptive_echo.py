"""`echo(e=AUTOTUNE)`: repeats only while nothing is ready, drops no element, keeps to `max_e`, and can be destroyed."""

import collections
import queue
import threading
import time

from hypothesis import given, strategies as st
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import refurbish_tf as rtf
from support.datasets import with_options
from support.echoes import LIMIT, MANY, contents, failing_at, read
from support.waiting import ends


def test_adaptive_error_passes_once_in_its_place():
  found = read(iter(failing_at(6, 0, 3, 4).echo(rtf.AUTOTUNE)))
  assert sum(isinstance(x, str) for x in found) == 3
  assert sorted({x for x in found if not isinstance(x, str)}) == [1, 2, 5]
  assert isinstance(found[0], str)
  first = [i for i, x in enumerate(found) if isinstance(x, str)]
  assert found[first[0] + 1] == 1 and first[1] > found.index(2) and first[2] < found.index(5)


class Upstream:
  """A source that yields what the test puts, and lets the test wait until more is requested."""

  def __init__(self):
    self._elements = queue.Queue()
    self._asked = threading.Semaphore(0)
    self.dataset = tf.data.Dataset.from_generator(self._generate, output_signature=tf.TensorSpec([], tf.int64))

  def _generate(self):
    while True:
      self._asked.release()
      element = self._elements.get(timeout=LIMIT)
      if element is None:
        return
      yield element

  def put(self, *elements):
    for element in elements:
      self._elements.put(element)

  def end(self):
    self._elements.put(None)

  def wait_until_asked(self, times=1):
    """Waits until the reading stage has taken the elements that were put before."""
    for _ in range(times):
      assert self._asked.acquire(timeout=LIMIT)


@pytest.fixture(name="upstream")
def fixture_upstream():
  """Ends the source with the test, even if the test fails. Otherwise destroying an iterator that reads the source would
  never return."""
  upstream = Upstream()
  yield upstream
  upstream.end()


def take(iterator, number=1):
  return [int(next(iterator)) for _ in range(number)]


def test_adaptive_repeats_while_nothing_is_ready(upstream):
  dataset = upstream.dataset.echo(rtf.AUTOTUNE, max_e=3, name="adaptive")
  iterator = iter(dataset)
  upstream.put(10)
  assert take(iterator, 3) == [10] * 3
  # It does not come a fourth time: the stage must wait for the next element, which is not there yet.
  came = []
  thread = threading.Thread(target=lambda: came.extend(take(iterator)))
  thread.start()
  upstream.wait_until_asked(2)
  assert not came
  upstream.put(11)
  thread.join(LIMIT)
  assert came == [11]
  # 12 is ready, so it comes at once, although 11 was used only once.
  upstream.wait_until_asked()
  upstream.put(12)
  upstream.wait_until_asked()
  assert take(iterator, 3) == [12] * 3
  # Two are ready; none is dropped.
  upstream.put(13, 14)
  upstream.wait_until_asked()
  assert take(iterator) == [13]
  upstream.wait_until_asked()
  assert take(iterator, 2) == [14, 14]
  upstream.end()
  rest = [int(x) for x in iterator]
  assert rest in ([], [14])
  (stage,) = rtf.stats(dataset)
  assert stage.name == "adaptive" and stage.epochs == (stage.total,)
  total = stage.total
  assert (total.fresh, total.repeated) == (5, 6 + len(rest) - 1)
  assert total.factor == (total.fresh + total.repeated) / 5
  lines = [line.split() for line in str(stage).splitlines()]
  assert lines[0] == ["adaptive"]
  assert lines[1] == ["epoch", "fresh", "repeated", "fresh_wait", "[s]", "factor"]
  assert lines[-1] == ["total", "5", str(total.repeated), f"{total.fresh_wait:.2f}", f"{total.factor:.2f}"]


def test_adaptive_with_a_fast_upstream_repeats_nothing(upstream):
  upstream.put(*range(6))
  upstream.end()
  iterator = iter(upstream.dataset.echo(rtf.AUTOTUNE))
  assert take(iterator) == [0]
  upstream.wait_until_asked(2)
  for element in range(1, 6):
    # Once the next element is requested, this one is ready.
    upstream.wait_until_asked()
    assert take(iterator) == [element]


@MANY
@given(n=st.integers(0, 30), max_e=st.integers(1, 4))
def test_adaptive_keeps_every_element_and_its_bound(n, max_e):
  found = contents(tf.data.Dataset.range(n).echo(rtf.AUTOTUNE, max_e=max_e))
  assert found == sorted(found)
  times = collections.Counter(found)
  assert sorted(times) == list(range(n))
  assert max(times.values(), default=1) <= max_e


def test_adaptive_many_iterators_at_once():
  dataset = tf.data.Dataset.range(50).echo(rtf.AUTOTUNE, max_e=2)
  iterators = [iter(dataset) for _ in range(4)]
  found = [[] for _ in iterators]
  for k, iterator in enumerate(iterators):
    found[k] += take(iterator, 5)
  for k, iterator in enumerate(iterators):
    found[k] += [int(x) for x in iterator]
    assert sorted(set(found[k])) == list(range(50))


@pytest.mark.parametrize(
  "behind",
  [lambda ds: ds, lambda ds: ds.prefetch(1), lambda ds: ds.map(lambda x: x, 2)],
  ids=["alone", "prefetch", "map"],
)
def test_adaptive_can_be_dropped_while_it_waits(behind):
  # Dequeuing waits without end but can be cancelled, like a read from a slow file system.
  elements = tf.queue.FIFOQueue(10, [tf.int64], shapes=[[]])
  elements.enqueue(1)

  def use():
    iterator = iter(behind(tf.data.Dataset.range(10).map(lambda _: elements.dequeue()).echo(rtf.AUTOTUNE, max_e=2)))
    next(iterator)

  assert ends(use, LIMIT)


def test_adaptive_stops_reading_when_nobody_takes(upstream):
  upstream.put(*range(10))
  iterator = iter(upstream.dataset.echo(rtf.AUTOTUNE))
  assert take(iterator) == [0]
  upstream.wait_until_asked(3)
  # Memory is bounded: two are read ahead and no third one is requested.
  assert not upstream._asked.acquire(timeout=0.2)
  upstream.end()
  del iterator


def test_adaptive_does_not_spin_while_it_waits(upstream):
  iterator = iter(upstream.dataset.echo(rtf.AUTOTUNE, max_e=1))
  upstream.put(0)
  assert take(iterator) == [0]
  upstream.wait_until_asked(2)
  began = time.process_time()
  # First the reader waits for an element, then the stage waits for a reader.
  timer = threading.Timer(1.0, upstream.put, [1, 2, 3, 4])
  timer.start()
  assert take(iterator) == [1]
  upstream.wait_until_asked(2)
  time.sleep(1.0)
  # Spinning would take two seconds.
  assert time.process_time() - began < 0.5
  upstream.end()


def test_adaptive_echo_tells_how_long_it_waited():
  """It waits for the first element, when it has nothing to repeat, and after max_e repetitions, but not otherwise."""

  def slow(x):
    time.sleep(0.4)
    return x

  dataset = tf.data.Dataset.range(3).map(lambda x: tf.numpy_function(slow, [x], tf.int64)).echo(rtf.AUTOTUNE, max_e=1)
  contents(dataset)
  (stage,) = rtf.stats(dataset)
  # The three waits are up to 0.4 s each, less if the reader is scheduled late. Two of them would be at most 0.8 s.
  assert stage.total.fresh_wait >= 0.9


def test_autotune_in_a_deterministic_pipeline():
  source = tf.data.Dataset.range(4)
  deterministic = with_options(source, deterministic=True)
  message = "e=.*AUTOTUNE .*deterministic=True"
  with pytest.raises(ValueError, match=message):
    deterministic.echo(rtf.AUTOTUNE)
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    contents(with_options(source.echo(rtf.AUTOTUNE), deterministic=True))
  assert contents(deterministic.echo(2))
  assert contents(with_options(source, deterministic=False).echo(rtf.AUTOTUNE))


@pytest.fixture
def op_determinism():
  yield tf.config.experimental.enable_op_determinism
  config.disable_op_determinism()


def test_autotune_under_op_determinism(op_determinism):
  built_before = tf.data.Dataset.range(4).echo(rtf.AUTOTUNE)
  op_determinism()
  with pytest.raises(ValueError, match="e=.*AUTOTUNE .*enable_op_determinism"):
    tf.data.Dataset.range(4).echo(rtf.AUTOTUNE)
  with pytest.raises(tf.errors.InvalidArgumentError, match="e=AUTOTUNE .*enable_op_determinism"):
    contents(built_before)
