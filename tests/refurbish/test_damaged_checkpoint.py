"""A checkpoint that is damaged, foreign or too new is refused with the reason, and changes nothing."""

import copy
import os
import pathlib
import shutil
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

import refurbish_tf as rtf
from support import cases
from support.checkpoint_states import set_state, state_of
from support.checkpoints import make, restore, save, take

pytestmark = cases.slow

STAGE = "Refurbish"
N = 11
KEYS = (
  "ended version stage seed order_seed reuse_factor next_epoch begun number joined scheduled num_samples num_kept "
  "origin store_id ring_head eviction shuffle num_shards shard whole schedule_shards yielded yielded_since "
  "yielded_last"
).split()


@pytest.fixture(scope="module", name="saved")
def fixture_saved():
  """Returns the state in the middle of the second epoch."""
  dataset = make(n=N, epochs=None)
  take(iter(dataset))
  iterator = iter(dataset)
  take(iterator, 4)
  return state_of(iterator)


@pytest.fixture(name="state")
def fixture_state(saved):
  return copy.deepcopy(saved)


def test_the_state_can_be_read_and_written(state):
  """A state that is written back unchanged can be restored. Otherwise the tests below would show nothing."""
  expected = take(iter(make(n=N, epochs=2)))
  assert list(state.values) == KEYS
  iterator = iter(make(n=N, epochs=None))
  set_state(iterator, state)
  assert take(iterator) == expected[N + 4 :]


def assert_refused(state, message):
  """The restore fails with the reason; the stage and another iterator go on as if nothing had happened.

  (The iterator itself is useless then: tf.data leaves it half restored.)
  """
  dataset = make(n=N, epochs=None)
  elements = take(iter(dataset))
  other = iter(dataset)
  elements += take(other, 4)
  with pytest.raises(tf.errors.OpError, match=message):
    set_state(iter(dataset), state)
  elements += take(other)
  elements += take(iter(dataset)) + take(iter(dataset))
  assert elements == take(iter(make(n=N)))
  assert [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs] == [11, 5, 6, 5]


# fuzz/fuzz_damage.py draws other values of all entries.
DAMAGE = [
  ({"next_epoch": -1}, "next_epoch is -1, but must be at least 0"),
  # The generations of this number could not be distinguished from "none".
  ({"number": 2**32 - 1}, "number is 4294967295, but must be"),
  ({"eviction": 2}, "eviction is 2, but must be at least 0 and at most 1"),
  ({"origin": 2}, "epoch 1 .*schedule, 2"),
  ({"num_kept": N + 1}, "num_kept is 12, but must be at least 0 and at most num_samples, 11"),
  ({"yielded": np.zeros([1], np.uint8)}, "yielded has 1 bytes.* 11"),
  ({"begun": 0}, "yielded has 2 bytes"),
  ({"yielded": np.array([0, 8], np.uint8)}, "sample 11 was yielded"),
  ({"yielded": np.zeros([2], np.int64)}, r"yielded is int64\[2\], but must be a vector of uint8"),
  *(({"yielded_since": np.array([index], np.uint32)}, f"sample {index} was yielded") for index in (N, 2**32 - 1)),
  ({"yielded_since": np.array([1], np.int64)}, "yielded_since is int64"),
  ({"reuse_factor": np.float32(2)}, r"reuse_factor is float\[\], but must be a scalar of double"),
  ({"seed": np.float64(1)}, r"seed is double\[\], but must be a scalar of int64"),
]


@pytest.mark.parametrize("changes, message", DAMAGE, ids=str)
def test_nonsense_is_refused(state, changes, message):
  state.values |= {key: np.int64(value) if isinstance(value, int) else value for key, value in changes.items()}
  assert_refused(state, f"checkpoint of refurbish .*{message}")


def test_more_samples_than_memory_holds_are_refused():
  """The error comes before memory is allocated. If the length is unknown, a checkpoint may claim any number."""
  most = min(2**32 - 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 5)
  dataset = make("stream", N, epochs=None)
  state = state_of(iter(dataset))
  state.values |= {"num_samples": np.int64(most + 1), "scheduled": np.int64(1)}
  with pytest.raises(tf.errors.DataLossError, match=f"num_samples is {most + 1}"):
    set_state(iter(dataset), state)
  with pytest.raises(ValueError, match=f"has {most + 1} elements.* at most {most}"):
    tf.data.Dataset.range(most + 1).refurbish(lambda x: x)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "stage"])
