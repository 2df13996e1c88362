"""G7: a restored iterator continues where it was saved, even in a new process and without the contents of the store."""

import gc
import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import EPOCHS, assert_epochs, make, restore, save, take, with_checkpoints
from support.pipelines import RANDOM_ACCESS, STREAMS
from support.processes import run_forked


@cases.each_value
@pytest.mark.parametrize("kind", RANDOM_ACCESS + STREAMS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("parallel, buffer, on_disk", [(None, None, False), (3, 4, False), (3, 4, True)])
def test_restores_at_every_step(tmp_path, kind, symbolic, parallel, buffer, on_disk):
  n = 7
  how = {"kind": kind, "n": n, "symbolic": symbolic, "parallel": parallel, "buffer": buffer}
  expected = take(iter(make(**how)))
  for step in cases.some(range(EPOCHS * n + 1), 6):
    if on_disk:
      # The store is alternately warm and empty.
      how["store"] = tmp_path / f"store {step}"
    iterator = iter(make(**how))
    elements = take(iterator, step)
    path = save(iterator, tmp_path)
    del iterator
    if on_disk and step % 2:
      how["store"] = tmp_path / f"another store {step}"
    elements += take(restore(make(**how), path))
    assert len(elements) == EPOCHS * n
    assert_epochs(elements, n)
    if kind in RANDOM_ACCESS:
      assert elements == expected


@cases.each_value
@pytest.mark.parametrize("kind", RANDOM_ACCESS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("r", [1, 1.5, 3])
def test_restores_again_and_again(tmp_path, kind, symbolic, r):
  """Restores after every few elements, as if in a new process each time."""
  how = {"kind": kind, "n": 10, "r": r, "symbolic": symbolic}
  elements, iterator = [], iter(make(**how))
  for number in range(1, 100):
    elements += take(iterator, number % 6)
    if len(elements) == EPOCHS * 10:
      break
    path = save(iterator, tmp_path)
    iterator = restore(make(**how), path)
  assert elements == take(iter(make(**how)))


def test_resumes_with_damaged_records(tmp_path):
  """Every sample is bit for bit the same. Samples found damaged when they are read come last; the others keep their
  order."""
  n, done = 30, 10
  expected = take(iter(make(n=n, r=3)))
  iterator = iter(make(n=n, r=3, store=tmp_path / "store"))
  elements = take(iterator, n + done)
  path = save(iterator, tmp_path)
  del iterator
  gc.collect()  # Closing the store writes its samples in memory.
  whole = rtf.CacheStore(shutil.copytree(tmp_path / "store", tmp_path / "whole"))
  stored = {index for index in range(n) if index in whole}
  for file in (tmp_path / "store").glob("small-*"):
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    content[np.arange(len(content)) % 1200 < 400] ^= 1  # Some records completely, some partly, most not at all.
    file.write_bytes(content.tobytes())
  # A copy shows which samples are damaged. A sample known to be damaged before it is read is prepared at its place.
  copy = rtf.CacheStore(shutil.copytree(tmp_path / "store", tmp_path / "copy"))
  copy.verify()
  damaged = {index for index in stored if index not in copy}
  assert 3 < len(damaged) < len(stored) - 3
  elements += take(restore(make(n=n, r=3, store=tmp_path / "store"), path))
  assert elements[: n + done] == expected[: n + done]
  # The next epoch reads the samples handed out before the restart. Then all damage has been found.
  assert sorted(elements[2 * n : 3 * n]) == sorted(expected[2 * n : 3 * n])
  assert elements[3 * n :] == expected[3 * n :]
  rest, undisturbed = elements[n + done : 2 * n], expected[n + done : 2 * n]
  before = {index: seed for index, *seed, _, _ in expected[:n]}
  late = [element for element in undisturbed if element[0] in damaged and element[1:3] == before[element[0]]]
  assert 1 < len(late) < len(rest) - 3
  assert rest != undisturbed
  assert rest[: -len(late)] == [element for element in undisturbed if element not in late]
  assert sorted(rest[-len(late) :]) == sorted(late)


def test_a_warm_store_avoids_preparing_samples_again(tmp_path):
  """Lost samples are prepared again, and no others."""
  # The number is large compared with the samples that tf.data had read ahead when it was saved.
  n = 1000
  how = {"n": n, "r": 4, "parallel": 1, "buffer": 1}
  iterator = iter(make(**how, store=tmp_path / "store"))
  take(iterator, n + n // 2)
  path = save(iterator, tmp_path)
  del iterator
  warm, cold = make(**how, store=tmp_path / "store"), make(**how)
  for dataset in (warm, cold):
    take(restore(dataset, path), n // 2)
  fresh = [rtf.stats(dataset)[0].total.fresh for dataset in (warm, cold)]
  # By the schedule a quarter of the remaining samples are fresh.
  assert n // 4 < fresh[1]
  assert 2 * fresh[0] <= fresh[1]


def test_restoring_sets_the_stage_back_and_harms_no_other_iterator(tmp_path):
  dataset = make(n=12, r=3, epochs=None)
  expected = [take(iter(dataset)) for _ in range(5)]
  dataset = make(n=12, r=3, epochs=None)
  saved = iter(dataset)
  first = take(saved, 5)
  path = save(saved, tmp_path)
  take(saved)
  other = iter(dataset)
  begun = take(other, 3)
  restored = restore(dataset, path)
  assert first + take(restored) == expected[0]
  assert begun + take(other) == expected[1]
  # The next epoch follows the restored one.
  for number in (1, 2, 3):
    assert take(iter(dataset)) == expected[number]
  # Caching goes on: in the last epoch 4 of 12 samples are prepared.
  assert rtf.stats(dataset)[0].epochs[-1].fresh == 4


def test_saved_between_epochs(tmp_path):
  """An iterator that was only created begins no epoch; one that has ended stays ended."""
  dataset = make(n=5, epochs=None)
  expected = [take(iter(dataset)) for _ in range(3)]
  dataset = make(n=5, epochs=None)
  ended = iter(dataset)
  assert take(ended) == expected[0]
  path = save(ended, tmp_path)
  again = make(n=5, epochs=None)
  assert take(restore(again, path)) == []
  assert take(iter(again)) == expected[1]
  path = save(iter(dataset), tmp_path)
  again = make(n=5, epochs=None)
  assert take(restore(again, path)) == expected[1]
  assert take(iter(again)) == expected[2]


BEHIND = {
  "repeat, batch": lambda ds: ds.repeat().batch(4),
  "repeat, map, batch, prefetch": lambda ds: ds.repeat().map(tf.identity, 2).batch(4).prefetch(2),
  "batch of the stage, repeat": lambda ds: ds.batch(4).prefetch(2).repeat(),
  "batch, repeat": lambda ds: ds.map(tf.identity).batch(4).repeat(),
  "batch, prefetch, repeat": lambda ds: ds.map(tf.identity).batch(4).prefetch(2).repeat(),
}


@cases.each_value
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("symbolic", [False, True])
def test_repeat_and_batch(tmp_path, behind, symbolic):
  """Nothing is lost although TensorFlow's `batch` drops the stage's iterator at the end of an epoch."""

  def pipeline():
    return with_checkpoints(BEHIND[behind](make(n=10, epochs=None)), symbolic)

  expected = take(iter(pipeline()), 8)
  for step in range(1, 8):
    iterator = iter(pipeline())
    elements = take(iterator, step)
    path = save(iterator, tmp_path)
    del iterator
    assert elements + take(restore(pipeline(), path), 8 - step) == expected


def test_small_at_the_size_of_imagenet(tmp_path):
  """The checkpoint has no contents of the store, and one bit per sample instead of 160,000 indices."""
  n = 1_281_167
  for symbolic in cases.some((False, True), 1):
    dataset = tf.data.Dataset.range(n).refurbish(tf.identity, r=3, seed=1).batch(1024)
    iterator = iter(with_checkpoints(dataset, symbolic))
    for _ in range(n // 1024 // 8):
      next(iterator)
    path = save(iterator, tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 320_000
    restored = restore(with_checkpoints(dataset, symbolic), path)
    np.testing.assert_array_equal(next(restored), next(iterator))


def test_a_first_pass_that_ends_after_another_iterator_was_restored(tmp_path):
  """The schedule begins with this pass, at an epoch that exists."""
  dataset = make("stream", 12, 3, epochs=None)
  path = save(iter(dataset), tmp_path)
  first = iter(dataset)
  begun = take(first, 4)
  restored = restore(dataset, path)
  assert sorted(index for index, *_ in begun + take(first)) == list(range(12))
  assert_epochs(take(restored), 12)
  path = save(iter(dataset), tmp_path)
  assert_epochs(take(restore(dataset, path)), 12)
  for _ in range(2):
    assert_epochs(take(iter(dataset)), 12)
  assert [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs] == [12, 0, 4, 4, 4]


def test_restoring_before_the_schedule_began(tmp_path):
  """A stream's schedule begins when its length is known; an earlier state cannot be restored."""

  def epoch(iterator):
    return sorted(index for index, *_ in take(iterator))

  dataset = make("stream", 10, 2, epochs=None)
  path = save(iter(dataset), tmp_path)
  first, second = iter(dataset), iter(dataset)
  begun = [take(first, 3), take(second, 3)]
  for iterator, part in zip((first, second), begun, strict=True):
    assert sorted([index for index, *_ in part] + epoch(iterator)) == list(range(10))
  assert epoch(restore(dataset, path)) == list(range(10))
  for _ in range(3):
    assert epoch(iter(dataset)) == list(range(10))
  # The first two passes prepared all samples; each later epoch prepares five.
  assert [epoch.fresh for epoch in rtf.stats(dataset)[0].epochs] == [10, 10, 0, 5, 5, 5]


@pytest.mark.parametrize(
  "change, message",
  [
    ({"seed": 2}, "seed .* 2, .* 1 "),
    ({"r": 3}, "r .* 3, .* 2 "),
    ({"n": 8}, "num_samples .* 8, .* 7 "),
    ({"order_seed": 3}, "order_seed .* 3, .* 1 "),
    ({"eviction": "reference_count"}, "eviction .* reference_count, .* balanced "),
    ({"shuffle": "uniform"}, "shuffle .* uniform, .* cache_aware "),
  ],
)
def test_checkpoint_of_another_pipeline(tmp_path, change, message):
  iterator = iter(make())
  next(iterator)
  path = save(iterator, tmp_path)
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"another pipeline: {message}"):
    restore(make(**change), path)


def test_the_state_of_a_stage_of_another_policy_is_refused():
  saved = make(epochs=None)._input_dataset.saved_state()
  names = ("eviction", "shuffle", "num_shards", "shard", "whole", "schedule_shards")
  assert [saved[name] for name in names] == [0, 0, 1, 0, 7, 1]
  with pytest.raises(tf.errors.InvalidArgumentError, match="shuffle .* uniform, .* cache_aware "):
    make(epochs=None, shuffle="uniform")._input_dataset.restore_state(saved)


def train_until_killed(directory, kind, stop):
  """Runs in its own process, which kills itself at the step `stop`."""
  iterator = iter(make(kind, 50, 3, parallel=3))
  checkpoint = tf.train.Checkpoint(iterator=iterator, step=tf.Variable(0, dtype=tf.int64))
  manager = tf.train.CheckpointManager(checkpoint, directory / "checkpoints", max_to_keep=2)
  if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)
  for element in iterator:
    step = int(checkpoint.step.assign_add(1))
    with open(directory / "seen", "a") as file:
      file.write(json.dumps([step, *element.numpy().tolist()]) + "\n")
    if step == stop:
      os.kill(os.getpid(), signal.SIGKILL)
    if step % 9 == 0:
      manager.save()


@pytest.mark.parametrize("kind", ["range", pytest.param("stream", marks=cases.only_exhaustive)])
def test_killed_and_restarted_training_sees_what_an_unbroken_one_sees(tmp_path, kind):
  expected = take(iter(make(kind, 50, 3, parallel=3)))
  for stop in cases.some((30, 70), 1):
    assert run_forked(train_until_killed, tmp_path, kind, stop) == -signal.SIGKILL
  assert run_forked(train_until_killed, tmp_path, kind, None) == 0
  seen = {}
  for step, *element in map(json.loads, (tmp_path / "seen").read_text().splitlines()):
    # Some steps come twice: those after the last checkpoint.
    assert kind == "stream" or seen.get(step, element) == element
    seen[step] = element
  elements = [seen[step] for step in sorted(seen)]
  assert sorted(seen) == list(range(1, EPOCHS * 50 + 1))
  if kind == "range":
    assert elements == expected
  else:
    # With a stream, the order of samples depends on when they were prepared; their contents do not.
    assert sorted(elements) == sorted(expected)
    assert_epochs(elements, 50)
