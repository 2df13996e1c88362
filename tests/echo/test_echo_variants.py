"""The place of an echo: before or after the augmentation or the batch, before or after refurbish."""

import collections
import math
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import echo_op
from support import cases
from support.echoes import Calls, contents


def stages(dataset):
  """Returns the names of the stages of a pipeline without branches, upstream first."""
  inputs = dataset._inputs()
  assert len(inputs) <= 1
  return [*(stages(inputs[0]) if inputs else []), type(dataset).__name__]


@cases.each_value
@pytest.mark.parametrize("e", [1, 2, 4])
@pytest.mark.parametrize(
  "where, order, calls, unique",
  [
    ("before_augment", ["Echo", "Shuffle", "Augment", "Batch"], lambda n, e: n * e, lambda n, e: n * e),
    ("after_augment", ["Augment", "Echo", "Shuffle", "Batch"], lambda n, e: n, lambda n, e: n),
    ("after_batch", ["Shuffle", "Augment", "Batch", "Echo"], lambda n, e: n, lambda n, e: n),
  ],
)
def test_variants(where, order, calls, unique, e):
  n, batch_size = 48, 8
  augment = Calls()
  dataset = tf.data.Dataset.range(n).echo(
    e, where, augment_fn=augment, batch_size=batch_size, shuffle_buffer_size=16, seed=1
  )
  assert stages(dataset) == [
    "_RangeDataset",
    "_OptionsDataset",
    *(f"{name}Dataset" if name == "Augment" else f"_{name}Dataset" for name in order),
  ]
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
  # Batch echoing repeats the same batch several times in a row.
  assert all(batches[k] == batches[k - k % e] for k in range(len(batches))) == (e == 1 or where == "after_batch")
  assert sorted(index for index, _ in outputs) != [index for index, _ in outputs]


def walk(dataset):
  return [stage for upstream in dataset._inputs() for stage in walk(upstream)] + [dataset]


@pytest.mark.parametrize("where", get_args(echo_op.Where))
def test_variant_equals_a_handwritten_pipeline(where):
  source = tf.data.Dataset.range(20)
  augment = lambda x: x + 100
  by_hand = {
    "before_augment": lambda: source.echo(2).shuffle(5, seed=3).map(augment).batch(6, drop_remainder=True),
    "after_augment": lambda: source.map(augment).echo(2).shuffle(5, seed=3).batch(6, drop_remainder=True),
    "after_batch": lambda: source.shuffle(5, seed=3).map(augment).batch(6, drop_remainder=True).echo(2),
  }[where]()
  built = source.echo(2, where, augment_fn=augment, batch_size=6, drop_remainder=True, shuffle_buffer_size=5, seed=3)
  assert built.element_spec == by_hand.element_spec
  assert contents(built) == contents(by_hand)
  without = source.echo(2, where, augment_fn=augment, batch_size=6)
  assert "_ShuffleDataset" not in stages(without)


@pytest.mark.parametrize("where", get_args(echo_op.Where))
def test_augment_fn_that_takes_a_seed(where):
  def build():
    return tf.data.Dataset.range(12).echo(
      2, where, augment_fn=lambda x, seed: (x, seed), batch_size=4, shuffle_buffer_size=6, seed=1
    )

  dataset = build()
  first, second = ([(x, seed) for x, seed in dataset.unbatch().as_numpy_iterator()] for _ in range(2))
  assert first[0][1].dtype == np.int32 and first[0][1].shape == (2,)
  seeds = {tuple(seed) for _, seed in first}
  assert len(seeds) == (24 if where == "before_augment" else 12)
  assert not seeds & {tuple(seed) for _, seed in second}
  again = build()
  assert [x.tolist() for _, x in again.unbatch().as_numpy_iterator()] == [x.tolist() for _, x in first]


def test_batch_echo_moves_no_bytes():
  def address(tensor):
    return np.frombuffer(memoryview(tensor), np.uint8).ctypes.data

  batches = list(tf.data.Dataset.range(4096).batch(1024).echo(3))
  addresses = [address(batch) for batch in batches]
  assert [len(set(addresses[k : k + 3])) for k in range(0, 12, 3)] == [1] * 4
  assert len(set(addresses)) == 4


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
  (stage,) = rtf.stats(dataset)
  assert [epoch.fresh for epoch in stage.epochs] == [8, 4, 4, 4]


def test_refurbish_then_adaptive_echo():
  dataset = tf.data.Dataset.range(8).refurbish(lambda x: x, r=2, seed=1).batch(2).echo(rtf.AUTOTUNE)
  for _ in range(3):
    assert sorted({x for batch in contents(dataset) for x in batch}) == list(range(8))
  refurbished, echoed = rtf.stats(dataset)
  assert refurbished.total.fresh == 16
  assert [epoch.fresh for epoch in echoed.epochs] == [4, 4, 4] and echoed.total.fresh == 12


def test_adaptive_echo_is_no_source_of_refurbish():
  with pytest.raises(ValueError, match=r"echo\(e=AUTOTUNE\).*after refurbish, or give echo a number"):
    tf.data.Dataset.range(4).echo(rtf.AUTOTUNE).refurbish(lambda x: x)
