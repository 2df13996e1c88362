"""`rtf.EpochPosition`: the position between two epochs in a `tf.train.Checkpoint`."""
import json

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.checkpoints import make, take


def pipeline(seed=1, n=10, **options):
  return make(n=n, seed=seed, epochs=None, **options).batch(4).prefetch(2)


def epochs(dataset, number):
  return [take(iter(dataset)) for _ in range(number)]


def checkpoint(dataset):
  return tf.train.Checkpoint(position=rtf.EpochPosition(dataset))


@pytest.mark.parametrize("done", [0, 1, 3])
@pytest.mark.parametrize("on_disk", [False, True])
def test_goes_on_with_the_next_epoch(tmp_path, done, on_disk):
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
  del iterator  # Left early, as by `break`.
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
      ("{", "damaged"), ("[]", "damaged"), ('{"format": 0}', "has format 0, .*reads format 2"),
      (json.dumps({**saved, "format": 1}), "has format 1, .*reads format 2"),
      (json.dumps({**saved, "stages": [first]}), "damaged.*shorter"), (json.dumps({**saved, "stages": 3}), "damaged"),
      (json.dumps({**saved, "stages": [{**first, "seed": 2**70}, second]}), "damaged"),
      (json.dumps({**saved, "stages": [{**first, "reuse_factor": None}, second]}), "damaged"),
      (json.dumps({**saved, "stages": [{**first, **dict.fromkeys(first, 7)}, second]}), "checkpoint.*its|another pipeline"),
      (json.dumps({**saved, "stages": [{**first, "next_epoch": 9}, {}]}), "damaged.*reuse_factor")]:
    with pytest.raises((ValueError, tf.errors.OpError), match=message):
      position.deserialize(text)
    assert json.loads(position.serialize()) == saved