def test_a_missing_entry_is_named(state, key):
  del state.values[key]
  assert_refused(state, f"no {key} for the refurbish stage .*{STAGE}")


@pytest.mark.parametrize("version", [5, 7])
def test_another_version_is_refused(state, version, tmp_path, monkeypatch):
  """This includes checkpoints that are read from disk."""
  state.values["version"] = np.int64(version)
  with monkeypatch.context() as patch:
    patch.setattr(gen_dataset_ops, "serialize_iterator", lambda *args, **kwargs: state.serialized())
    path = save(iter(make(n=N, epochs=None)), tmp_path)
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"version {version}, .*version 6"):
    restore(make(n=N, epochs=None), path)
  assert_refused(state, f"has version {version}")


def test_a_checkpoint_of_a_pipeline_without_the_stage_is_refused(tmp_path):
  path = save(iter(tf.data.Dataset.range(N).repeat(4)), tmp_path)
  with pytest.raises(tf.errors.NotFoundError, match="_STAGES"):
    restore(make(n=N, epochs=None), path)


def test_the_last_possible_epoch_can_be_restored(state):
  """A checkpoint may restore it. The next epoch is an error, because the store would take its generation for "none"."""
  state.values["next_epoch"] = np.int64(2**32 - 2)
  dataset = make(n=N, epochs=None)
  iterator = iter(dataset)
  set_state(iterator, state)
  take(iterator)
  assert sorted(index for index, *_ in take(iter(dataset))) == list(range(N))
  with pytest.raises(tf.errors.FailedPreconditionError, match="no epoch 4294967295.*numbered below 4294967295"):
    take(iter(dataset))


def test_damaged_files_change_nothing(tmp_path):
  """Neither the weights nor the stage change, wherever a file is cut."""
  (tmp_path / "whole").mkdir()
  path = pathlib.Path(
    tf.train.Checkpoint(model=make_model(1), iterator=iter(make(n=N, epochs=None))).write(
      str(tmp_path / "whole" / "checkpoint")
    )
  )
  for file in path.parent.iterdir():
    for share in (0, 0.3, 0.9):
      damaged = tmp_path / f"{file.suffix}-{share}"
      shutil.copytree(path.parent, damaged)
      content = file.read_bytes()
      (damaged / file.name).write_bytes(content[: int(share * len(content))])
      assert_unchanged_by(damaged / path.name)


def test_a_refused_checkpoint_leaves_the_weights(tmp_path):
  iterator = iter(make(n=N, epochs=None, seed=2))
  take(iterator, 5)
  assert_unchanged_by(tf.train.Checkpoint(model=make_model(1), iterator=iterator).write(str(tmp_path / "checkpoint")))


def make_model(value):
  model = keras.Sequential(
    [keras.Input([2]), keras.layers.Dense(3, kernel_initializer=keras.initializers.Constant(value))]
  )
  model.compile("adam", "mse")
  return model


def assert_unchanged_by(path):
  model, dataset = make_model(5), make(n=N, epochs=None)
  before = [np.array(weight) for weight in model.get_weights()]
  elements = take(iter(dataset))
  with pytest.raises((tf.errors.OpError, IndexError)):
    tf.train.Checkpoint(model=model, iterator=iter(dataset)).read(str(path))
  for weight, was in zip(model.get_weights(), before, strict=True):
    np.testing.assert_array_equal(weight, was)
  assert elements + take(iter(dataset)) == take(iter(make(n=N, epochs=2)))


@pytest.mark.parametrize("change", [{"left": 3}, {"left": 2**63 - 1}, {"position": 0}], ids=str)
def test_repetitions_impossible_for_e_are_refused_by_echo(change):
  dataset = tf.data.Dataset.range(5).echo(3)
  iterator = iter(dataset)
  take(iterator, 4)
  state = state_of(iterator, "Echo", {})
  assert state.values["left"] == 2
  state.values |= {key: np.int64(value) for key, value in change.items()}
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"{state.values['left']} repetitions .*e=3"):
    set_state(iter(dataset), state)


ECHOING_FACTORS = (2, 1.5, rtf.AUTOTUNE)
REPEATED = ("position", "left", "element_0")
READ_AHEAD = ("num_buffered", "buffered_0_code", "buffered_0_0", "buffered_1_code", "buffered_1_0")


