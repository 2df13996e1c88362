"""A stage in graphs, under options, in functions and with many iterators stays the same stage, or is clearly a new
one."""

import gc
import random
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

import refurbish_tf as rtf
from support import cases
from support.datasets import OPTIONS, draw, draw_again, epochs, fresh, in_python, plus_one, stats, stream, with_options
from support.waiting import ends

Dataset = tf.data.Dataset


def rebuilt(dataset):
  """Returns the dataset that TensorFlow builds from this dataset's graph, as it does for rewrites."""
  graph = dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL)
  return dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), dataset.element_spec)


@pytest.mark.parametrize("source", [Dataset.range(10), stream(10)], ids=["range", "stream"])
def test_rebuilt_from_its_graph(source):
  """A dataset rebuilt from its graph is the same stage: it goes on where the first one stopped and shares its
  samples."""
  kinds = dict(r=2, seed=1, shuffle_buffer_size=3)
  original = source.refurbish(draw, draw_again, **kinds)
  copy = rebuilt(original)
  alternating = [list(map(tuple, dataset.as_numpy_iterator())) for dataset in (original, copy, copy, original)]
  assert alternating == epochs(source.refurbish(draw, draw_again, **kinds), 4)
  assert fresh(original) == [10, 5, 5, 5]
  # The copy outlives the first dataset, with its samples.
  calls = []
  dataset = source.refurbish(in_python(lambda x: calls.append(x) or x), r=100, seed=1)
  list(dataset)
  copy = dataset_ops._VariantDataset(
    tf.raw_ops.DatasetFromGraph(
      graph_def=dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
    ),
    dataset.element_spec,
  )
  del dataset
  gc.collect()
  assert sorted(copy.as_numpy_iterator()) == list(range(10))
  assert len(calls) == 10


WITH_STATE = {
  "partial_fn": lambda: Dataset.range(4).refurbish(in_python(lambda x: x)),
  "final_fn": lambda: Dataset.range(4).refurbish(tf.identity, in_python(lambda x: x)),
  "augment_fn": lambda: Dataset.range(4).echo(1, "before_augment", augment_fn=in_python(lambda x: x), batch_size=2),
}


@pytest.mark.parametrize("kind", WITH_STATE)
def test_a_graph_for_another_process_must_not_call_python(kind):
  """The policy of a tf.data service requires this. A checkpoint does not, because the same program reads it."""
  dataset = WITH_STATE[kind]()
  Policy = tf.data.experimental.ExternalStatePolicy
  with pytest.raises(tf.errors.FailedPreconditionError, match="PyFunc"):
    dataset._as_serialized_graph(external_state_policy=Policy.FAIL)
  for policy in (Policy.WARN, Policy.IGNORE):
    assert dataset._as_serialized_graph(external_state_policy=policy).numpy()
  iterator = iter(with_options(dataset, experimental_external_state_policy=Policy.FAIL))
  next(iterator)
  iterator._save()


@cases.each_value
@pytest.mark.parametrize(
  "source", [lambda: Dataset.range(20).skip(0), lambda: stream(20)], ids=["random access", "stream"]
)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, source):
  """With any option of the pipeline, epochs are whole and counts unchanged; all rewritten copies are one stage."""
  dataset = source().refurbish(lambda x: 2 * x, lambda x: x + 1, r=2, seed=1).map(tf.identity).map(tf.identity)
  dataset = with_options(dataset.repeat(1).batch(3).prefetch(2), **OPTIONS[name])
  for _ in range(3):
    assert sorted(np.concatenate(list(dataset.as_numpy_iterator()))) == [2 * x + 1 for x in range(20)]
  assert fresh(dataset) == [20, 10, 10]
  assert stats(dataset).total.missing == 0


@in_python
def shuffled_by_time(x):
  """The later the sample, the sooner it is ready."""
  time.sleep(0.002 * (3 - int(x) % 4))
  return x


def test_deterministic_false():
  """By argument or by option, both functions may finish samples in any order; contents and epochs stay the same."""
  for source in (Dataset.range(24), stream(24)):
    for of_stage, whole in (({"deterministic": False}, {}), ({}, {"deterministic": False})):
      store = rtf.CacheStore()
      dataset = with_options(
        source.refurbish(
          shuffled_by_time, shuffled_by_time, store=store, r=3, seed=1, num_parallel_calls=8, **of_stage
        ),
        **whole,
      )
      for _ in range(3):
        assert sorted(dataset.as_numpy_iterator()) == list(range(24))
        assert all(int(store.get(i)) == i for i in range(24) if i in store)
      assert fresh(dataset) == [24, 8, 8]


