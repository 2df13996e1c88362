"""The guarantees G1 to G9 with functions that processes call, in either list.

A stage with the same functions called by TensorFlow keeps them, as other tests show. So everything that such a stage yields
must be the same: the bytes, the order, and how often each function is called.
"""
import itertools

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import cases
from support.pipelines import RANDOM_ACCESS, STREAMS, make_source

N = 12
DRAWN = tf.TensorSpec([None], tf.int64)


def append(numbers, rng):
  return np.append(numbers, rng.integers(1 << 40)).astype(np.int64)


def by_tensorflow(numbers, seed):
  """Calls `append` as docs/python.md says that it is called."""
  def called(numbers, seed):
    return append(numbers, np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(n) % 2**64 for n in seed]))))

  return tf.ensure_shape(tf.numpy_function(called, [numbers, seed], tf.int64), [None])


class Stage:
  """A stage whose functions are called by processes, or by TensorFlow."""

  def __init__(self, kind, where, processes, **options):
    self.layers = [augment.numpy_layer(append, DRAWN, processes=processes) for _ in range(2)]
    partial, final = ([layer] if processes and place in where else [by_tensorflow] for place, layer in zip(("partial", "final"), self.layers))
    self.store = options.get("store")
    self.dataset = make_source(kind, N).map(lambda number: number[tf.newaxis]).refurbish(partial, final, seed=3, **options)

  def take(self, number=None):
    return [each.tolist() for each in self.dataset.take(-1 if number is None else number).as_numpy_iterator()]

  def fresh(self):
    return [epoch.fresh for epoch in rtf.stats(self.dataset)[0].epochs]


def both(kind, where, **options):
  return [Stage(kind, where, processes, **{name: value() if callable(value) else value for name, value in options.items()})
          for processes in (2, 0)]


@cases.each_value
@pytest.mark.parametrize("where", [("partial",), ("final",), ("partial", "final")], ids="+".join)
@pytest.mark.parametrize("kind, r", list(zip([*RANDOM_ACCESS, *STREAMS], itertools.cycle([1, 1.5, 2, 3]))))
def test_whole_and_stopped_epochs(kind, r, where):
  stages = both(kind, where, r=r)
  for stop in (None, None, None, 5, None, 1, None):
    found, expected = (stage.take(stop) for stage in stages)
    assert stop or sorted(number for number, *_ in found) == list(range(N))  # G1.
    # How many samples were ready when an epoch was stopped is chance: of a stream it decides what is read.
    if kind in RANDOM_ACCESS or len(stages[0].fresh()) < 4:
      assert found == expected
  here, there = (stage.fresh()[:3] for stage in stages)
  assert here == there and len(here) == 3


def test_called_once_for_each_fresh_sample_and_use():
  """G2, G3 and G5."""
  stage = Stage("range", ("partial", "final"), 2, r=3)
  for _ in range(7):
    assert len(stage.take()) == N
  assert stage.fresh() == [N, *[N // 3] * 6]
  assert [layer.num_calls for layer in stage.layers] == [3 * N, 7 * N]


@cases.each_value
@pytest.mark.parametrize("where", [("partial",), ("final",)], ids="+".join)
@pytest.mark.parametrize("max_bytes", [None, 6 * 16])
def test_two_iterators_lost_samples_and_little_room(where, max_bytes):
  stages = both("range", where, r=2, store=lambda: rtf.CacheStore(max_bytes=max_bytes), num_parallel_calls=2)
  assert stages[0].take() == stages[1].take()
  found = []
  for stage in stages:
    iterators = [iter(stage.dataset) for _ in range(2)]
    found.append([[next(iterator).numpy().tolist() for iterator in iterators] for _ in range(N)])
  assert found[0] == found[1]
  for stage in stages:
    stage.store.remove(3)
    stage.store.clear()
  assert [stages[0].take() for _ in range(3)] == [stages[1].take() for _ in range(3)]
  if max_bytes:
    assert all(stage.store.stats().bytes <= max_bytes for stage in stages)  # G8.


def test_damaged_records_on_disk(tmp_path):
  """G9."""
  stages = [Stage("range", ("partial", "final"), processes, r=3, store=tmp_path / str(processes)) for processes in (2, 0)]
  assert stages[0].take() == stages[1].take()
  for stage in stages:
    del stage.dataset
  for processes in (2, 0):
    for file in (tmp_path / str(processes)).glob("small-*"):
      content = np.frombuffer(file.read_bytes(), np.uint8).copy()
      content[len(content) // 3:len(content) // 2] ^= 1
      file.write_bytes(content.tobytes())
  stages = [Stage("range", ("partial", "final"), processes, r=3, store=tmp_path / str(processes)) for processes in (2, 0)]
  # Which samples the damage hits, and so come late, is chance: it depends on which was ready first.
  for _ in range(3):
    assert sorted(stages[0].take()) == sorted(stages[1].take())
  assert all(rtf.stats(stage.dataset)[0].total.absent for stage in stages)


@pytest.mark.parametrize("where", [("partial",), ("final",), ("partial", "final")], ids="+".join)
def test_restored_at_every_step(tmp_path, where):
  """G7."""
  expected = [stage.dataset.repeat(3) for stage in both("range", where, r=2)]
  found, expected = ([each.tolist() for each in dataset.as_numpy_iterator()] for dataset in expected)
  assert found == expected
  for stop in cases.some(range(1, 3 * N), 3):
    iterator = iter(both("range", where, r=2)[0].dataset.repeat(3))
    assert [next(iterator).numpy().tolist() for _ in range(stop)] == expected[:stop]
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
    iterator = iter(both("range", where, r=2)[0].dataset.repeat(3))
    tf.train.Checkpoint(iterator=iterator).restore(saved)
    assert [each.numpy().tolist() for each in iterator] == expected[stop:]
