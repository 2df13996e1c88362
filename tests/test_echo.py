"""Data echoing: what comes out, how often and in which order; restarts, random access, errors and the adaptive stage."""
import collections
import math
import queue
import threading
import time
from typing import get_args

from absl.testing import parameterized
from hypothesis import given, settings, strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op
from tensorflow.python.data.kernel_tests import checkpoint_test_base
from tensorflow.python.framework import combinations
from tensorflow.python.framework import config

import refurbish_tf as rtf
from refurbish_tf import echo_op
from support import cases

# Far more than anything here takes: a test that would hang fails instead.
LIMIT = 20

MANY = settings(max_examples=cases.examples(12), derandomize=True)
factors = st.sampled_from([1, 1.25, 1.5, 2, math.pi, 4, 7])


def contents(dataset):
  return [element.tolist() for element in dataset.as_numpy_iterator()]


def count(dataset):
  return sum(int(tf.shape(batch)[0]) for batch in dataset.batch(4096))


def failing_at(n, *failures):
  def check(x):
    with tf.control_dependencies([tf.debugging.assert_none_equal(x, tf.constant(failures, tf.int64), message="spoilt")]):
      return tf.identity(x)

  return tf.data.Dataset.range(n).map(check)


def read(iterator):
  """The rest of the elements, and in place of an error its message."""
  found = []
  while True:
    try:
      found.append(next(iterator).numpy().tolist())
    except StopIteration:
      return found
    except tf.errors.InvalidArgumentError as error:
      found.append(error.message)


@MANY
@given(n=st.integers(0, 12), e=st.integers(1, 5))
def test_whole_factor_is_what_the_paper_writes(n, e):
  source = tf.data.Dataset.range(n)
  written_out = source.flat_map(lambda t: tf.data.Dataset.from_tensors(t).repeat(e))
  assert contents(source.echo(e)) == contents(written_out)
  assert contents(source.apply(rtf.echo(e))) == contents(written_out)
  assert len(source.echo(e)) == n * e


def test_structure():
  element = {
      "image": tf.zeros([4, 2], tf.uint8), "label": (tf.constant([1, 2, 3, 4]), tf.constant(["a", "b", "c", "d"])),
      "ragged": tf.ragged.constant([[1], [], [2, 3], [4]]), "sparse": tf.sparse.eye(4)}
  source = tf.data.Dataset.from_tensor_slices(element)
  for e in (2, 1.5, rtf.AUTOTUNE):
    echoed = source.echo(e)
    assert echoed.element_spec == source.element_spec
    found = [
        (int(x["label"][0]), x["ragged"].numpy().tolist(), tf.sparse.to_dense(x["sparse"]).numpy().argmax())
        for x in echoed]
    assert sorted({label: (label, ragged, place) for label, ragged, place in found}.values()) == [
        (1, [1], 0), (2, [], 1), (3, [2, 3], 2), (4, [4], 3)]
    assert e != 2 or [label for label, _, _ in found] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_cardinality():
  source = tf.data.Dataset.range(6)
  assert source.echo(3).cardinality() == 18
  assert source.echo(3.0).cardinality() == 18
  assert source.echo(np.int64(3)).cardinality() == 18
  assert source.echo(1.5).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert source.echo(rtf.AUTOTUNE).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert source.repeat().echo(2).cardinality() == tf.data.INFINITE_CARDINALITY
  assert source.filter(lambda x: True).echo(2).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert source.take(0).echo(1.5).cardinality() == 0


def test_cardinality_beyond_what_can_be_said():
  assert tf.data.Dataset.range(2**60).echo(4).cardinality() == 2**62
  assert tf.data.Dataset.range(2**62).echo(4).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert tf.data.Dataset.range(4).echo(2**31 - 0.25).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert contents(tf.data.Dataset.range(2**62).echo(4).skip(6).take(3)) == [1, 1, 2]


@pytest.mark.parametrize("e", [1.5, 2.25, math.pi])
def test_fractional_factor_is_met_in_expectation(e):
  n = 100_000
  times = collections.Counter()
  for batch in tf.data.Dataset.range(n).echo(e, seed=1).batch(10_000):
    times.update(batch.numpy().tolist())
  assert len(times) == n and set(times.values()) == {math.floor(e), math.floor(e) + 1}
  fraction = e - math.floor(e)
  more = np.array([times[i] - math.floor(e) for i in range(n)])
  assert abs(more.mean() - fraction) < 3 * math.sqrt(fraction * (1 - fraction) / n)
  # Nor does one draw say anything of the next.
  assert abs(np.corrcoef(more[1:], more[:-1])[0, 1]) < 3 / math.sqrt(n)


