"""The stage that runs `augment_fn` of `echo` on its own workers: like `map`, but its checkpoints hold finished
results."""

import threading
import time
from typing import get_args

from absl.testing import parameterized
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op
from tensorflow.python.data.kernel_tests import checkpoint_test_base
from tensorflow.python.framework import config
from tensorflow.python.ops import gen_dataset_ops

import refurbish_tf as rtf
from refurbish_tf import echo_op
from support import cases, checkpoint_cases
from support.checkpoints import with_checkpoints
from support.datasets import CallsAtOnce, in_python, resident, with_options
from support.echoes import read
from support.checkpoint_states import set_state, state_of

pytestmark = cases.slow

Dataset = tf.data.Dataset


def augmented(dataset, function, deterministic=None, threads=4):
  """Applies the stage that `echo(e, where)` uses in place of `map`."""
  dataset = with_options(echo_op.AugmentDataset(dataset, function, None), "threading", private_threadpool_size=threads)
  dataset = with_options(dataset, "autotune", enabled=False)
  return dataset if deterministic is None else with_options(dataset, deterministic=deterministic)


def fails_at(*failures):
  def check(x):
    with tf.control_dependencies(
      [tf.debugging.assert_none_equal(x, tf.constant(failures, tf.int64), message="spoilt")]
    ):
      return x + 100

  return check


def restored_after(step, dataset):
  """Returns the first `step` elements, and those that come after a checkpoint at that step is restored."""
  iterator = iter(dataset)
  found = [next(iterator) for _ in range(step)]
  saved = gen_dataset_ops.serialize_iterator(iterator._iterator_resource, external_state_policy=1)
  restored = iter(dataset)
  gen_dataset_ops.deserialize_iterator(restored._iterator_resource, saved)
  return found + list(restored)


def assert_same(element, expected):
  """Compares two elements, whose components may be ragged."""
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    tf.nest.flatten(element, expand_composites=True),
    tf.nest.flatten(expected, expand_composites=True),
  )


@pytest.mark.parametrize("threads", cases.some([1, 2, 5], 1))
def test_yields_what_map_yields(threads):
  ragged = lambda x: {"ragged": tf.ragged.range(x % 5)[None], "pair": (x, tf.strings.as_string(x))}
  dataset = augmented(Dataset.range(60), ragged, threads=threads)
  by_map = Dataset.range(60).map(ragged)
  assert dataset.element_spec == by_map.element_spec and len(dataset) == 60
  for _ in range(2):
    for element, expected in zip(dataset, by_map, strict=True):
      assert_same(element, expected)


def test_no_more_calls_at_once_than_threads():
  calls = CallsAtOnce()
  assert list(augmented(Dataset.range(60), calls, threads=3).as_numpy_iterator()) == list(range(60))
  assert 1 < calls.most <= 3


@pytest.mark.parametrize("deterministic, first", [(None, 0), (True, 0), (False, 1)])
def test_order(deterministic, first):
  """As for tf.data's parallel map, the pipeline's option decides whether results come in order or as they are ready."""
  go = threading.Event()

  def wait(x):
    if x == 0:
      go.wait(20 if deterministic is False else 0.3)
    return x

  iterator = iter(augmented(Dataset.range(8), in_python(wait), deterministic))
  assert (int(next(iterator)) == 0) == (first == 0)
  go.set()
  assert len(list(iterator)) == 7


def test_an_error_is_that_of_its_element():
  expected = ["spoilt" if x in (0, 5, 19) else 100 + x for x in range(20)]
  for dataset in (
    augmented(Dataset.range(20), fails_at(0, 5, 19)),
    augmented(Dataset.range(20).map(fails_at(0, 5, 19)), lambda x: x),
  ):
    found = read(iter(dataset))
    assert [each if isinstance(each, int) else "spoilt" for each in found] == expected
    assert all(isinstance(each, int) or "spoilt" in each for each in found)


def test_an_out_of_range_error_does_not_end_the_epoch():
  """A function's OutOfRange error is an error of its element, as it is in `map`."""
  found = read(iter(augmented(Dataset.range(4), lambda x: Dataset.range(x % 2).get_single_element() + x)))
  assert [isinstance(each, int) for each in found] == [False, True, False, True]


