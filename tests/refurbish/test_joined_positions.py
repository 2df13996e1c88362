"""Workers stop in the middle of an epoch, and a different number of workers continues: every epoch stays whole."""

import collections
import gc
import itertools
import math
import random
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import partial_fn, with_checkpoints
from support.loaders import numpy_loader
from support.pipeline_shapes import Fit
from support.pipelines import make_source

pytestmark = cases.slow


def worker(kind, total, n, i, r, way="checkpoint", **options):
  """Makes batches whose elements have their index in the whole source and the seed of their generation."""
  source = make_source(kind, total)
  options = {"seed": 1, "order_seed": i, **options}
  dataset = (source.shard(n, i) if n > 1 else source).refurbish(partial_fn, r=r, **options).batch(2).prefetch(2)
  return dataset if way == "loader" else with_checkpoints(dataset)


def samples(batches):
  return [tuple(sample) for batch in batches for sample in np.asarray(batch).tolist()]


def stop(way, dataset, directory, epochs, steps):
  """Reads whole epochs and some steps of the next one. Returns the samples of each epoch and what the worker saved."""
  if way == "fit":
    fit = Fit(dataset, directory, epochs=epochs + 1, stop_in=(epochs, steps - 1))
    # The interrupted step is trained again after the restart.
    return [samples(batches) for batches in [*fit.epochs[:-1], fit.epochs[-1][:-1]]], directory
  source = numpy_loader(dataset) if way == "loader" else dataset
  seen = [samples(list(source)) for _ in range(epochs)]
  iterator = iter(source)
  seen.append(samples(list(itertools.islice(iterator, steps))))
  if way == "loader":
    return seen, source.state_dict()
  return seen, tf.train.Checkpoint(iterator=iterator, weight=tf.Variable(1.0)).write(str(directory))


def resume(way, dataset, directory, saved, position, epochs):
  """Returns the samples of the rest of the epoch and of `epochs` epochs after it."""
  if way == "fit":
    fit = Fit(dataset, directory, epochs=position.epoch + 1 + epochs, former_dirs=saved)
    return [samples(batches) for batches in fit.epochs]
  source = numpy_loader(dataset) if way == "loader" else dataset
  position.restore(source)
  return [samples(list(source)) for _ in range(1 + epochs)]


def check_a_stop(tmp_path, way, number):
  chance = random.Random(f"{way} {number}")
  n, m = chance.randint(1, 6), chance.randint(1, 6)
  total, r, kind = (
    chance.randint(12, 40),
    chance.choice([1.5, 2, 3]),
    chance.choice(["range", "stream of known length", "stream"]),
  )
  done, later = chance.randint(0, 2), 2
  place = lambda name: tmp_path / f"{way} {number} {name}"
  seen, saved = [], []
  for i in range(n):
    steps = chance.randint(1 if way == "fit" else 0, math.ceil(len(range(i, total, n)) / 2))
    batches, state = stop(way, worker(kind, total, n, i, r, way), place(f"old {i}"), done, steps)
    seen.append(batches)
    saved.append(state)
  lost = chance.randrange(n) if n > 1 and chance.random() < 0.2 else None
  uses = collections.Counter(sample for epochs in seen for epoch in epochs[:done] for sample in epoch)
  if lost is not None:
    saved[lost] = None
    seen[lost][done] = []  # All its samples of this epoch are yielded again.
  with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    position = rtf.EpochPosition.joined(saved)
  missing = [str(each.message) for each in told if "position of 1 of" in str(each.message)]
  assert len(missing) == (lost is not None)
  if lost is not None:
    assert f"(shards {lost})" in missing[0]
  before = [sample for epochs in seen for sample in epochs[done]]
  epochs = [[] for _ in range(1 + later)]
  for i in range(m):
    for epoch, came in zip(
      epochs, resume(way, worker(kind, total, m, i, r, way), place(f"new {i}"), saved, position, later), strict=True
    ):
      epoch += came
  if len(before) == total and epochs[0]:
    epochs.insert(0, [])  # All workers had finished the epoch, so they resumed with the next one.
  epochs[0] += before
  for epoch in epochs:
    assert sorted(index for index, *_ in epoch) == list(range(total)), (number, n, m, total, r, kind, done, lost)
    uses.update(epoch)
  assert max(uses.values()) <= math.ceil(r)