def test_same_seed_same_stream():
  source = tf.data.Dataset.range(200)
  first = contents(source.echo(1.5, seed=1))
  assert contents(source.echo(1.5, seed=1)) == first
  assert contents(source.echo(1.5, seed=2)) != first
  tf.random.set_seed(5)
  globally = contents(source.echo(1.5))
  tf.random.set_seed(5)
  assert contents(source.echo(1.5)) == globally != first


@MANY
@given(n=st.integers(0, 20), e=factors, skip=st.integers(0, 90), more=st.integers(0, 30))
def test_skip(n, e, skip, more):
  echoed = tf.data.Dataset.range(n).echo(e, seed=3)
  everything = contents(echoed)
  assert contents(echoed.skip(skip)) == everything[skip:]
  # From between repetitions on.
  assert contents(echoed.shard(3, 1)) == everything[1::3]
  assert contents(echoed.skip(skip).echo(2).skip(more)) == [x for x in everything[skip:] for _ in range(2)][more:]


def test_skip_goes_on_at_the_right_repetition():
  echoed = tf.data.Dataset.range(10**9).echo(4)
  for k, rest in [(0, [0, 0, 0]), (2, [0, 0, 1]), (3, [0, 1, 1])]:
    assert contents(echoed.skip(4 * 10**6 + k).take(3)) == [10**6 + x for x in rest]


def test_skip_does_not_read_what_it_passes_over(tmp_path):
  """A spoilt record is not noticed where its input can skip it unread."""
  path = str(tmp_path / "records")
  with tf.io.TFRecordWriter(path) as writer:
    for i in range(4):
      writer.write(b"record %d" % i)
  with open(path, "r+b") as file:
    file.seek(file.read().index(b"record 1"))
    file.write(b"spoilt")
  dataset = tf.data.TFRecordDataset(path).echo(3)
  assert list(dataset.skip(7).as_numpy_iterator()) == [b"record 2"] * 2 + [b"record 3"] * 3
  with pytest.raises(tf.errors.DataLossError):
    list(dataset.skip(5).as_numpy_iterator())


@MANY
@given(n=st.integers(1, 12), e=st.integers(1, 5))
def test_random_access(n, e):
  echoed = tf.data.Dataset.from_tensor_slices(10 * tf.range(n)).echo(e)
  assert [tf.data.experimental.at(echoed, i).numpy() for i in range(n * e)] == contents(echoed)
  with pytest.raises(tf.errors.OutOfRangeError):
    tf.data.experimental.at(echoed, n * e)


def test_no_random_access_with_a_fraction():
  with pytest.raises(tf.errors.FailedPreconditionError, match=r"echo\(1.5\).*chance.*whole echoing factor"):
    tf.data.experimental.at(tf.data.Dataset.range(4).echo(1.5), 0)
  with pytest.raises(tf.errors.OpError, match="random access|chance"):
    contents(global_shuffle_op._global_shuffle(tf.data.Dataset.range(4).echo(1.5)))


@pytest.mark.parametrize("behind", [
    lambda ds: ds, lambda ds: ds.batch(4, drop_remainder=True), lambda ds: ds.prefetch(2), lambda ds: ds.repeat(2)],
                         ids=["alone", "batch", "prefetch", "repeat"])
def test_global_shuffle_through_the_index_mapper(behind):
  source = tf.data.Dataset.range(20).map(lambda x: x, num_parallel_calls=2)
  plain = behind(source.echo(3))
  shuffled = global_shuffle_op._global_shuffle(plain, seed=7)
  elements = np.concatenate([np.ravel(x) for x in shuffled.as_numpy_iterator()])
  in_order = np.concatenate([np.ravel(x) for x in plain.as_numpy_iterator()])
  assert sorted(elements) == sorted(in_order)
  assert list(elements) != list(in_order)


