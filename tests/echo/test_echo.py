"""Data echoing: which elements come, how often and in which order; random access, errors and bad arguments."""

import math

from hypothesis import given, strategies as st
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import refurbish_tf as rtf
from support import cases
from support.datasets import with_options
from support.echoes import MANY, contents, failing_at, read

factors = st.sampled_from([1, 1.25, 1.5, 2, math.pi, 4, 7])


@MANY
@given(n=st.integers(0, 12), e=st.integers(1, 5))
def test_integer_factor_equals_the_flat_map_of_the_paper(n, e):
  source = tf.data.Dataset.range(n)
  written_out = source.flat_map(lambda t: tf.data.Dataset.from_tensors(t).repeat(e))
  assert contents(source.echo(e)) == contents(written_out)
  assert contents(source.apply(rtf.echo(e))) == contents(written_out)
  assert len(source.echo(e)) == n * e


def test_structure():
  element = {
    "image": tf.zeros([4, 2], tf.uint8),
    "label": (tf.constant([1, 2, 3, 4]), tf.constant(["a", "b", "c", "d"])),
    "ragged": tf.ragged.constant([[1], [], [2, 3], [4]]),
    "sparse": tf.sparse.eye(4),
  }
  source = tf.data.Dataset.from_tensor_slices(element)
  for e in (2, 1.5, rtf.AUTOTUNE):
    echoed = source.echo(e)
    assert echoed.element_spec == source.element_spec
    found = [
      (int(x["label"][0]), x["ragged"].numpy().tolist(), tf.sparse.to_dense(x["sparse"]).numpy().argmax())
      for x in echoed
    ]
    assert sorted({label: (label, ragged, place) for label, ragged, place in found}.values()) == [
      (1, [1], 0),
      (2, [], 1),
      (3, [2, 3], 2),
      (4, [4], 3),
    ]
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
  # Cardinalities up to the limit of int64 and beyond it.
  assert tf.data.Dataset.range(2**60).echo(4).cardinality() == 2**62
  assert tf.data.Dataset.range(2**62).echo(4).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert tf.data.Dataset.range(4).echo(2**31 - 0.25).cardinality() == tf.data.UNKNOWN_CARDINALITY
  assert contents(tf.data.Dataset.range(2**62).echo(4).skip(6).take(3)) == [1, 1, 2]
  for k, rest in [(0, [0, 0, 0]), (2, [0, 0, 1]), (3, [0, 1, 1])]:
    assert contents(tf.data.Dataset.range(2**62).echo(4).skip(4 * 10**6 + k).take(3)) == [10**6 + x for x in rest]


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
  # These datasets start between the repetitions of an element.
  assert contents(echoed.shard(3, 1)) == everything[1::3]
  assert contents(echoed.skip(skip).echo(2).skip(more)) == [x for x in everything[skip:] for _ in range(2)][more:]


def test_skip_does_not_read_skipped_elements(tmp_path):
  """A damaged record is not noticed if the input can skip it unread."""
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
  with pytest.raises(tf.errors.FailedPreconditionError, match=r"e=1\.5 .*random access"):
    tf.data.experimental.at(tf.data.Dataset.range(4).echo(1.5), 0)
  with pytest.raises(tf.errors.OpError, match="random access"):
    contents(global_shuffle_op._global_shuffle(tf.data.Dataset.range(4).echo(1.5)))


# Stages that can precede an echo with random access, and whether they can yield an element several times.
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
  """Every element comes e times. If the input counts the elements that it yields, and so would end too early, there is
  a clear error."""
  build, again_and_again = UPSTREAM[upstream]
  echoed = build(tf.data.Dataset.range(12)).echo(3)
  everything = contents(echoed)
  if upstream in ("map", "batch", "shard", "skip", "cache", "echo", "take", "repeat", "zip"):
    assert [tf.data.experimental.at(echoed, i).numpy().tolist() for i in range(len(echoed))] == everything
  if again_and_again:
    assert sorted(contents(global_shuffle_op._global_shuffle(echoed, seed=7))) == sorted(everything)
  else:
    with pytest.raises(
      tf.errors.FailedPreconditionError, match="echo .*random access .*(Cardinality|Repeat|Take)Dataset"
    ):
      contents(global_shuffle_op._global_shuffle(echoed, seed=7))


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


def test_autotuner_is_told_how_much_input_an_element_takes():
  dataset = tf.data.Dataset.range(100).echo(4).prefetch(tf.data.AUTOTUNE)
  iterator = iter(with_options(dataset, "autotune", enabled=True))
  next(iterator)
  nodes = tf.data.experimental.get_model_proto(iterator).nodes.values()
  assert [node.ratio for node in nodes if "Echo" in node.name] == [0.25]


def test_stats_of_echo():
  assert rtf.stats(tf.data.Dataset.range(3).echo(2)) == []
  dataset = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE)
  (stage,) = rtf.stats(dataset)
  assert stage == rtf.StageStats("echo", (), rtf.EchoStats(0, 0, 0.0)) and stage.total.factor == 1
  yielded = contents(dataset.repeat(2).prefetch(1))
  (stage,) = rtf.stats(dataset)
  assert [epoch.fresh for epoch in stage.epochs] == [3, 3]
  assert sum(epoch.fresh + epoch.repeated for epoch in stage.epochs) == len(yielded)


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


@pytest.mark.parametrize(
  "e", [0, 0.99, -2, -1.0, math.nan, math.inf, -math.inf, 2**31, 10**400, "2", None, True, [2], 1j]
)
def test_bad_factor(e):
  for build in (tf.data.Dataset.range(4).echo, lambda e: tf.data.Dataset.range(4).apply(rtf.echo(e))):
    with pytest.raises(ValueError, match=r"at least 1 and below 2\*\*31 or rtf.AUTOTUNE, got .*Write e=2") as error:
      build(e)
    assert repr(e) in str(error.value)


@pytest.mark.parametrize(
  "arguments, message, error",
  cases.refused(
    ValueError=[
      (dict(where="before_batch"), "where must be one of 'before_augment', 'after_augment', 'after_batch'.*got 'be"),
      (dict(where=np.array(["after_batch", "x"])), "where must be one of .*got array"),
      (dict(where="after_batch"), "augment_fn, batch_size is missing"),
      (dict(where="after_batch", augment_fn=tf.identity), "but batch_size is missing. Write dataset.echo"),
      (dict(where="after_augment", batch_size=0, augment_fn=tf.identity), "^batch_size .*got 0"),
      (
        dict(where="after_batch", batch_size=2, augment_fn=tf.identity, shuffle_buffer_size=2**31),
        r"2\*\*27, got 2147",
      ),
      (dict(where="after_batch", batch_size=2**62, augment_fn=tf.identity), r"batch_size .*below 2\*\*31, got 4611"),
      (dict(augment_fn=tf.identity), "^augment_fn .*where"),
      (dict(batch_size=2), "batch_size given without where"),
      (dict(max_e=0), "^max_e .*got 0"),
    ],
    TypeError=[
      (dict(where="after_augment", batch_size=2, augment_fn=3), "augment_fn must be a function.*got 3"),
      (dict(colour=1), "colour"),
    ],
  ),
)
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    tf.data.Dataset.range(4).echo(2, **arguments)
  with pytest.raises(error, match=message):
    tf.data.Dataset.range(4).apply(rtf.echo(2, **arguments))
