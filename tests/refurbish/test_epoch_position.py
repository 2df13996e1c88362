"""`rtf.EpochPosition`: the position between two epochs in a `tf.train.Checkpoint`."""

import json

import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

import refurbish_tf as rtf
from support.checkpoints import assert_restored_at_every_step, make, take


def pipeline(seed=1, n=10, **options):
  return make(n=n, seed=seed, epochs=None, **options).batch(4).prefetch(2)


def epochs(dataset, number):
  return [take(iter(dataset)) for _ in range(number)]


def checkpoint(dataset):
  return tf.train.Checkpoint(position=rtf.EpochPosition(dataset))


@pytest.mark.parametrize("done", [0, 1, 3])
@pytest.mark.parametrize("on_disk", [False, True])
def test_resumes_with_the_next_epoch(tmp_path, done, on_disk):
  store = tmp_path / "store" if on_disk else None
  expected = epochs(pipeline(), 5)
  dataset = pipeline(store=store)
  epochs(dataset, done)
  path = checkpoint(dataset).save(tmp_path / "checkpoint")
  resumed = pipeline(store=store)
  checkpoint(resumed).restore(path).assert_consumed()
  assert epochs(resumed, 5 - done) == expected[done:]


def test_refused_in_the_middle_of_an_epoch(tmp_path):
  dataset = pipeline(n=60)
  iterator = iter(dataset)
  next(iterator)
  with pytest.raises(ValueError, match="saved in the middle of an epoch.*rest of its epoch would be lost"):
    checkpoint(dataset).save(tmp_path / "checkpoint")
  del iterator  # An early stop, for example by `break`.
  checkpoint(dataset).save(tmp_path / "checkpoint")


def test_bad_input(tmp_path):
  with pytest.raises(ValueError, match="no refurbish stage.*Checkpoint"):
    rtf.EpochPosition(tf.data.Dataset.range(3))
  with pytest.raises(TypeError, match="dataset must be a tf.data.Dataset, got int"):
    rtf.EpochPosition(3)
  path = checkpoint(pipeline()).save(tmp_path / "checkpoint")
  with pytest.raises(tf.errors.InvalidArgumentError, match="seed of refurbish is 2, but was 1"):
    checkpoint(pipeline(seed=2)).restore(path)
  with pytest.raises(ValueError, match="another pipeline, with the stages"):
    checkpoint(tf.data.Dataset.zip(pipeline(), pipeline())).restore(path)


def test_damage_changes_nothing():
  dataset = tf.data.Dataset.zip(pipeline(), pipeline())
  position = rtf.EpochPosition(dataset)
  assert len([list(dataset) for _ in range(2)]) == 2
  saved = json.loads(position.serialize())
  first, second = saved["stages"]
  position.deserialize(json.dumps({**saved, "stages": [dict(reversed(first.items())), second]}))
  for text, message in [
    ("{", "damaged"),
    ("[]", "damaged"),
    ('{"format": 0, "kinds": [], "stages": []}', "has format 0, .*reads format 3"),
    (json.dumps({**saved, "format": 1}), "has format 1, .*reads format 3"),
    (json.dumps({**saved, "stages": [first]}), "damaged.*shorter"),
    (json.dumps({**saved, "stages": 3}), "damaged"),
    (json.dumps({**saved, "stages": [{**first, "seed": 2**70}, second]}), "damaged"),
    (json.dumps({**saved, "stages": [{**first, "reuse_factor": None}, second]}), "damaged"),
    (
      json.dumps({**saved, "stages": [{**first, **dict.fromkeys(first.keys() - {"yielded"}, 7)}, second]}),
      "checkpoint.*its|another pipeline",
    ),
    (json.dumps({**saved, "stages": [{**first, "next_epoch": 9}, {}]}), "damaged.*yielded"),
    (json.dumps({**saved, "stages": [{**first, "yielded": "AA=="}, second]}), "damaged"),
  ]:
    with pytest.raises((ValueError, tf.errors.OpError), match=message):
      position.deserialize(text)
    assert json.loads(position.serialize()) == saved


def test_the_position_in_a_checkpoint_is_consistent_with_the_iterator(tmp_path, monkeypatch):
  """Another epoch of the stage may begin while the iterator is saved, because of operations that read ahead."""
  dataset = pipeline()
  iterator, others = iter(dataset), []
  original = gen_dataset_ops.serialize_iterator

  def serialize(*arguments, **options):
    saved = original(*arguments, **options)
    if len(others) < 2:
      others.append(iter(dataset))
      next(others[-1])
    return saved

  monkeypatch.setattr(gen_dataset_ops, "serialize_iterator", serialize)
  tensors = iterator._serialize_to_tensors()
  assert len(others) == 2
  assert json.loads(tensors["_STAGES"].numpy())["stages"][0]["next_epoch"] == 2


@pytest.mark.parametrize("symbolic", [False, True])
def test_stages_that_an_iterator_has_not_reached_are_restored(tmp_path, symbolic):
  """`concatenate` creates the iterator of its second dataset when the first dataset ends."""

  def concatenated():
    other = tf.data.Dataset.range(3).map(lambda index: tf.fill([5], index))
    return (
      make(n=4, epochs=None, symbolic=symbolic)
      ._input_dataset.map(tf.identity)
      .concatenate(other)
      .repeat(2)
      .concatenate(make(n=4, seed=2, epochs=None)._input_dataset.map(tf.identity))
      .repeat(2)
      .with_options(make(symbolic=symbolic).options())
    )

  assert_restored_at_every_step(concatenated, tmp_path, number=1000)


def test_without_the_position_a_lost_stage_is_an_error(tmp_path):
  """In a graph, TensorFlow restores an iterator without the position."""
  dataset = make(n=10, epochs=None)._input_dataset.padded_batch(4).repeat()
  iterator = iter(dataset)
  take(iterator, 3)
  saved = iterator._serialize_to_tensors()["_STATE"]
  restored = iter(dataset)
  gen_dataset_ops.deserialize_iterator(restored._iterator_resource, saved)
  with pytest.raises(tf.errors.FailedPreconditionError, match="so the next epoch is not known"):
    next(restored)
