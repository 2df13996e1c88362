"""Iterators of a refurbish stage, one or many: whole epochs whatever reads them, and no thread or memory left."""
import random
import threading

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.datasets import call_in_python, stats, stream

Dataset = tf.data.Dataset


# After the stage. ------------------------------------------------------------------------------------------------------


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range(50), stream(50)], ids=["range", "stream"])
@pytest.mark.parametrize("options", [
    {"r": 2.7, "shuffle_buffer_size": 7}, {"deterministic": False, "max_bytes": 160}, {"num_parallel_calls": None}], ids=str)
def test_many_threads(source, options):
  """Iterators in several threads, some stopped early, while samples are removed: all epochs are whole."""
  options = dict(options)
  store = rtf.CacheStore(max_bytes=options.pop("max_bytes", None))
  dataset = source.refurbish(tf.identity, tf.identity, store=store, seed=1, **options)
  failures = []

  def work(number):
    randomly = random.Random(number)
    try:
      for _ in range(4):
        stop = randomly.choice([None, None, randomly.randrange(50)])
        values = [int(value) for value in (dataset if stop is None else dataset.take(stop))]
        assert sorted(values) == list(range(50)) if stop is None else len(set(values)) == stop
        store.clear()
    except BaseException as error:
      failures.append(error)

  threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert not failures and not any(thread.is_alive() for thread in threads)


# Threads and memory. ----------------------------------------------------------------------------------------------------


def test_a_blocked_epoch_takes_no_lock():
  """While partial_fn of one iterator is blocked, another one reads its epoch of cached samples, and stats answers."""
  go, blocked = threading.Event(), threading.Event()
  armed = []

  def block(x):
    if armed:
      blocked.set()
      go.wait(60)
    return x

  store = rtf.CacheStore()
  dataset = Dataset.range(10).refurbish(
      lambda x: call_in_python(tf.autograph.experimental.do_not_convert(block), x), r=1000, seed=1, store=store)
  list(dataset)
  store.remove(3)
  armed.append(True)
  reader = threading.Thread(target=lambda: list(dataset), daemon=True)
  reader.start()
  assert blocked.wait(60)
  store.put(3, tf.constant(3, tf.int64))
  result = []
  read_and_ask = lambda: result.append((sorted(dataset.as_numpy_iterator()), len(stats(dataset).epochs)))
  other = threading.Thread(target=read_and_ask, daemon=True)
  other.start()
  other.join(30)
  finished = not other.is_alive()
  go.set()
  reader.join(30)
  assert finished and not reader.is_alive()
  assert result == [(list(range(10)), 3)]