def test_an_option_that_lets_the_source_change_its_order_is_refused():
  """The option is also refused if it is set after the stage. Then creating an iterator raises the error."""
  dataset = Dataset.range(10).map(plus_one, num_parallel_calls=2).refurbish(shuffled_by_time, r=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match="deterministic=False.*argument of refurbish"):
    list(with_options(dataset, deterministic=False))
  assert sorted(dataset.as_numpy_iterator()) == list(range(1, 11))


def read_file(index):
  return Dataset.range(10 * index, 10 * index + 10)


@tf.function
def of_function():
  return len(read_file(tf.constant(0, tf.int64)).refurbish(tf.identity))


@pytest.mark.parametrize(
  "build",
  [
    lambda: Dataset.range(3).interleave(lambda index: read_file(index).refurbish(tf.identity)),
    lambda: Dataset.range(3).flat_map(lambda index: read_file(index).refurbish(tf.identity)),
    lambda: Dataset.range(3).flat_map(lambda index: rtf.sources.cached(read_file(index))),
    lambda: Dataset.range(3).map(lambda index: read_file(index).refurbish(tf.identity).reduce(index, tf.add)),
    lambda: Dataset.range(3).interleave(
      lambda index: read_file(index).echo(
        2, "after_augment", augment_fn=tf.identity, batch_size=2, shuffle_buffer_size=4
      )
    ),
    lambda: Dataset.range(3).flat_map(
      lambda index: read_file(index).echo(2, "after_batch", augment_fn=lambda value, seed: value, batch_size=2)
    ),
    lambda: Dataset.range(3).interleave(
      lambda index: (
        read_file(index).map(lambda _: tf.zeros([4, 4, 3], tf.uint8)).offload([rtf.augment.random_flip()], 2)
      )
    ),
    of_function,
  ],
)
def test_creating_a_stage_in_each_call_of_a_function_is_refused(build):
  """Each call would begin with the first epoch, in the same order, and reuse nothing."""
  with pytest.raises(ValueError, match="must not be built inside a tf.function.*interleave.*read_file"):
    build()


def test_an_echo_that_draws_nothing_may_be_in_a_function():
  for where in ({}, {"where": "after_augment", "augment_fn": tf.identity, "batch_size": 1}):
    echoed = Dataset.range(3).flat_map(lambda index, where=where: read_file(index).take(2).echo(2, **where))
    assert [int(tf.squeeze(value)) for value in echoed] == [0, 0, 1, 1, 10, 10, 11, 11, 20, 20, 21, 21]


def test_a_stage_of_a_graph_is_refused():
  """Each initialization of an iterator would make a new stage."""
  with tf.Graph().as_default(), pytest.raises(ValueError, match="graph of TensorFlow 1"):
    Dataset.range(10).refurbish(lambda x: 2 * x)


def test_a_function_reads_a_stage_from_outside():
  """Each loop over the stage is an epoch."""
  stage = Dataset.range(5).refurbish(tf.identity, r=100, seed=1)

  @tf.function
  def total():
    result = tf.constant(0, tf.int64)
    for value in stage:
      result += value
    for value in stage:
      result += 100 * value
    return result

  assert [int(total()) for _ in range(2)] == 2 * [1010]
  assert fresh(stage) == [5, 0, 0, 0]


def test_a_stage_captured_by_a_function_of_a_dataset():
  """An outer function iterates one stage once for each of its elements. These iterations are the stage's epochs."""
  calls = []
  stage = Dataset.range(5).refurbish(in_python(lambda x: calls.append(x) or x), r=100, seed=1)
  outer = Dataset.range(3).flat_map(lambda i: stage.map(lambda x: x + 10 * i))
  assert sorted(outer.as_numpy_iterator()) == [x + 10 * i for i in range(3) for x in range(5)]
  assert len(calls) == 5
  assert fresh(stage) == [5, 0, 0]


@cases.each_value
@pytest.mark.parametrize("source", [Dataset.range(50), stream(50)], ids=["range", "stream"])
@pytest.mark.parametrize(
  "options",
  [{"r": 2.7, "shuffle_buffer_size": 7}, {"deterministic": False, "max_bytes": 160}, {"num_parallel_calls": None}],
  ids=str,
)
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
  dataset = Dataset.range(10).refurbish(in_python(block), r=1000, seed=1, store=store)
  list(dataset)
  store.remove(3)
  armed.append(True)
  reader = threading.Thread(target=lambda: list(dataset), daemon=True)
  reader.start()
  assert blocked.wait(60)
  store.put(3, tf.constant(3, tf.int64))
  result = []
  read_and_ask = lambda: result.append((sorted(dataset.as_numpy_iterator()), len(stats(dataset).epochs)))
  finished = ends(read_and_ask, 30)
  go.set()
  reader.join(30)
  assert finished and not reader.is_alive()
  assert result == [(list(range(10)), 3)]