def test_op_determinism_calls_stateful_functions_one_at_a_time():
  tf.config.experimental.enable_op_determinism()
  try:
    tf.random.set_seed(1)
    draw = lambda x: tf.cast(x, tf.float32) + tf.random.uniform([], seed=2)
    first, second = ([float(x) for x in augmented(Dataset.range(50), draw)] for _ in range(2))
  finally:
    config.disable_op_determinism()
  assert len({x % 1 for x in first}) == 50 and first == second


def test_random_access_works_if_the_input_supports_it():
  dataset = augmented(Dataset.range(10).skip(2), lambda x: 10 * x)
  assert [
    int(dataset.at(place)) if hasattr(dataset, "at") else int(tf.data.experimental.at(dataset, place))
    for place in (3, 0, 7)
  ] == [50, 20, 90]
  with pytest.raises(tf.errors.OutOfRangeError):
    tf.data.experimental.at(dataset, 8)
  shuffled = global_shuffle_op._global_shuffle(dataset, seed=3)
  found = [int(x) for x in shuffled]
  assert sorted(found) == list(range(20, 100, 10)) and found != sorted(found)


@cases.each_value
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("behind", ["nothing", "prefetch", "augment", "echo"])
def test_restored_in_a_global_shuffle(behind, symbolic):
  behind = {
    "nothing": lambda x: x,
    "prefetch": lambda x: x.prefetch(2),
    "augment": lambda x: augmented(x, lambda x: x + 1),
    "echo": lambda x: x.echo(2),
  }[behind]
  dataset = behind(augmented(Dataset.range(30), lambda x: 10 * x))
  dataset = global_shuffle_op._global_shuffle(dataset, seed=3, reshuffle_each_iteration=False)
  dataset = with_checkpoints(dataset, symbolic)
  expected = [int(x) for x in dataset]
  for step in (0, 1, 7, 29):
    assert [int(x) for x in restored_after(step, dataset)] == expected


@pytest.mark.parametrize("symbolic", [False, True])
def test_restored_where_the_order_is_free(symbolic):
  """No element is lost or repeated, although results come as they are ready."""
  draw = np.random.default_rng(1).uniform(0, 0.003, 1000)

  def dawdle(x):
    time.sleep(draw[int(x)])
    return x

  for step in (1, 5, 13):
    dataset = with_checkpoints(augmented(Dataset.range(40), in_python(dawdle), deterministic=False), symbolic)
    assert sorted(map(int, restored_after(step, dataset))) == list(range(40))


def test_a_checkpoint_does_not_wait_for_further_input():
  """A checkpoint waits for the element that is being read, but does not read more from a slow input."""
  read = CallsAtOnce(0.02)
  iterator = iter(augmented(Dataset.range(100).map(read), lambda x: x))
  next(iterator)
  before = len(read.order)
  # One result was handed out before.
  assert state_of(iterator, "Augment", {}).values["num_ready"] + 1 <= before + 2


def test_random_functions_do_not_prevent_checkpoints(tmp_path):
  """As for refurbish, `BackupAndRestore` only warns about such functions."""
  train = (
    Dataset.range(40)
    .map(lambda x: (tf.cast(x[None], tf.float32), 0))
    .echo(2, "before_augment", augment_fn=lambda x, y: (x + tf.random.uniform([1]), y), batch_size=4)
  )
  tf.train.Checkpoint(iterator=iter(train)).write(str(tmp_path / "checkpoint"))
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  with pytest.warns(UserWarning, match="draws its own random numbers"):
    model.fit(train, verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path / "backup")])


def test_a_source_of_refurbish():
  """As for `map`, the source is read by index if the stages before it are, and refused if its order may change."""
  source = augmented(Dataset.range(40), lambda x: 10 * x)
  dataset = source.refurbish(lambda x: x + 1, r=2, seed=1)
  assert "by index" in rtf.describe(dataset)
  for _ in range(3):
    assert sorted(int(x) for x in dataset) == [10 * x + 1 for x in range(40)]
  with pytest.raises(ValueError, match="changes its order from epoch to epoch .*AugmentDataset"):
    augmented(Dataset.range(40), lambda x: x, deterministic=False).refurbish(lambda x: x)
  with pytest.raises(ValueError, match="changes its order from epoch to epoch .*AugmentBatchDataset"):
    augmented(Dataset.range(40), lambda x: x, deterministic=False).batch(4).refurbish(lambda x: x)
  with pytest.raises(ValueError, match="infinite"):
    augmented(Dataset.range(40).repeat().filter(lambda x: x > 1), lambda x: x).refurbish(lambda x: x)