# What can stand before an echo with random access, and whether it can be asked for one element several times.
UPSTREAM = {
    "map": (lambda ds: ds.map(lambda x: x + 1), True),
    "parallel_map": (lambda ds: ds.map(lambda x: x + 1, num_parallel_calls=2), True),
    "batch": (lambda ds: ds.batch(3, drop_remainder=True), True),
    "concatenate": (lambda ds: ds.concatenate(tf.data.Dataset.range(100, 105)).concatenate(ds), True),
    "zip": (lambda ds: tf.data.Dataset.zip(ds, ds.map(lambda x: -x)).map(lambda x, y: x - y), True),
    "shard": (lambda ds: ds.shard(3, 1), True),
    "skip": (lambda ds: ds.skip(5), True),
    "skip_shard": (lambda ds: ds.skip(2).shard(3, 2), True),
    "prefetch": (lambda ds: ds.prefetch(2), True),
    "options": (lambda ds: ds.with_options(tf.data.Options()), True),
    "cache": (lambda ds: ds.cache(), True),
    "echo": (lambda ds: ds.echo(2), True),
    "tensors": (lambda ds: tf.data.Dataset.from_tensors(3), True),
    "slices": (lambda ds: tf.data.Dataset.from_tensor_slices([4, 5, 6]), True),
    "global_shuffle": (lambda ds: global_shuffle_op._global_shuffle(ds, seed=1, reshuffle_each_iteration=False), True),
    "take": (lambda ds: ds.take(7), False),
    "repeat": (lambda ds: ds.repeat(2), False),
    "assert_cardinality": (lambda ds: ds.apply(tf.data.experimental.assert_cardinality(12)), False),
    "take_far_above": (lambda ds: ds.take(7).map(lambda x: x + 1).echo(2).prefetch(1), False),
    "take_in_a_branch": (lambda ds: ds.concatenate(tf.data.Dataset.range(9).take(2)), False),
}


@pytest.mark.parametrize("upstream", UPSTREAM)
def test_global_shuffle_of_any_source(upstream):
  """Every element e times, or a clear refusal: an input that counts what it has yielded would end too early."""
  build, again_and_again = UPSTREAM[upstream]
  echoed = build(tf.data.Dataset.range(12)).echo(3)
  everything = contents(echoed)
  if again_and_again:
    assert sorted(contents(global_shuffle_op._global_shuffle(echoed, seed=7))) == sorted(everything)
  else:
    with pytest.raises(tf.errors.FailedPreconditionError, match="no random access behind .*Put that stage behind"):
      contents(global_shuffle_op._global_shuffle(echoed, seed=7))


@pytest.mark.parametrize("upstream", sorted(UPSTREAM.keys() - {"global_shuffle"}))
def test_refurbish_of_any_echoed_source(upstream):
  echoed = UPSTREAM[upstream][0](tf.data.Dataset.range(12)).echo(3)
  everything = sorted(contents(echoed))
  refurbished = echoed.refurbish(lambda x: x, r=2, seed=1)
  for _ in range(4):
    assert sorted(contents(refurbished)) == everything


@pytest.mark.parametrize("upstream", ["map", "batch", "shard", "skip", "cache", "echo", "take", "repeat", "zip"])
def test_single_elements_where_the_input_has_them(upstream):
  echoed = UPSTREAM[upstream][0](tf.data.Dataset.range(12)).echo(3)
  assert [tf.data.experimental.at(echoed, i).numpy().tolist() for i in range(len(echoed))] == contents(echoed)