@pytest.mark.parametrize("way", ["checkpoint", "loader", "fit"])
def test_random_stops(tmp_path, way):
  number = (
    {"checkpoint": 400, "loader": 450, "fit": 150}[way]
    if cases.exhaustive
    else {"checkpoint": 4, "loader": 6, "fit": 1}[way]
  )
  for each in range(number):
    check_a_stop(tmp_path, way, each)


def test_a_worker_without_work_left_and_one_that_has_not_begun(tmp_path):
  """The first worker has finished the epoch, and the second one has not begun it."""
  before = [stop("loader", worker("range", 12, 2, i, 2, "loader"), tmp_path, 0, steps) for i, steps in ((0, 3), (1, 0))]
  loader = numpy_loader(worker("range", 12, 2, 0, 2, "loader"))
  first = samples(list(loader))
  position = rtf.EpochPosition.joined([loader.state_dict(), before[1][1]])
  assert position.epoch == 0
  three = [numpy_loader(worker("range", 12, 3, i, 2, "loader")) for i in range(3)]
  for each in three:
    position.restore(each)
  assert sorted(index for index, *_ in first + [sample for each in three for sample in samples(list(each))]) == list(
    range(12)
  )
  # Restored but not read yet, a worker saves the same position, and these positions can be joined again.
  again = rtf.EpochPosition.joined([before[0][1], before[1][1]])
  for each in three:
    again.restore(each)
  assert rtf.EpochPosition.joined([each.state_dict() for each in three]).epoch == 0


@pytest.mark.parametrize("read_on", [False, True])
def test_a_lost_worker_while_all_others_have_come_to_their_end(tmp_path, read_on):
  """It may not have finished, so its samples come again, unless the other workers have left the loop over the epoch."""
  loader = numpy_loader(worker("range", 12, 2, 0, 2, "loader"))
  list(loader)
  iterator = iter(loader)
  list(itertools.islice(iterator, 3))
  if read_on:
    assert next(iterator, None) is None
  with pytest.warns(rtf.PipelineWarning, match="shards 1.*are skipped" if read_on else "shards 1.*yielded again"):
    position = rtf.EpochPosition.joined([loader.state_dict(), None])
  assert position.epoch == 1 + read_on
  three = [numpy_loader(worker("range", 12, 3, i, 2, "loader")) for i in range(3)]
  for each in three:
    position.restore(each)
  for expected in (range(read_on == 0, 12, 1 + (read_on == 0)), range(12)):
    assert sorted(index for each in three for index, *_ in samples(list(each))) == list(expected)


def test_fit_of_a_stream_has_whole_epochs_after_the_rest_of_one(tmp_path):
  """Keras uses the number of steps of its first epoch for all epochs."""
  saved = [stop("fit", worker("stream", 12, 2, i, 2, "fit"), tmp_path / str(i), 0, 2)[1] for i in range(2)]
  position = rtf.EpochPosition.joined(saved)
  epochs = resume("fit", worker("stream", 12, 1, 0, 2, "fit"), tmp_path / "new", saved, position, 2)
  assert list(map(len, epochs)) == [8, 12, 12]


def test_samples_of_a_lost_worker_are_prepared_again(tmp_path):
  """A lost worker's samples may have had all their uses. The samples of the others are still in their store."""
  make = lambda i: worker("range", 24, 2, i, 3, "loader", store=tmp_path / str(i))
  saved = [stop("loader", make(i), tmp_path, 1, 2)[1] for i in range(2)]
  gc.collect()  # Closing a store writes its samples in memory.
  with pytest.warns(rtf.PipelineWarning, match="shards 1"):
    position = rtf.EpochPosition.joined([saved[0], None])
  fresh = []
  for i in range(2):
    dataset = make(i)
    loader = numpy_loader(dataset)
    position.restore(loader)
    assert len(samples(list(loader))) == (8, 12)[i]
    fresh.append(rtf.stats(dataset)[0].epochs[-1].fresh)
  assert fresh[0] <= 4 and fresh[1] == 12


