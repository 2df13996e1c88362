"""A restored `offload` continues with exactly the rest: no image is lost or repeated, and the draws are the same,
whatever was in progress."""

import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import restore, save, with_checkpoints
from support.datasets import read
from support.offloading import failing_at, labels_of, layers, source, values
from support.checkpoint_states import set_state, state_of

pytestmark = cases.slow

N = 22
BATCH = 4


def refurbished():
  return source(N).refurbish(lambda *element: element, r=2, seed=3)


def offloaded(dataset, **arguments):
  return dataset.offload(layers(), BATCH, drop_remainder=False, **arguments)


PIPELINES = {
  "refurbish": lambda: offloaded(refurbished()),
  "refurbish, all on the device": lambda: offloaded(refurbished(), device_fraction=1),
  "refurbish, prefetch": lambda: offloaded(refurbished()).prefetch(2),
  "refurbish, epochs": lambda: offloaded(refurbished()).repeat(3),
  "refurbish, dropped remainder": lambda: refurbished().offload(layers(), BATCH).repeat(2),
  "refurbish, symbolic": lambda: with_checkpoints(offloaded(refurbished()).repeat(2)),
  "source": lambda: offloaded(source(N), seed=5),
  "source, epochs": lambda: offloaded(source(N), seed=5).repeat(3),
  "source, half on the device": lambda: offloaded(source(N), seed=5, device_fraction=1 / 2).repeat(2),
  "source, parallel map": lambda: offloaded(
    source(N).shuffle(8, seed=1, reshuffle_each_iteration=False).map(lambda *element: element, 2), seed=5
  ),
  "source, symbolic": lambda: with_checkpoints(offloaded(source(N), seed=5).repeat(2)),
}
# The other pipelines cover the same cases.
ALIKE = ("refurbish", "refurbish, epochs", "source, symbolic")


@pytest.mark.parametrize(
  "make",
  [
    pytest.param(make, id=name, marks=cases.only_exhaustive if name in ALIKE else ())
    for name, make in PIPELINES.items()
  ],
)
def test_at_every_step(make, tmp_path):
  """The rest is also exact if the iterator is saved again after it was restored."""
  expected = values(make())
  steps = range(len(expected) + 1)
  for step in cases.some(steps, 3):
    dataset = make()
    iterator = iter(dataset)
    before = values(itertools.islice(iterator, step))
    path = save(iterator, tmp_path)
    again = restore(make(), path)
    between = values(itertools.islice(again, 1))
    rest = restore(make(), save(again, tmp_path))
    assert before + between + values(rest) == expected, step
    assert before + between + values(again) == expected, step


def test_a_checkpoint_after_refurbish_holds_no_images(tmp_path):
  dataset = source(64, 64, 64).refurbish(lambda *element: element, r=2, seed=3).offload(layers(), 8)
  iterator = iter(dataset)
  next(iterator)
  path = save(iterator, tmp_path)
  assert sum(os.path.getsize(file) for file in tmp_path.iterdir()) < 20_000 < 64 * 64 * 3 * 8
  rest = restore(dataset, path)
  assert len(list(rest)) == 7