class EchoCheckpointTest(checkpoint_test_base.CheckpointTestBase, parameterized.TestCase):
  """TensorFlow's own checks of checkpoints."""

  FACTORS = [1, 2, 3, 1.5, math.pi]

  def _dataset_fn(self, e, symbolic, build=lambda echoed: echoed, n=5):
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    source = tf.data.Dataset.range(n).map(lambda x: (x, tf.range(x)))
    return lambda: build(source.echo(e, seed=11)).with_options(options)

  def _num_outputs(self, dataset_fn):
    return sum(1 for _ in dataset_fn())

  @combinations.generate(combinations.times(
      combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True], e=[1, 3, 1.5]),
      checkpoint_test_base.default_test_combinations()))
  def test_core(self, verify_fn, symbolic, e):
    dataset_fn = self._dataset_fn(e, symbolic)
    verify_fn(self, dataset_fn, self._num_outputs(dataset_fn))

  @combinations.generate(combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True], e=FACTORS))
  def test_restore_at_every_step(self, symbolic, e):
    dataset_fn = self._dataset_fn(e, symbolic)
    n = self._num_outputs(dataset_fn)
    self.verify_run_with_breaks(dataset_fn, list(range(n + 1)), n)

  @combinations.generate(combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True]))
  def test_restore_once(self, symbolic):
    dataset_fn = self._dataset_fn(2.5, symbolic, n=3)
    n = self._num_outputs(dataset_fn)
    for step in cases.some(range(n + 1), 4):
      self.verify_run_with_breaks(dataset_fn, [step], n)

  @combinations.generate(
      combinations.combine(
          tf_api_version=2, mode="eager", symbolic=cases.some([False, True], 1), behind=["skip", "echo", "batch"]) +
      combinations.combine(
          tf_api_version=2, mode="eager", symbolic=cases.some([True, False], 1), behind=["shuffle", "repeat"]))
  def test_restore_among_other_stages(self, symbolic, behind):
    dataset_fn = self._dataset_fn(2.5, symbolic, {
        "skip": lambda echoed: echoed.skip(4),
        "echo": lambda echoed: echoed.echo(2),
        "batch": lambda echoed: echoed.map(lambda x, _: x).batch(3),
        "shuffle": lambda echoed: echoed.shuffle(4, seed=1),
        "repeat": lambda echoed: echoed.repeat(2).prefetch(2),
    }[behind], n=4)
    n = self._num_outputs(dataset_fn)
    self.verify_run_with_breaks(dataset_fn, list(range(n + 1)), n)

  @combinations.generate(combinations.combine(
      tf_api_version=2, mode="eager", symbolic=[False, True],
      skipping=["whole", "many", "past_the_end", "between", "shard", "echo", "map", "batch"]))
  def test_restore_after_skip(self, symbolic, skipping):
    source = tf.data.Dataset.range(6)
    build = {
        "whole": lambda: source.echo(3).skip(3),
        "many": lambda: source.echo(3).skip(9),
        "past_the_end": lambda: source.echo(3).skip(15).concatenate(source.echo(2).skip(100)).concatenate(source),
        "between": lambda: source.echo(3).skip(7),
        "shard": lambda: source.echo(2).shard(3, 1),
        "echo": lambda: source.echo(2).echo(3).skip(9),
        "map": lambda: source.map(lambda x: x + 1).filter(lambda x: x > 1).echo(3).skip(3),
        "batch": lambda: source.echo(2).batch(2).skip(1).echo(2).skip(2),
    }[skipping]
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    dataset_fn = lambda: build().with_options(options)
    n = self._num_outputs(dataset_fn)
    for step in cases.some(range(n + 1), 3):
      self.verify_run_with_breaks(dataset_fn, [step], n)

  @combinations.generate(combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True]))
  def test_adaptive_stage_keeps_an_error_it_has_read_ahead(self, symbolic):
    called = threading.Semaphore(0)

    def check(x):
      called.release()
      if x in (1, 3):
        raise ValueError("spoilt")
      return x

    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    source = tf.data.Dataset.range(6).map(lambda x: tf.numpy_function(check, [x], tf.int64, stateful=False))
    dataset_fn = lambda: source.echo(rtf.AUTOTUNE, max_e=1).with_options(options)
    with tf.device("CPU"):
      iterator = iter(dataset_fn())
      assert next(iterator).numpy() == 0
      # When the third is asked for, the second, an error, is in the buffer.
      for _ in range(3):
        assert called.acquire(timeout=LIMIT)
      path = tf.train.Checkpoint(iterator=iterator).save(self._ckpt_path())
      iterator = iter(dataset_fn())
      tf.train.Checkpoint(iterator=iterator).restore(path)
      found = read(iterator)
    assert ["spoilt" if isinstance(x, str) and "ValueError: spoilt" in x else x for x in found] == [
        "spoilt", 2, "spoilt", 4, 5]

  @combinations.generate(combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True]))
  def test_restore_in_global_shuffle(self, symbolic):
    dataset_fn = self._dataset_fn(
        3, symbolic, lambda echoed: global_shuffle_op._global_shuffle(echoed, seed=5, reshuffle_each_iteration=False))
    self.verify_run_with_breaks(dataset_fn, list(range(16)), 15)

  @combinations.generate(combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True]))
  def test_adaptive_stage_loses_no_element(self, symbolic):
    dataset_fn = self._dataset_fn(rtf.AUTOTUNE, symbolic, lambda echoed: echoed.map(lambda x, _: x))
    with tf.device("CPU"):
      for step in range(1, 5):
        iterator = iter(dataset_fn())
        before = [int(next(iterator)) for _ in range(step)]
        path = tf.train.Checkpoint(iterator=iterator).save(self._ckpt_path())
        iterator = iter(dataset_fn())
        tf.train.Checkpoint(iterator=iterator).restore(path)
        after = [int(x) for x in iterator]
        assert sorted(set(before + after)) == list(range(5))
        assert before + after == sorted(before + after)


class Calls:
  """An augmentation that counts its calls and gives another result at each."""

  def __init__(self):
    self.number = 0
    self._lock = threading.Lock()

  def __call__(self, x):
    return tf.stack([x, tf.ensure_shape(tf.numpy_function(self._next, [], tf.int64, stateful=True), [])])

  def _next(self):
    with self._lock:
      self.number += 1
      return np.int64(self.number)