@pytest.mark.parametrize("where", ["input", "function"])
def test_a_dropped_iterator_does_not_wait(where):
  """Destroying an iterator waits neither for a slow input nor for results that nobody requests any more."""
  go, waiting = threading.Event(), threading.Event()

  def wait(x):
    if x == 3:
      waiting.set()
      go.wait(20)
    return x

  source = Dataset.range(1000)
  if where == "input":
    dataset = augmented(source.map(in_python(wait)), lambda x: x)
  else:
    dataset = augmented(source, in_python(wait))
  iterator = iter(dataset)
  assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
  waiting.wait(20)
  dropping = threading.Thread(target=iterator.__dict__.clear)
  dropping.start()
  go.set()
  dropping.join(20)
  assert not dropping.is_alive()


NATIVE = rtf.augment.compose([rtf.augment.random_crop(padding=2), rtf.augment.random_flip(), rtf.augment.normalize()])


def image_of(x):
  return tf.cast(tf.reshape(tf.range(192) * tf.cast(x + 3, tf.int32) % 256, [8, 8, 3]), tf.uint8)


def by_numbers(threads=4, deterministic=None):
  return augmented(Dataset.range(23), lambda x: {"x": x, "text": tf.strings.as_string(x)}, deterministic, threads)


def of_images(threads=4):
  """Returns a stage of native layers only. The elements have their own seeds."""
  source = Dataset.range(23).map(lambda x: (image_of(x), tf.cast([x, 7], tf.int32), x))
  return augmented(source, lambda image, seed, x: (x, NATIVE(image, seed=seed)), threads=threads)


def values_of(batches):
  return [[value.numpy().tolist() for value in tf.nest.flatten(batch)] for batch in batches]


def batched(stage, size, drop_remainder=False):
  batches = stage.batch(size, drop_remainder)
  assert "AugmentBatchDataset" in batches._as_serialized_graph().numpy().decode(errors="replace")
  return batches


@pytest.mark.parametrize("make", [by_numbers, of_images])
@pytest.mark.parametrize("size", [1, 4, 23, 40])
@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_batches_are_those_of_tf_data(make, size, drop_remainder, threads):
  ours, theirs = batched(make(threads), size, drop_remainder), Dataset.batch(make(threads), size, drop_remainder)
  assert ours.element_spec == theirs.element_spec and ours.cardinality() == theirs.cardinality()
  for _ in range(2):
    assert values_of(ours) == values_of(theirs)


def test_batches_of_elements_without_a_shape_are_those_of_tf_data():
  stage = augmented(Dataset.range(9), lambda x: (x, tf.ragged.range(x % 5)[None]))
  for ours, theirs in zip(stage.batch(4), Dataset.batch(stage, 4), strict=True):
    assert_same(ours, theirs)


def test_a_batch_of_all_elements_claims_no_more_than_there_are():
  """The number of elements is unknown, and the batch size is far larger."""
  before = resident()
  (batch,) = batched(augmented(Dataset.range(10).filter(lambda x: True), lambda x: (x, tf.zeros([4, 4]))), 2**40)
  assert batch[0].numpy().tolist() == list(range(10))
  assert resident() - before < 2**27


@pytest.mark.parametrize("failures", [[3], [0, 1, 2, 3, 22], [5, 14]])
@pytest.mark.parametrize("where", ["input", "function"])
@pytest.mark.parametrize("deterministic", [None, False])
def test_an_error_drops_the_current_batch(failures, where, deterministic):
  def outcomes(batch):
    source, function = Dataset.range(23), fails_at(*failures)
    stage = augmented(source.map(function), lambda x: x) if where == "input" else augmented(source, function)
    return [each if isinstance(each, list) else "spoilt" for each in read(iter(batch(stage, 4)))]

  found = outcomes(batched)
  if deterministic is None:
    assert found == outcomes(Dataset.batch)
  assert found.count("spoilt") == len(failures)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("deterministic", [None, False])
def test_batches_are_restored(symbolic, deterministic):
  """A checkpoint has the rows of the unfinished batch, or these rows are made again after a restore."""
  for taken in range(7):
    dataset = with_checkpoints(batched(by_numbers(deterministic=deterministic), 4), symbolic)
    found = [batch["x"] for batch in restored_after(min(taken, 6), dataset)]
    assert [len(batch) for batch in found] == [4] * 5 + [3]
    found = np.concatenate(found).tolist()
    assert (sorted(found) if deterministic is False else found) == list(range(23))