def echo_keys(e):
  return READ_AHEAD if e == rtf.AUTOTUNE else REPEATED


def echoing(e):
  """Returns a dataset, elements read from it, and its state in mid-repetition or, with AUTOTUNE, with two read
  ahead."""
  dataset = tf.data.Dataset.range(N).echo(e, seed=1, max_e=2)
  iterator = iter(dataset)
  taken = take(iterator, 1)
  for _ in range(2000):
    state = state_of(iterator, "Echo", {})
    if state.values.get("left") == 1 or state.values.get("num_buffered") == 2:
      assert tuple(state.values) == echo_keys(e)
      return dataset, taken, state
    if e == rtf.AUTOTUNE:
      time.sleep(0.01)
    else:
      taken += take(iterator, 1)
  raise AssertionError("nothing is repeated or read ahead")


@pytest.mark.parametrize("e", ECHOING_FACTORS)
def test_the_state_of_echo_can_be_read_and_written(e):
  dataset, taken, state = echoing(e)
  iterator = iter(dataset)
  set_state(iterator, state)
  elements = taken + take(iterator)
  if e == rtf.AUTOTUNE:
    assert list(dict.fromkeys(elements)) == list(range(N))
  else:
    assert elements == take(iter(dataset))


def test_an_error_that_was_read_ahead_is_restored():
  dataset, _, state = echoing(rtf.AUTOTUNE)
  state.values |= {"buffered_0_code": np.int64(9), "buffered_0_message": np.array(b"spoilt")}
  iterator = iter(dataset)
  set_state(iterator, state)
  with pytest.raises(tf.errors.FailedPreconditionError, match="spoilt"):
    next(iterator)
  assert list(dict.fromkeys(take(iterator))) == list(range(2, N))


# tf.data's own reader of scalars aborts the process unless the tensor has one element, and accepts the bytes of any
# type.
DAMAGE_REPEATED = [
  ({"position": np.array([1, 2])}, r"position is int64\[2\]"),
  ({"position": -1}, "position is -1"),
  ({"left": np.array([[1]])}, r"left is int64\[1,1\]"),
  ({"left": -1}, "left is -1"),
  ({"element_0": np.array([1])}, r"element_0 is int64\[1\].*int64\[\]"),
]
DAMAGE_READ_AHEAD = [
  ({"num_buffered": -1}, f"num_buffered is -1.* {2**20}"),
  ({"buffered_1_code": np.array([0])}, r"buffered_1_code is int64\[1\]"),
  ({"buffered_1_code": -1}, "buffered_1_code is -1.* 16"),
  ({"buffered_0_code": 3, "buffered_0_message": np.array([b"", b""])}, r"buffered_0_message is string\[2\]"),
  ({"buffered_0_0": np.array([1])}, r"buffered_0_0 is int64\[1\]"),
]


@pytest.mark.parametrize("e", ECHOING_FACTORS)
def test_nonsense_is_refused_by_echo(e):
  dataset, _, state = echoing(e)
  for changes, message in DAMAGE_READ_AHEAD if e == rtf.AUTOTUNE else DAMAGE_REPEATED:
    damaged = copy.deepcopy(state)
    damaged.values |= {key: np.int64(value) if isinstance(value, int) else value for key, value in changes.items()}
    assert_refused_by_echo(e, dataset, damaged, f"checkpoint of echo .*its {message}")


@pytest.mark.parametrize("e", ECHOING_FACTORS)
def test_a_missing_entry_is_named_by_echo(e):
  dataset, _, state = echoing(e)
  for key in (*echo_keys(e), *(["buffered_0_message"] if e == rtf.AUTOTUNE else [])):
    damaged = copy.deepcopy(state)
    if key == "buffered_0_message":
      damaged.values["buffered_0_code"] = np.int64(3)
    else:
      del damaged.values[key]
    assert_refused_by_echo(e, dataset, damaged, f"no {key} for the echo stage .*Echo")


def assert_refused_by_echo(e, dataset, state, message):
  """The iterator then goes on as if nothing had happened, except with AUTOTUNE, where tf.data has cancelled it."""
  iterator = iter(dataset)
  elements = take(iterator, 4)
  with pytest.raises(tf.errors.OpError, match=message):
    set_state(iterator, state)
  if e == rtf.AUTOTUNE:
    assert list(dict.fromkeys(take(iter(dataset)))) == list(range(N))
  else:
    assert elements + take(iterator) == take(iter(dataset))