@pytest.mark.parametrize("failure", [2, N - 1], ids=["first", "last"])
def test_a_batch_that_lacks_rows_is_saved(failure, tmp_path):
  """An error came in the middle of the batch, which has the rows before the error and was not handed over."""
  iterator = iter(offloaded(source(N).map(failing_at(failure)), seed=5))
  values(itertools.islice(iterator, failure // BATCH))
  with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
    next(iterator)
  path = save(iterator, tmp_path)
  dataset = offloaded(source(N).map(failing_at(failure)), seed=5, device_fraction=1)
  assert values(restore(dataset, path)) == values(iterator)


def test_an_error_in_the_first_batch_after_refurbish_loses_nothing(tmp_path):
  first = values(offloaded(refurbished()))[0][0][1]

  def make():
    return offloaded(source(N).refurbish(failing_at(first), r=2, seed=3))

  iterator = iter(make())
  with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
    next(iterator)
  again = restore(make(), save(iterator, tmp_path))
  # Nothing was handed out yet, so the epoch begins again.
  with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
    next(again)
  assert values(again) == values(iterator)


def test_the_seed_of_a_checkpoint_is_taken_unless_one_was_given(tmp_path):
  iterator = iter(offloaded(source(N)))
  first = values(itertools.islice(iterator, 2))
  path = save(iterator, tmp_path)
  rest = values(iterator)
  assert values(restore(offloaded(source(N)), path)) == rest != first
  with pytest.raises(tf.errors.InvalidArgumentError, match="was saved with seed=.*, but this stage has seed=1"):
    restore(offloaded(source(N), seed=1), path)


def test_an_error_that_was_read_ahead_is_saved(tmp_path):
  iterator = iter(offloaded(source(N).map(failing_at(9)), seed=5))
  first = next(iterator)[1].numpy().tolist()
  batches, (error,) = read(restore(offloaded(source(N).map(failing_at(9)), seed=5), save(iterator, tmp_path)))
  assert first + labels_of(batches) == [i for i in range(N) if i != 9]
  assert isinstance(error, tf.errors.InvalidArgumentError)


def test_the_state_between_two_epochs():
  """`BackupAndRestore` and loaders save this state of a stage that makes its own seeds."""
  dataset, other = offloaded(source(N), seed=5), offloaded(source(N), seed=5)
  list(dataset)
  other.restore_state(dataset.saved_state())
  assert values(other) == values(dataset)
  with pytest.raises(tf.errors.InvalidArgumentError, match="seed=5, but this stage has seed=6"):
    offloaded(source(N), seed=6).restore_state(dataset.saved_state())
  with pytest.raises(ValueError, match="it has seed, but must have seed, next_epoch"):
    other.restore_state({"seed": 5})
  for damaged in ({"seed": 5, "next_epoch": -1}, {"seed": 5, "next_epoch": 2**33}):
    with pytest.raises(tf.errors.DataLossError, match="checkpoint of offload is damaged"):
      other.restore_state(damaged)
  assert not hasattr(offloaded(refurbished()), "saved_state")  # The refurbish stage has it.


def test_a_loader_goes_on_without_elements_in_its_state():
  pytest.importorskip("jax")

  def make():
    dataset = source(64, 64, 64).refurbish(lambda *element: element, r=2, seed=3).offload(layers(), 8).prefetch(2)
    return rtf.jax_loader(dataset)

  expected = [np.asarray(labels).tolist() for _, labels in make()]
  loader = make()
  batches = iter(loader)
  first = [np.asarray(next(batches)[1]).tolist() for _ in range(3)]
  state = loader.state_dict()
  assert state["state"].nbytes < 64 * 64 * 3 * 8
  resumed = make()
  resumed.load_state_dict(state)
  assert first + [np.asarray(labels).tolist() for _, labels in resumed] == expected


DAMAGE = [
  ({"num_batches": np.int64(-1)}, "num_batches is -1"),
  ({"num_batches": np.array([1, 2])}, r"num_batches is int64\[2\]"),
  ({"num_batches": np.int64(99)}, "no batch_[0-9]*_code"),
  ({"num_errors": np.int64(2**40)}, "num_errors is 1099511627776"),
  ({"num_errors": np.int64(1), "error_0_code": np.int64(0)}, "error 0 is none"),
  ({"epoch": np.int64(7)}, "epoch is 7"),
  ({"next_epoch": np.int64(-1)}, "next_epoch is -1"),
  ({"position": np.int64(2**40)}, "position is 1099511627776"),
  ({"position": np.float32(1)}, r"position is float\[\]"),
]


def made_up(values):
  """Returns the components of a batch, some of them replaced with `values`."""
  whole = {
    "unfinished_image": np.zeros([BATCH, 9, 21], np.uint8),
    "draws": np.zeros([BATCH, 6], np.int32),
    "layers": np.zeros([BATCH, 0, offloaded(source(N)).element_spec[0]["layers"].shape[2]], np.int32),
    "label": np.zeros([BATCH], np.int64),
    **values,
  }
  return dict(
    zip(
      ["batch_0_0", "batch_0_1", "batch_0_2", "batch_0_3"],
      [whole["draws"], whole["layers"], whole["unfinished_image"], whole["label"]],
    )
  )


@pytest.mark.parametrize(
  "changes, message",
  [
    *DAMAGE,
    (made_up({"draws": np.full([BATCH, 6], 2, np.int32)}), "impossible draws"),
    (made_up({"draws": np.array([[1, 99, 99, 99, 99, 99]] * BATCH, np.int32)}), "impossible draws"),
    (made_up({"draws": np.zeros([BATCH, 5], np.int32)}), r"batch_0_0 is int32\[4,5\]"),
    (made_up({"label": np.zeros([BATCH - 1], np.int64)}), "components of 3 rows"),
    (made_up({"label": np.int64(1)}), r"batch_0_3 is int64\[\]"),
    (made_up({"unfinished_image": np.zeros([99, 9, 21], np.uint8)}), "components of 99 rows"),
  ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(changes, message):
  expected = offloaded(source(N), seed=5)
  dataset = offloaded(source(N), seed=5)
  iterator = iter(dataset)
  state = state_of(iterator, "Offload", {})
  state.values |= {"num_batches": np.int64(1), "batch_0_code": np.int64(0), **made_up({})}
  set_state(iter(offloaded(source(N), seed=5)), state)
  state.values |= changes
  with pytest.raises(
    tf.errors.OpError, match=f"checkpoint of offload is damaged: .*{message}|{message} for the offload stage"
  ):
    set_state(iterator, state)
  # tf.data has cancelled the iterator, but the stage is unchanged.
  assert values(dataset) == values(expected)