def test_another_pipeline_is_refused(tmp_path):
  saved = [stop("loader", worker("range", 12, 2, i, 2, "loader"), tmp_path, 1, 1)[1] for i in range(2)]
  position = rtf.EpochPosition.joined(saved)
  for changes, message in (
    ({"seed": 2}, "seed of refurbish is 2, but was 1"),
    ({"r": 3}, "r of refurbish is 3, but was 2"),
    ({"total": 13}, "all shards together had 12 samples, and now have 13"),
  ):
    arguments = {"kind": "range", "total": 12, "n": 3, "i": 0, "r": 2, "way": "loader", **changes}
    loader = numpy_loader(worker(**arguments))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      position.restore(loader)
    assert len(samples(list(loader))) == len(range(0, arguments["total"], 3))
  # This is one worker's position, without those of the others.
  with pytest.raises(tf.errors.InvalidArgumentError, match="join them with rtf.EpochPosition.joined"):
    numpy_loader(worker("range", 12, 3, 0, 2, "loader")).load_state_dict(saved[0])


def test_positions_that_cannot_be_joined_are_refused(tmp_path):
  state = lambda n, i, epochs=1, steps=1, **options: stop(
    "loader", worker("range", 12, n, i, 2, "loader", **options), tmp_path, epochs, steps
  )[1]
  held = with_checkpoints(worker("range", 12, 2, 0, 2, "loader"), symbolic=False)
  for saved, message in (
    ([state(2, 0)], "number of shards was 2, but 1 positions were given"),
    ([state(2, 0), state(2, 0)], "of shards 0, 0"),
    ([state(2, 0), state(2, 1, seed=2)], "their seed differs: 1, 2"),
    ([state(2, 0), state(2, 1, epochs=3)], "different epochs"),
    ([None, None], "no position was given"),
    ([state(2, 0), stop("checkpoint", held, tmp_path / "held", 0, 1)[1]], "experimental_symbolic_checkpoint"),
    ([state(2, 0), tmp_path / "lost"], "cannot be read as a checkpoint .*Pass None"),
    ([numpy_loader(tf.data.Dataset.range(3)).state_dict()], "no refurbish stage"),
    ([state(2, 0), tf.train.Checkpoint().write(str(tmp_path / "empty"))], "has 0 positions"),
  ):
    with pytest.raises(ValueError, match=message):
      rtf.EpochPosition.joined(saved)
  for saved in ([3], 3, "checkpoints"):
    with pytest.raises(TypeError, match="got (int|str)"):
      rtf.EpochPosition.joined(saved)


AFTER = {
  "repeat": lambda dataset: dataset.repeat(2).batch(2),
  "take": lambda dataset: dataset.take(5).batch(2),
  "concatenate": lambda dataset: dataset.concatenate(worker("range", 12, 1, 0, 2).unbatch()).batch(2),
  "shuffle": lambda dataset: dataset.batch(2).shuffle(3, seed=1),
  "unbatch": lambda dataset: dataset.batch(2).unbatch().batch(2),
}


@pytest.mark.parametrize("name", AFTER)
def test_an_operation_with_a_position_of_its_own_is_refused(tmp_path, name):
  dataset = (
    tf.data.Dataset.range(12).map(lambda index: tf.fill([3], index)).refurbish(lambda sample: sample, r=2, seed=1)
  )
  loader = numpy_loader(AFTER[name](dataset))
  next(iter(loader))
  with pytest.raises(ValueError, match=f"{name}.* after refurbish has its own position"):
    rtf.EpochPosition.joined([loader.state_dict()])


def test_an_iterator_that_has_started_does_not_take_the_rest(tmp_path):
  position = rtf.EpochPosition.joined([stop("checkpoint", worker("range", 12, 1, 0, 2), tmp_path / "saved", 0, 2)[1]])
  dataset = worker("range", 12, 1, 0, 2).repeat()
  started = iter(dataset)
  next(started)
  with pytest.raises(tf.errors.FailedPreconditionError, match="has already started an epoch and might take the rest"):
    position.restore(dataset)
  del started
  position.restore(dataset)
  assert len(samples(itertools.islice(dataset, 4))) == 8