def stages(dataset):
  """The names of the stages of a pipeline without branches, upstream first."""
  inputs = dataset._inputs()
  assert len(inputs) <= 1
  return [*(stages(inputs[0]) if inputs else []), type(dataset).__name__]


@pytest.mark.parametrize("e", [1, 2, 4])
@pytest.mark.parametrize("where, order, calls, unique", [
    ("before_augment", ["Echo", "Shuffle", "Augment", "Batch"], lambda n, e: n * e, lambda n, e: n * e),
    ("after_augment", ["Augment", "Echo", "Shuffle", "Batch"], lambda n, e: n, lambda n, e: n),
    ("after_batch", ["Shuffle", "Augment", "Batch", "Echo"], lambda n, e: n, lambda n, e: n),
])
def test_variants(where, order, calls, unique, e):
  n, batch_size = 48, 8
  augment = Calls()
  dataset = tf.data.Dataset.range(n).echo(
      e, where, augment_fn=augment, batch_size=batch_size, shuffle_buffer_size=16, seed=1)
  assert stages(dataset) == ["_RangeDataset", "_OptionsDataset", *(f"{name}Dataset" if name == "Augment" else f"_{name}Dataset" for name in order)]
  shuffles = [stage for stage in walk(dataset) if type(stage).__name__ == "_ShuffleDataset"]
  assert [int(stage._buffer_size) for stage in shuffles] == [16]
  assert len(dataset) == n * e // batch_size
  batches = contents(dataset)
  assert augment.number == calls(n, e)
  outputs = [tuple(output) for batch in batches for output in batch]
  assert len(outputs) == n * e
  assert len(set(outputs)) == unique(n, e)
  assert set(collections.Counter(index for index, _ in outputs).values()) == {e}
  twice_in_a_batch = any(len({index for index, _ in batch}) < batch_size for batch in batches)
  assert twice_in_a_batch == (e > 1 and where != "after_batch")
  # Batch echoing: the same batch, right behind itself.
  assert all(batches[k] == batches[k - k % e] for k in range(len(batches))) == (e == 1 or where == "after_batch")
  assert sorted(index for index, _ in outputs) != [index for index, _ in outputs]


def walk(dataset):
  return [stage for upstream in dataset._inputs() for stage in walk(upstream)] + [dataset]


@pytest.mark.parametrize("where", get_args(echo_op.Where))
def test_variant_is_what_would_be_written_by_hand(where):
  source = tf.data.Dataset.range(20)
  augment = lambda x: x + 100
  by_hand = {
      "before_augment": lambda: source.echo(2).shuffle(5, seed=3).map(augment).batch(6, drop_remainder=True),
      "after_augment": lambda: source.map(augment).echo(2).shuffle(5, seed=3).batch(6, drop_remainder=True),
      "after_batch": lambda: source.shuffle(5, seed=3).map(augment).batch(6, drop_remainder=True).echo(2),
  }[where]()
  built = source.echo(
      2, where, augment_fn=augment, batch_size=6, drop_remainder=True, shuffle_buffer_size=5, seed=3)
  assert built.element_spec == by_hand.element_spec
  assert contents(built) == contents(by_hand)
  without = source.echo(2, where, augment_fn=augment, batch_size=6)
  assert "_ShuffleDataset" not in stages(without)


@pytest.mark.parametrize("where", get_args(echo_op.Where))
def test_augment_fn_that_takes_a_seed(where):
  def build():
    return tf.data.Dataset.range(12).echo(
        2, where, augment_fn=lambda x, seed: (x, seed), batch_size=4, shuffle_buffer_size=6, seed=1)

  dataset = build()
  first, second = ([(x, seed) for x, seed in dataset.unbatch().as_numpy_iterator()] for _ in range(2))
  assert first[0][1].dtype == np.int32 and first[0][1].shape == (2,)
  seeds = {tuple(seed) for _, seed in first}
  assert len(seeds) == (24 if where == "before_augment" else 12)
  assert not seeds & {tuple(seed) for _, seed in second}
  again = build()
  assert [x.tolist() for _, x in again.unbatch().as_numpy_iterator()] == [x.tolist() for _, x in first]


def test_augment_fn_with_a_seed_of_its_own():
  images = tf.data.Dataset.from_tensor_slices(tf.zeros([4, 8, 8, 3], tf.uint8))
  dataset = images.echo(2, "after_batch", augment_fn=tf.image.random_flip_left_right, batch_size=4)
  assert len(list(dataset)) == 2