def test_places_of_batches():
  batches = batched(augmented(Dataset.range(10), lambda x: 10 * x), 4)
  assert [tf.data.experimental.at(batches, place).numpy().tolist() for place in (2, 0)] == [[80, 90], [0, 10, 20, 30]]
  with pytest.raises(tf.errors.OutOfRangeError):
    tf.data.experimental.at(batches, 3)
  with pytest.raises(tf.errors.FailedPreconditionError, match="global shuffle cannot follow the batches of echo"):
    list(global_shuffle_op._global_shuffle(batches, seed=3))
  assert "stream" in rtf.describe(batches.refurbish(lambda x: x, r=2))


class AugmentCheckpointTest(checkpoint_test_base.CheckpointTestBase, parameterized.TestCase):
  """Runs TensorFlow's own checks of checkpoints."""

  @checkpoint_cases.core(8)
  def test_core(self, verify_fn, symbolic):
    verify_fn(self, self._dataset_fn(symbolic), 20)

  @checkpoint_cases.symbolic_or_not(3, where=list(get_args(echo_op.Where)))
  def test_whole_pipelines(self, symbolic, where):
    dataset_fn = lambda: with_checkpoints(
      Dataset.range(7).echo(
        2, where, augment_fn=lambda x: (x, tf.range(x)[:1]) and x + 1, batch_size=2, shuffle_buffer_size=3, seed=1
      ),
      symbolic,
    )
    n = len(dataset_fn())
    for step in cases.some(range(n + 1), 3):
      self.verify_run_with_breaks(dataset_fn, [step], n)

  def _dataset_fn(self, symbolic):
    return lambda: with_checkpoints(
      augmented(Dataset.range(20).map(lambda x: (x, tf.range(x))), lambda x, y: (x + 1, y)), symbolic
    )


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_calls_in_progress_are_saved(taken):
  """A checkpoint waits for the calls in progress and holds their results: none of them is repeated."""
  calls = CallsAtOnce(0.01)
  dataset = augmented(Dataset.range(40), calls)
  iterator = iter(dataset)
  assert [int(next(iterator)) for _ in range(taken)] == list(range(taken))
  state = state_of(iterator, "Augment", {})
  num_ready = state.values["num_ready"]
  assert list(state.values)[2::2] == [f"ready_{k}_0" for k in range(num_ready)]
  assert num_ready >= (taken > 0)
  del iterator
  calls.order.clear()
  restored = iter(dataset)
  set_state(restored, state)
  assert [int(x) for x in restored] == list(range(taken, 40))
  assert sorted(calls.order) == list(range(taken + num_ready, 40))


def with_results():
  """Returns a pipeline and its iterator's state, in which three results are ready. The second one is an error."""
  dataset = augmented(Dataset.range(4), fails_at(2))
  iterator = iter(dataset)
  assert int(next(iterator)) == 100
  for _ in range(2000):
    state = state_of(iterator, "Augment", {"ready_1_message": tf.string})
    if state.values["num_ready"] == 3:
      return dataset, state
    time.sleep(0.01)
  raise AssertionError(f"{state.values['num_ready']} results are ready, and not 3")


def test_results_that_are_restored():
  dataset, state = with_results()
  iterator = iter(dataset)
  set_state(iterator, state)
  first, error, last = read(iterator)
  assert (first, last) == (101, 103) and "spoilt" in error
  # Results that were restored are saved again.
  iterator = iter(dataset)
  set_state(iterator, state)
  assert int(next(iterator)) == 101
  again = state_of(iterator, "Augment", {"ready_0_message": tf.string})
  assert again.values["num_ready"] == 2 and b"spoilt" in again.values["ready_0_message"]


@pytest.mark.parametrize(
  "values, message",
  [
    ({"num_ready": np.array([1, 2])}, r"num_ready is int64\[2\]"),
    ({"num_ready": -1}, "num_ready is -1"),
    ({"ready_0_code": 17}, "ready_0_code is 17"),
    ({"ready_2_0": np.float32(1)}, r"ready_2_0 is float\[\].*int64\[\]"),
    ({"num_ready": 4}, "no ready_3_code for the echo stage"),
  ],
)
def test_nonsense_is_refused(values, message):
  """tf.data's own reader of scalars aborts the process unless the tensor has exactly one element."""
  dataset, state = with_results()
  state.values |= {key: np.int64(value) if isinstance(value, int) else value for key, value in values.items()}
  iterator = iter(dataset)
  with pytest.raises(tf.errors.OpError, match=message):
    set_state(iterator, state)
