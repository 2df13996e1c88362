"""A restored `fuse` goes on with exactly the rest: no image lost, none twice, the same draws, whatever was begun."""
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import restore, save
from support.fusing import finished_by_host, layers, source

N = 22
BATCH = 4


def symbolic(dataset):
  options = tf.data.Options()
  options.experimental_symbolic_checkpoint = True
  return dataset.with_options(options)


def refurbished():
  return source(N).refurbish(lambda *element: element, r=2, seed=3)


def fused(dataset, **arguments):
  return dataset.fuse(layers(), BATCH, drop_remainder=False, **arguments)


PIPELINES = {
    "refurbish": lambda: fused(refurbished()),
    "refurbish, all on the device": lambda: fused(refurbished(), on_device=1),
    "refurbish, prefetch": lambda: fused(refurbished()).prefetch(2),
    "refurbish, epochs": lambda: fused(refurbished()).repeat(3),
    "refurbish, dropped remainder": lambda: refurbished().fuse(layers(), BATCH).repeat(2),
    "refurbish, symbolic": lambda: symbolic(fused(refurbished()).repeat(2)),
    "source": lambda: fused(source(N), seed=5),
    "source, epochs": lambda: fused(source(N), seed=5).repeat(3),
    "source, half on the device": lambda: fused(source(N), seed=5, on_device=1 / 2).repeat(2),
    "source, parallel map": lambda: fused(
        source(N).shuffle(8, seed=1, reshuffle_each_iteration=False).map(lambda *element: element, 2), seed=5),
    "source, symbolic": lambda: symbolic(fused(source(N), seed=5).repeat(2)),
}


def values(batches):
  """The labels of each batch and its images as the accelerator makes them."""
  return [(labels.numpy().tolist(), finished_by_host(batch, layers(), 2).tobytes()) for batch, labels in batches]


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_at_every_step(make, tmp_path):
  """Also saved a second time after it was restored."""
  expected = values(make())
  steps = range(len(expected) + 1)
  for step in cases.some(steps, 4):
    dataset = make()
    iterator = iter(dataset)
    before = values(itertools.islice(iterator, step))
    path = save(iterator, tmp_path)
    again = restore(make(), path)
    between = values(itertools.islice(again, 1))
    rest = restore(make(), save(again, tmp_path))
    assert before + between + values(rest) == expected, step
    assert before + between + values(again) == expected, step


def test_a_checkpoint_behind_refurbish_holds_no_images(tmp_path):
  dataset = source(64, 64, 64).refurbish(lambda *element: element, r=2, seed=3).fuse(layers(), 8)
  iterator = iter(dataset)
  next(iterator)
  path = save(iterator, tmp_path)
  assert sum(os.path.getsize(file) for file in tmp_path.iterdir()) < 20_000 < 64 * 64 * 3 * 8
  rest = restore(dataset, path)
  assert len(list(rest)) == 7


def test_the_seed_of_a_checkpoint_is_taken_unless_one_was_given(tmp_path):
  iterator = iter(fused(source(N)))
  first = values(itertools.islice(iterator, 2))
  path = save(iterator, tmp_path)
  rest = values(iterator)
  assert values(restore(fused(source(N)), path)) == rest != first
  with pytest.raises(tf.errors.InvalidArgumentError, match="was saved with seed=.*, but this stage has seed=1"):
    restore(fused(source(N), seed=1), path)


def test_an_error_that_was_read_ahead_is_saved(tmp_path):
  def fail(image, label):
    with tf.control_dependencies([tf.debugging.assert_none_equal(label, tf.constant(9, tf.int64), message="nine")]):
      return tf.identity(image), label

  def read(iterator):
    labels, errors = [], 0
    while True:
      try:
        labels += next(iterator)[1].numpy().tolist()
      except tf.errors.InvalidArgumentError:
        errors += 1
      except StopIteration:
        return labels, errors

  iterator = iter(fused(source(N).map(fail), seed=5))
  first = next(iterator)[1].numpy().tolist()
  labels, errors = read(restore(fused(source(N).map(fail), seed=5), save(iterator, tmp_path)))
  assert first + labels == [i for i in range(N) if i != 9] and errors == 1


def test_the_state_between_two_epochs():
  """What `RestoreDataset` and loaders keep of a stage that makes its seeds itself."""
  dataset, other = fused(source(N), seed=5), fused(source(N), seed=5)
  list(dataset)
  other.restore_state(dataset.saved_state())
  assert values(other) == values(dataset)
  with pytest.raises(tf.errors.InvalidArgumentError, match="seed=5, but this stage has seed=6"):
    fused(source(N), seed=6).restore_state(dataset.saved_state())
  for damaged in ([5], [5, -1], [5, 2**33]):
    with pytest.raises(tf.errors.DataLossError, match="checkpoint of fuse is damaged"):
      other.restore_state({"state": damaged})
  assert not hasattr(fused(refurbished()), "saved_state")  # The refurbish stage keeps it.


def test_a_loader_goes_on_without_elements_in_its_state():
  dataset = source(64, 64, 64).refurbish(lambda *element: element, r=2, seed=3).fuse(layers(), 8).prefetch(2)
  pytest.importorskip("jax")
  expected = [np.asarray(labels).tolist() for _, labels in rtf.jax_loader(dataset)]

  def again():
    return source(64, 64, 64).refurbish(lambda *element: element, r=2, seed=3).fuse(layers(), 8).prefetch(2)

  loader = rtf.jax_loader(again())
  batches = iter(loader)
  first = [np.asarray(next(batches)[1]).tolist() for _ in range(3)]
  state = loader.state_dict()
  assert state["state"].nbytes < 64 * 64 * 3 * 8
  resumed = rtf.jax_loader(again())
  resumed.load_state_dict(state)
  assert first + [np.asarray(labels).tolist() for _, labels in resumed] == expected