def test_layers_of_augment():
  images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  augment_fn = rtf.augment.compose([rtf.augment.random_crop(4), rtf.augment.random_flip()])
  dataset = images.echo(2, "before_augment", augment_fn=augment_fn, batch_size=4, shuffle_buffer_size=8)
  assert [image.shape for image, _ in dataset] == [(4, 32, 32, 3)] * 4


def test_batch_echo_moves_no_bytes():
  def address(tensor):
    return np.frombuffer(memoryview(tensor), np.uint8).ctypes.data

  batches = list(tf.data.Dataset.range(4096).batch(1024).echo(3))
  addresses = [address(batch) for batch in batches]
  assert [len(set(addresses[k:k + 3])) for k in range(0, 12, 3)] == [1] * 4
  assert len(set(addresses)) == 4


@pytest.mark.parametrize("where, steps", [("before_augment", 12), ("after_augment", 12), ("after_batch", 12)])
def test_fit_shows_the_right_number_of_steps(where, steps):
  class Steps(keras.callbacks.Callback):
    known, done = [], 0

    def on_epoch_begin(self, epoch, logs=None):
      self.known = [*self.known, self.params["steps"]]

    def on_train_batch_end(self, batch, logs=None):
      self.done += 1

  source = tf.data.Dataset.from_tensor_slices((tf.ones([24, 2]), tf.ones([24, 1])))
  train = source.echo(2, where, augment_fn=lambda x, y: (x + 1, y), batch_size=4, shuffle_buffer_size=8)
  model = keras.Sequential([keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  seen = Steps()
  model.fit(train.prefetch(tf.data.AUTOTUNE), epochs=2, verbose=0, callbacks=[seen])
  assert seen.known == [steps] * 2
  assert seen.done == 2 * steps


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("e", [2, 1.5])
def test_echo_then_refurbish(e, stream):
  calls = Calls()
  source = tf.data.Dataset.range(8)
  echoed = (source.filter(lambda x: True) if stream else source).echo(e, seed=4)
  samples = contents(echoed)
  refurbished = echoed.refurbish(calls, r=2, seed=1)
  for epoch in range(4):
    assert sorted(sample for sample, _ in contents(refurbished)) == samples
    assert calls.number - len(samples) in (math.floor(epoch * len(samples) / 2), math.ceil(epoch * len(samples) / 2))


def test_refurbish_then_echo():
  calls = Calls()
  dataset = tf.data.Dataset.range(8).refurbish(calls, r=2, seed=1).echo(3)
  assert len(dataset) == 24
  for epoch in range(4):
    elements = contents(dataset)
    assert elements == [x for x in elements[::3] for _ in range(3)]
    assert sorted(x for x, _ in elements[::3]) == list(range(8))
    assert calls.number == 8 + 4 * epoch
  stage, = rtf.stats(dataset)
  assert [epoch.fresh for epoch in stage.epochs] == [8, 4, 4, 4]


def test_refurbish_then_adaptive_echo():
  dataset = tf.data.Dataset.range(8).refurbish(lambda x: x, r=2, seed=1).batch(2).echo(rtf.AUTOTUNE)
  for _ in range(3):
    assert sorted({x for batch in contents(dataset) for x in batch}) == list(range(8))
  refurbished, echoed = rtf.stats(dataset)
  assert refurbished.total.fresh == 16
  assert [epoch.fresh for epoch in echoed.epochs] == [4, 4, 4] and echoed.total.fresh == 12


def test_adaptive_echo_is_no_source_of_refurbish():
  with pytest.raises(ValueError, match=r"echo\(e=AUTOTUNE\).*behind refurbish, or give echo a number"):
    tf.data.Dataset.range(4).echo(rtf.AUTOTUNE).refurbish(lambda x: x)


@pytest.mark.parametrize("e", [2, 1.5])
def test_error_passes_once_and_iteration_goes_on(e):
  whole = contents(tf.data.Dataset.range(6).echo(e, seed=2))
  found = read(iter(failing_at(6, 0, 3).echo(e, seed=2)))
  spoilt = [x for x in found if isinstance(x, str)]
  assert len(spoilt) == 2 and all("spoilt" in message for message in spoilt)
  rest = [x for x in found if not isinstance(x, str)]
  assert sorted(set(rest)) == [1, 2, 4, 5]
  if e == 2:
    assert rest == [x for x in whole if x not in (0, 3)]
  assert isinstance(found[0], str) and isinstance(found[found.index(4) - 1], str)


def test_adaptive_error_passes_once_in_its_place():
  found = read(iter(failing_at(6, 0, 3, 4).echo(rtf.AUTOTUNE)))
  assert sum(isinstance(x, str) for x in found) == 3
  assert sorted({x for x in found if not isinstance(x, str)}) == [1, 2, 5]
  assert isinstance(found[0], str)
  first = [i for i, x in enumerate(found) if isinstance(x, str)]
  assert found[first[0] + 1] == 1 and first[1] > found.index(2) and first[2] < found.index(5)


class Upstream:
  """A source that yields when it is told to, and lets the test wait until it is asked for more."""

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
    """Until the elements put before are with the stage that reads this."""
    for _ in range(times):
      assert self._asked.acquire(timeout=LIMIT)


@pytest.fixture(name="upstream")
def fixture_upstream():
  """Ended with the test, however that ends: else who drops an iterator that reads from it would wait for ever."""
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
  # No fourth time: what comes next must be waited for, and is not there yet.
  came = []
  thread = threading.Thread(target=lambda: came.extend(take(iterator)))
  thread.start()
  upstream.wait_until_asked(2)
  assert not came
  upstream.put(11)
  thread.join(LIMIT)
  assert came == [11]
  # 12 is ready: it comes at once, with 11 used but once.
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
  stage, = rtf.stats(dataset)
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
    # That another one is asked for says that this one is ready.
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


@pytest.mark.parametrize("behind", [lambda ds: ds, lambda ds: ds.prefetch(1), lambda ds: ds.map(lambda x: x, 2)],
                         ids=["alone", "prefetch", "map"])
def test_adaptive_can_be_dropped_while_it_waits(behind):
  # Dequeuing waits for ever and can be cancelled, as reading from a slow file system.
  elements = tf.queue.FIFOQueue(10, [tf.int64], shapes=[[]])
  elements.enqueue(1)

  def use():
    iterator = iter(behind(tf.data.Dataset.range(10).map(lambda _: elements.dequeue()).echo(rtf.AUTOTUNE, max_e=2)))
    next(iterator)

  thread = threading.Thread(target=use, daemon=True)
  thread.start()
  thread.join(LIMIT)
  assert not thread.is_alive()


def test_adaptive_stops_reading_when_nobody_takes(upstream):
  upstream.put(*range(10))
  iterator = iter(upstream.dataset.echo(rtf.AUTOTUNE))
  assert take(iterator) == [0]
  upstream.wait_until_asked(3)
  # Memory is bounded: two are read ahead and a further one is not asked for.
  assert not upstream._asked.acquire(timeout=0.2)
  upstream.end()
  del iterator


def test_adaptive_does_not_spin_while_it_waits(upstream):
  iterator = iter(upstream.dataset.echo(rtf.AUTOTUNE, max_e=1))
  upstream.put(0)
  assert take(iterator) == [0]
  upstream.wait_until_asked(2)
  began = time.process_time()
  # First the reader of the dataset waits for an element, then the stage for a reader.
  timer = threading.Timer(1.0, upstream.put, [1, 2, 3, 4])
  timer.start()
  assert take(iterator) == [1]
  upstream.wait_until_asked(2)
  time.sleep(1.0)
  # Spinning would take two seconds.
  assert time.process_time() - began < 0.5
  upstream.end()


def test_autotuner_is_told_how_much_input_an_element_takes():
  options = tf.data.Options()
  options.autotune.enabled = True
  iterator = iter(tf.data.Dataset.range(100).echo(4).prefetch(tf.data.AUTOTUNE).with_options(options))
  next(iterator)
  nodes = tf.data.experimental.get_model_proto(iterator).nodes.values()
  assert [node.ratio for node in nodes if "Echo" in node.name] == [0.25]


def test_stats_of_echo():
  assert rtf.stats(tf.data.Dataset.range(3).echo(2)) == []
  dataset = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE)
  stage, = rtf.stats(dataset)
  assert stage == rtf.StageStats("echo", (), rtf.EchoStats(0, 0, 0.0)) and stage.total.factor == 1
  yielded = contents(dataset.repeat(2).prefetch(1))
  stage, = rtf.stats(dataset)
  assert [epoch.fresh for epoch in stage.epochs] == [3, 3]
  assert sum(epoch.fresh + epoch.repeated for epoch in stage.epochs) == len(yielded)


def test_adaptive_echo_tells_how_long_it_waited():
  """For the first element, as there is nothing to repeat, and after max_e repetitions; else it does not wait."""
  def slow(x):
    time.sleep(0.4)
    return x

  dataset = tf.data.Dataset.range(3).map(lambda x: tf.numpy_function(slow, [x], tf.int64)).echo(rtf.AUTOTUNE, max_e=1)
  contents(dataset)
  stage, = rtf.stats(dataset)
  # Of 3 * 0.4 s: while it is not scheduled itself it does not wait. Without any of the three it would be 0.8 s.
  assert stage.total.fresh_wait >= 0.9


def test_in_a_function(recwarn):
  seen = []

  @tf.function
  def use():
    dataset = tf.data.Dataset.range(5).echo(rtf.AUTOTUNE)
    seen.append(dataset)
    return dataset.echo(2).reduce(tf.constant(0, tf.int64), tf.maximum)

  assert use() == 4
  assert not [warning for warning in recwarn if "tf.data options" in str(warning.message)]
  with pytest.raises(RuntimeError, match="an echo stage that was built inside a tf.function"):
    rtf.stats(seen[0])


@pytest.mark.parametrize("e", [0, 0.99, -2, -1.0, math.nan, math.inf, -math.inf, 2**31, 10**400, "2", None, True, [2], 1j])
def test_bad_factor(e):
  for build in (tf.data.Dataset.range(4).echo, lambda e: tf.data.Dataset.range(4).apply(rtf.echo(e))):
    with pytest.raises(ValueError, match=r"at least 1 and below 2\*\*31 or rtf.AUTOTUNE, got .*Write e=2") as error:
      build(e)
    assert repr(e) in str(error.value)


@pytest.mark.parametrize("arguments, error, message", [
    (dict(where="before_batch"), ValueError, "where must be one of 'before_augment', 'after_augment', 'after_batch'.*got 'be"),
    (dict(where=np.array(["after_batch", "x"])), ValueError, "where must be one of .*got array"),
    (dict(where=np.array([1])), ValueError, "where must be one of .*got array"),
    (dict(where=["after_batch"]), ValueError, "where must be one of .*got \\['after_batch'\\]"),
    (dict(where="after_batch"), ValueError, "augment_fn, batch_size is missing"),
    (dict(where="after_batch", augment_fn=tf.identity), ValueError, "but batch_size is missing. Write dataset.echo"),
    (dict(where="after_augment", batch_size=2), ValueError, "but augment_fn is missing. Write dataset.echo"),
    (dict(where="after_augment", batch_size=2, augment_fn=3), TypeError, "augment_fn must be a function.*got 3"),
    (dict(where="after_augment", batch_size=0, augment_fn=tf.identity), ValueError, "batch_size.*at least 1, got 0"),
    (dict(where="after_augment", batch_size=2.5, augment_fn=tf.identity), TypeError, "batch_size.*whole number.*got 2.5"),
    (dict(where="after_batch", batch_size=2, augment_fn=tf.identity, shuffle_buffer_size=0), ValueError, "got 0"),
    (dict(augment_fn=tf.identity), ValueError, "augment_fn given without where.*Write where="),
    (dict(batch_size=2), ValueError, "batch_size given without where"),
    (dict(shuffle_buffer_size=2), ValueError, "shuffle_buffer_size given without where"),
    (dict(drop_remainder=True), ValueError, "drop_remainder given without where"),
    (dict(max_e=0), ValueError, "max_e.*at least 1, got 0"),
    (dict(max_e=1.5), TypeError, "max_e.*whole number.*got 1.5"),
    (dict(seed="x"), TypeError, "seed must be a whole number"),
    (dict(colour=1), TypeError, "colour"),
])
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    tf.data.Dataset.range(4).echo(2, **arguments)
  with pytest.raises(error, match=message):
    tf.data.Dataset.range(4).apply(rtf.echo(2, **arguments))


def test_autotune_in_a_deterministic_pipeline():
  options = tf.data.Options()
  options.deterministic = True
  source = tf.data.Dataset.range(4)
  message = "repeats elements by the clock.*deterministic=True.*Give e(cho)? a number"
  with pytest.raises(ValueError, match=message):
    source.with_options(options).echo(rtf.AUTOTUNE)
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    contents(source.echo(rtf.AUTOTUNE).with_options(options))
  assert contents(source.with_options(options).echo(2))
  options.deterministic = False
  assert contents(source.with_options(options).echo(rtf.AUTOTUNE))


@pytest.fixture
def op_determinism():
  yield tf.config.experimental.enable_op_determinism
  config.disable_op_determinism()


def test_autotune_under_op_determinism(op_determinism):
  built_before = tf.data.Dataset.range(4).echo(rtf.AUTOTUNE)
  op_determinism()
  with pytest.raises(ValueError, match="enable_op_determinism.*Give e a number"):
    tf.data.Dataset.range(4).echo(rtf.AUTOTUNE)
  with pytest.raises(tf.errors.InvalidArgumentError, match="enable_op_determinism.*Give echo a number"):
    contents(built_before)
